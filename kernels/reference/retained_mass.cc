#include "kernels/ops/retained_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

constexpr double kUnits = 4294967296.0;

struct Entry {
  bool guarded;
  float score;
  int32_t position;
  int64_t received;
};

}  // namespace

void RetainedMass(const RetainedMassArgs& args) {
  const SequenceTables& tables = args.tables;
  for (int layer = 0; layer < tables.num_layers; ++layer) {
    for (int h = 0; h < tables.num_kv_heads; ++h) {
      const PageIds* blocks = tables.HeadBlocks(args.slot, layer, h);
      int64_t sum = 0;
      for (int e = 0; e < tables.lengths[tables.HeadIndex(args.slot, layer, h)]; ++e)
        sum += MassUnits(WindowSumOf(args.pages, blocks, e));
      args.mass[layer * tables.num_kv_heads + h] =
          static_cast<float>(static_cast<double>(sum) / (kUnits * args.queries));
    }
  }
}

void KeptMass(const KeptMassArgs& args) {
  for (int h = 0; h < args.num_kv_heads; ++h) {
    const float* received = args.window_sums + h * args.window_stride;
    int64_t sum = 0;
    for (int32_t i = 0; i < args.keep[h]; ++i) sum += MassUnits(received[args.PositionOf(h, i)]);
    args.mass[h] = static_cast<float>(static_cast<double>(sum) / (kUnits * args.queries));
  }
}

void KeepForMass(const KeepForMassArgs& args) {
  const SequenceTables& tables = args.tables;
  const auto need = static_cast<int64_t>(double{args.min_mass} * args.queries * kUnits);
  for (int head = 0; head < tables.num_layers * tables.num_kv_heads; ++head) {
    const int layer = head / tables.num_kv_heads, h = head % tables.num_kv_heads;
    const PageIds* blocks = tables.HeadBlocks(args.slot, layer, h);
    const int32_t length = tables.lengths[tables.HeadIndex(args.slot, layer, h)];
    std::vector<Entry> entries;
    for (int e = 0; e < length; ++e) {
      const int32_t position = args.pages.positions[PageIndex(args.pages.layout, blocks, e)];
      const size_t state = StateIndex(args.pages.layout, blocks, e);
      const float score = args.pages.scores[state];
      entries.push_back({args.IsProtected(position),
                         std::isnan(score) ? -std::numeric_limits<float>::infinity() : score,
                         position, MassUnits(WindowSumOf(args.pages, blocks, e))});
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      if (a.guarded != b.guarded) return a.guarded;
      return a.score != b.score ? a.score > b.score : a.position > b.position;
    });
    int64_t sum = 0;
    int32_t enough = 0;
    while (enough < length && sum < need) sum += entries[enough++].received;
    if (sum < need || enough > args.most) enough = length;
    args.keep[head] = std::max(args.keep[head], enough);
  }
}

}  // namespace hydrant::reference
