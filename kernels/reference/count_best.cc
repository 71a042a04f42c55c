#include "kernels/ops/count_best.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {

void CountBest(const CountBestArgs& args) {
  struct Entry {
    float score;
    int32_t position;
    int head;  // counted over all layers
  };
  const SequenceTables& tables = args.tables;
  const int heads = (args.layer_end - args.layer_begin) * tables.num_kv_heads;
  std::vector<Entry> entries;
  for (int head = 0; head < heads; ++head) {
    const int layer = args.layer_begin + head / tables.num_kv_heads;
    const int h = head % tables.num_kv_heads;
    const PageIds* blocks = tables.HeadBlocks(args.slot, layer, h);
    for (int e = 0; e < tables.lengths[tables.HeadIndex(args.slot, layer, h)]; ++e) {
      const int32_t position = args.pages.positions[PageIndex(args.pages.layout, blocks, e)];
      if (args.IsProtected(position)) continue;
      const float score = args.pages.scores[StateIndex(args.pages.layout, blocks, e)];
      entries.push_back(
          {std::isnan(score) ? -std::numeric_limits<float>::infinity() : score, position, head});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.position != b.position ? a.position > b.position : a.head < b.head;
  });
  std::fill(args.counts, args.counts + heads, 0);
  for (int64_t i = 0; i < args.total; ++i) ++args.counts[entries[i].head];
}

}  // namespace hydrant::reference
