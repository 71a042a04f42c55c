#include "kernels/ops/compact.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// One head and its pages.
struct CompactedHead {
  const CompactArgs& args;
  const PageIds* blocks;
  const DecodeRule& rule;

  size_t Index(int32_t entry) const { return PageIndex(args.pages.layout, blocks, entry); }
  size_t State(int32_t entry) const { return StateIndex(args.pages.layout, blocks, entry); }
  int32_t Position(int32_t entry) const { return args.pages.positions[Index(entry)]; }
  float Score(int32_t entry) const {
    if (rule.by_position) return static_cast<float>(Position(entry));
    const float score = args.pages.scores[State(entry)];
    return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
  }
  // Whether entry a is kept in preference to b.
  bool Outlives(int32_t a, int32_t b) const {
    const bool a_protected = args.IsProtected(Position(a));
    if (a_protected != args.IsProtected(Position(b))) return a_protected;
    if (Score(a) != Score(b)) return Score(a) > Score(b);
    return Position(a) > Position(b);
  }
  void Move(int32_t from, int32_t to) const {
    const KvPages& pages = args.pages;
    const size_t row = BytesOf(pages.layout.dtype, pages.layout.head_dim);
    for (void* rows : {pages.keys, pages.values}) {
      std::memcpy(static_cast<char*>(rows) + Index(to) * row,
                  static_cast<char*>(rows) + Index(from) * row, row);
    }
    pages.positions[Index(to)] = pages.positions[Index(from)];
    if (pages.scores != nullptr) pages.scores[State(to)] = pages.scores[State(from)];
    if (pages.log_weights == nullptr) return;
    std::copy_n(PairOf(pages, blocks, from), 2, PairOf(pages, blocks, to));
  }
};

void CompactHead(const CompactedHead& head, int32_t length, int32_t keep) {
  std::vector<int32_t> order(length);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return head.Outlives(a, b); });
  std::vector<bool> stays(length, false);
  for (int i = 0; i < keep; ++i) stays[order[i]] = true;
  int32_t hole = 0;
  for (int32_t entry = keep; entry < length; ++entry) {
    if (!stays[entry]) continue;
    while (stays[hole]) ++hole;
    head.Move(entry, hole++);
  }
}

}  // namespace

void Compact(const CompactArgs& args) {
  const SequenceTables& tables = args.tables;
  const DecodeRule& rule = tables.rules[args.slot];
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    const size_t head_index = tables.HeadIndex(args.slot, args.layer, h);
    const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
    CompactHead({args, blocks, rule}, tables.lengths[head_index], args.keep[h]);
    tables.lengths[head_index] = args.keep[h];
    if (args.growth >= 0) tables.caps[head_index] = args.keep[h] + args.growth;
    if (rule.scored && args.keep[h] == tables.caps[head_index]) {
      tables.victims[head_index] =
          PickVictim(args.pages, blocks, args.keep[h], rule, args.next_position);
    }
  }
}

}  // namespace hydrant::reference
