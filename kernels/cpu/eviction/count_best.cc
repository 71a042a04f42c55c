#include "kernels/cpu/eviction/count_best.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/eviction/rank_key.h"
#include "kernels/victim.h"

namespace hydrant::cpu {
namespace {

struct Candidate {
  uint64_t rank;
  int head;
};

std::vector<Candidate> OpenEntries(const CountBestArgs& args, int head) {
  const SequenceTables& tables = args.tables;
  const int layer = args.layer_begin + head / tables.num_kv_heads;
  const int h = head % tables.num_kv_heads;
  const PageIds* blocks = tables.HeadBlocks(args.slot, layer, h);
  const int32_t length = tables.lengths[tables.HeadIndex(args.slot, layer, h)];
  std::vector<Candidate> open;
  open.reserve(length);
  for (int32_t entry = 0; entry < length; ++entry) {
    const KvPages& pages = args.pages;
    const int32_t position = pages.positions[PageIndex(pages.layout, blocks, entry)];
    if (args.IsProtected(position)) continue;
    const float score = pages.scores[StateIndex(pages.layout, blocks, entry)];
    open.push_back({RankKey(score, position), head});
  }
  return open;
}

}  // namespace

void CountBest(const CountBestArgs& args, ThreadPool& threads) {
  const int heads = (args.layer_end - args.layer_begin) * args.tables.num_kv_heads;
  std::fill(args.counts, args.counts + heads, 0);
  if (args.total <= 0) return;
  std::vector<std::vector<Candidate>> open(heads);
  threads.ParallelFor(heads, [&](int head, int) { open[head] = OpenEntries(args, head); });
  std::vector<Candidate> all;
  for (const std::vector<Candidate>& of_head : open)
    all.insert(all.end(), of_head.begin(), of_head.end());
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(args.total);
  std::nth_element(all.begin(), end - 1, all.end(), [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.head < b.head;
  });
  for (auto it = all.begin(); it != end; ++it) ++args.counts[it->head];
}

}  // namespace hydrant::cpu
