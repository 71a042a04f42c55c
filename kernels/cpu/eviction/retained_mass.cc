#include "kernels/cpu/eviction/retained_mass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/eviction/rank_key.h"
#include "kernels/victim.h"

namespace hydrant::cpu {
namespace {

constexpr double kUnits = 4294967296.0;

// The entries of one head (index over all layers) in pages.
struct Head {
  const PageIds* blocks;
  int32_t length;
};

Head HeadOf(const SequenceTables& tables, int slot, int head) {
  const int layer = head / tables.num_kv_heads, h = head % tables.num_kv_heads;
  return {tables.HeadBlocks(slot, layer, h), tables.lengths[tables.HeadIndex(slot, layer, h)]};
}

struct Entry {
  uint64_t rank;
  int64_t received;
};

int32_t EnoughFor(const KeepForMassArgs& args, const Head& head, int64_t need) {
  std::vector<Entry> entries;
  entries.reserve(head.length);
  for (int32_t e = 0; e < head.length; ++e) {
    const KvPages& pages = args.pages;
    const int32_t position = pages.positions[PageIndex(pages.layout, head.blocks, e)];
    const size_t state = StateIndex(pages.layout, head.blocks, e);
    const uint64_t rank =
        args.IsProtected(position) ? UINT64_MAX : RankKey(pages.scores[state], position);
    entries.push_back({rank, MassUnits(WindowSumOf(pages, head.blocks, e))});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.rank > b.rank; });
  int64_t sum = 0;
  int32_t enough = 0;
  while (enough < head.length && sum < need) sum += entries[enough++].received;
  return sum < need || enough > args.most ? head.length : enough;
}

}  // namespace

void RetainedMass(const RetainedMassArgs& args, ThreadPool& threads) {
  const SequenceTables& tables = args.tables;
  threads.ParallelFor(tables.num_layers * tables.num_kv_heads, [&](int index, int) {
    const Head head = HeadOf(tables, args.slot, index);
    int64_t sum = 0;
    for (int32_t e = 0; e < head.length; ++e)
      sum += MassUnits(WindowSumOf(args.pages, head.blocks, e));
    args.mass[index] = static_cast<float>(static_cast<double>(sum) / (kUnits * args.queries));
  });
}

void KeepForMass(const KeepForMassArgs& args, ThreadPool& threads) {
  const SequenceTables& tables = args.tables;
  const auto need = static_cast<int64_t>(double{args.min_mass} * args.queries * kUnits);
  threads.ParallelFor(tables.num_layers * tables.num_kv_heads, [&](int index, int) {
    const Head head = HeadOf(tables, args.slot, index);
    args.keep[index] = std::max(args.keep[index], EnoughFor(args, head, need));
  });
}

}  // namespace hydrant::cpu
