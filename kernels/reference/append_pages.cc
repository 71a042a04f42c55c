#include "kernels/ops/append_pages.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/ops/derive_scores.h"
#include "kernels/page_row.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// One head: its entries, followed by the new ones.
struct AppendedHead {
  const AppendPagesArgs& args;
  const DecodeRule& rule;
  const PageIds* blocks;
  int head;
  int32_t length;

  size_t Index(int32_t entry) const { return PageIndex(args.pages.layout, blocks, entry); }
  float& Stored(int32_t entry) const {
    return args.pages.scores[StateIndex(args.pages.layout, blocks, entry)];
  }
  bool IsNew(int32_t entry) const { return entry >= length; }
  int32_t Position(int32_t entry) const {
    return IsNew(entry) ? args.first_position + entry - length : args.pages.positions[Index(entry)];
  }
  float Score(int32_t entry) const {
    if (rule.by_position) return static_cast<float>(Position(entry));
    if (!args.HasScores(rule)) return 0.0f;
    if (!IsNew(entry)) return Stored(entry);
    return args.sums[head * args.sum_stride + entry - length];
  }
  // Whether entry a is kept in preference to b.
  bool Outlives(int32_t a, int32_t b) const {
    const bool a_protected = args.IsProtected(rule, Position(a));
    if (a_protected != args.IsProtected(rule, Position(b))) return a_protected;
    const auto rank = [&](int32_t entry) {
      const float score = Score(entry);
      return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
    };
    if (rank(a) != rank(b)) return rank(a) > rank(b);
    return Position(a) > Position(b);
  }
  void Write(int32_t entry, int32_t to) const {
    const KvPages& pages = args.pages;
    const int d = pages.layout.head_dim;
    const size_t from = head * args.kv_head_stride + static_cast<size_t>(entry - length) * d;
    StorePageRow(pages.layout.dtype, args.k.f32() + from, d, pages.keys, Index(to) * d);
    StorePageRow(pages.layout.dtype, args.v.f32() + from, d, pages.values, Index(to) * d);
    pages.positions[Index(to)] = Position(entry);
    if (args.HasScores(rule)) Stored(to) = Score(entry);
  }
};

void AppendHead(const AppendedHead& head, int32_t keep) {
  std::vector<int32_t> order(head.length + head.args.num_tokens);
  std::iota(order.begin(), order.end(), 0);
  if (keep < static_cast<int32_t>(order.size())) {
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return head.Outlives(a, b); });
  }
  std::vector<bool> stays(order.size(), false);
  for (int32_t i = 0; i < keep; ++i) stays[order[i]] = true;
  int32_t to = 0;
  for (auto entry = head.length; entry < static_cast<int32_t>(order.size()); ++entry) {
    if (!stays[entry]) continue;
    while (to < head.length && stays[to]) ++to;
    head.Write(entry, to++);
  }
}

void CopyScores(const ScoreRowsArgs& args, bool to_pages) {
  const SequenceTables& tables = args.tables;
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
    const int32_t length = tables.lengths[tables.HeadIndex(args.slot, args.layer, h)];
    for (int32_t entry = 0; entry < length; ++entry) {
      float& row = args.rows[h * args.stride + entry];
      float& score = args.pages.scores[StateIndex(args.pages.layout, blocks, entry)];
      if (to_pages) {
        score = row;
      } else {
        row = args.pages.positions[PageIndex(args.pages.layout, blocks, entry)] < args.scored_end
                  ? score
                  : 0.0f;
      }
    }
  }
}

}  // namespace

void AppendPages(const AppendPagesArgs& args) {
  const SequenceTables& tables = args.tables;
  const DecodeRule& rule = tables.rules[args.slot];
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    const size_t head_index = tables.HeadIndex(args.slot, args.layer, h);
    const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
    const int32_t length = tables.lengths[head_index], cap = tables.caps[head_index];
    const int32_t keep = args.Keep(length, cap);
    AppendHead({args, rule, blocks, h, length}, keep);
    tables.lengths[head_index] = keep;
    if (rule.scored && keep == cap)
      tables.victims[head_index] = PickVictim(args.pages, blocks, keep, rule, args.NextPosition());
  }
}

void GatherScores(const ScoreRowsArgs& args) { CopyScores(args, false); }
void ScatterScores(const ScoreRowsArgs& args) { CopyScores(args, true); }

void TimesValueLengths(const ScoreRowsArgs& args) {
  const SequenceTables& tables = args.tables;
  const KvLayout& layout = args.pages.layout;
  std::vector<float> value(layout.head_dim);
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
    const int32_t length = tables.lengths[tables.HeadIndex(args.slot, args.layer, h)];
    for (int32_t entry = 0; entry < length; ++entry) {
      const size_t first = PageIndex(layout, blocks, entry) * layout.head_dim;
      LoadPageRow(layout.dtype, args.pages.values, first, layout.head_dim, value.data());
      const double squares = SquaredLength(value.data(), layout.head_dim);
      args.rows[h * args.stride + entry] *= static_cast<float>(std::sqrt(squares));
    }
  }
}

}  // namespace hydrant::reference
