#include "kernels/cpu/pages/compact.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cpu/eviction/rank_key.h"
#include "kernels/victim.h"

namespace hydrant::cpu {
namespace {

constexpr int kMovesPerTask = 128;

struct Move {
  int32_t from;
  int32_t to;
};

// Protected entries rank above all others.
uint64_t RankOf(const CompactArgs& args, const DecodeRule& rule, const PageIds* blocks,
                int32_t entry) {
  const KvPages& pages = args.pages;
  const int32_t position = pages.positions[PageIndex(pages.layout, blocks, entry)];
  if (args.IsProtected(position)) return UINT64_MAX;
  const float score = rule.by_position ? static_cast<float>(position)
                                       : pages.scores[StateIndex(pages.layout, blocks, entry)];
  return RankKey(score, position);
}

// Plans the moves: each survivor past keep[head] goes into a hole below it.
std::vector<Move> PlanMoves(const CompactArgs& args, int head) {
  const SequenceTables& tables = args.tables;
  const int32_t length = tables.lengths[tables.HeadIndex(args.slot, args.layer, head)];
  const int32_t keep = args.keep[head];
  std::vector<Move> moves;
  if (keep >= length || keep <= 0) return moves;
  const DecodeRule& rule = tables.rules[args.slot];
  const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, head);
  std::vector<uint64_t> ranks(length);
  for (int32_t entry = 0; entry < length; ++entry) ranks[entry] = RankOf(args, rule, blocks, entry);
  std::vector<uint64_t> sorted = ranks;
  std::nth_element(sorted.begin(), sorted.begin() + (keep - 1), sorted.end(), std::greater<>());
  const uint64_t lowest_kept = sorted[keep - 1];
  int32_t hole = 0;
  for (int32_t entry = keep; entry < length; ++entry) {
    if (ranks[entry] < lowest_kept) continue;
    while (ranks[hole] >= lowest_kept) ++hole;
    moves.push_back({entry, hole++});
  }
  return moves;
}

void MoveEntry(const KvPages& pages, const PageIds* blocks, const Move& move) {
  const size_t from = PageIndex(pages.layout, blocks, move.from);
  const size_t to = PageIndex(pages.layout, blocks, move.to);
  const size_t row = BytesOf(pages.layout.dtype, pages.layout.head_dim);
  for (void* rows : {pages.keys, pages.values})
    std::memcpy(static_cast<char*>(rows) + to * row, static_cast<char*>(rows) + from * row, row);
  pages.positions[to] = pages.positions[from];
  if (pages.scores != nullptr) {
    pages.scores[StateIndex(pages.layout, blocks, move.to)] =
        pages.scores[StateIndex(pages.layout, blocks, move.from)];
  }
  if (pages.log_weights == nullptr) return;
  std::copy_n(PairOf(pages, blocks, move.from), 2, PairOf(pages, blocks, move.to));
}

// Sets length, cap and victim of a head after its entries have moved.
void FinishHead(const CompactArgs& args, int head) {
  const SequenceTables& tables = args.tables;
  const DecodeRule& rule = tables.rules[args.slot];
  const size_t head_index = tables.HeadIndex(args.slot, args.layer, head);
  const int32_t keep = args.keep[head];
  tables.lengths[head_index] = keep;
  if (args.growth >= 0) tables.caps[head_index] = keep + args.growth;
  if (!rule.scored || keep != tables.caps[head_index]) return;
  tables.victims[head_index] = PickVictim(
      args.pages, tables.HeadBlocks(args.slot, args.layer, head), keep, rule, args.next_position);
}

}  // namespace

void Compact(const CompactArgs& args, ThreadPool& threads) {
  const int heads = args.tables.num_kv_heads;
  std::vector<std::vector<Move>> moves(heads);
  threads.ParallelFor(heads, [&](int head, int) { moves[head] = PlanMoves(args, head); });
  size_t most = 0;
  for (const std::vector<Move>& head_moves : moves) most = std::max(most, head_moves.size());
  const int tasks_per_head = static_cast<int>((most + kMovesPerTask - 1) / kMovesPerTask);
  threads.ParallelFor(heads * tasks_per_head, [&](int task, int) {
    const int head = task / tasks_per_head;
    const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, head);
    const size_t begin = static_cast<size_t>(task % tasks_per_head) * kMovesPerTask;
    const size_t end = std::min(begin + kMovesPerTask, moves[head].size());
    for (size_t i = begin; i < end; ++i) MoveEntry(args.pages, blocks, moves[head][i]);
  });
  threads.ParallelFor(heads, [&](int head, int) { FinishHead(args, head); });
}

}  // namespace hydrant::cpu
