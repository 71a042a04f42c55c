#include "kernels/cpu/pages/append_pages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cpu/eviction/rank_key.h"
#include "kernels/victim.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pages/append_pages.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/pages/page_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {

// Writes key and value of new token `token` of a head to index `index` of the pages.
void WriteNewEntry(const AppendPagesArgs& args, int head, int token, size_t index) {
  const size_t d = args.pages.layout.head_dim;
  const size_t from = head * args.kv_head_stride + token * d;
  StoreRow(args.pages.layout.dtype, args.k.f32() + from, d, args.pages.keys, index * d);
  StoreRow(args.pages.layout.dtype, args.v.f32() + from, d, args.pages.values, index * d);
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(WriteNewEntry);

struct Head {
  const AppendPagesArgs& args;
  const DecodeRule& rule;
  const PageIds* blocks;
  int head;
  int32_t length;
  int32_t cap;

  size_t Index(int32_t entry) const { return PageIndex(args.pages.layout, blocks, entry); }
  float& Score(int32_t entry) const {
    return args.pages.scores[StateIndex(args.pages.layout, blocks, entry)];
  }
  float NewScore(int token) const {
    if (rule.by_position) return static_cast<float>(args.first_position + token);
    return args.sums[head * args.sum_stride + token];
  }
  // Protected entries rank above all others.
  uint64_t Rank(float score, int32_t position) const {
    return args.IsProtected(rule, position) ? UINT64_MAX : RankKey(score, position);
  }
};

// [length + num_tokens], new entries after the old ones.
std::vector<uint64_t> RanksOf(const Head& head) {
  std::vector<uint64_t> ranks(head.length + head.args.num_tokens);
  for (int32_t entry = 0; entry < head.length; ++entry) {
    const int32_t position = head.args.pages.positions[head.Index(entry)];
    const float score = head.rule.by_position ? static_cast<float>(position) : head.Score(entry);
    ranks[entry] = head.Rank(score, position);
  }
  for (int token = 0; token < head.args.num_tokens; ++token)
    ranks[head.length + token] = head.Rank(head.NewScore(token), head.args.first_position + token);
  return ranks;
}

void Write(const Head& head, int token, int32_t to) {
  const KvPages& pages = head.args.pages;
  const size_t index = head.Index(to);
  HWY_DYNAMIC_DISPATCH(WriteNewEntry)(head.args, head.head, token, index);
  pages.positions[index] = head.args.first_position + token;
  if (head.args.HasScores(head.rule)) head.Score(to) = head.NewScore(token);
}

// Keeps the best `keep` entries where old and new ones exceed the cap.
void Replace(const Head& head, int32_t keep) {
  const std::vector<uint64_t> ranks = RanksOf(head);
  std::vector<uint64_t> sorted = ranks;
  std::nth_element(sorted.begin(), sorted.begin() + (keep - 1), sorted.end(), std::greater<>());
  const uint64_t lowest_kept = sorted[keep - 1];
  int32_t to = 0;
  for (int token = 0; token < head.args.num_tokens; ++token) {
    if (ranks[head.length + token] < lowest_kept) continue;
    while (to < head.length && ranks[to] >= lowest_kept) ++to;
    Write(head, token, to++);
  }
}

void Append(const Head& head) {
  const int32_t keep = head.args.Keep(head.length, head.cap);
  if (keep < head.length + head.args.num_tokens) {
    if (keep > 0) Replace(head, keep);
  } else {
    for (int token = 0; token < head.args.num_tokens; ++token)
      Write(head, token, head.length + token);
  }
  const SequenceTables& tables = head.args.tables;
  const size_t head_index = tables.HeadIndex(head.args.slot, head.args.layer, head.head);
  tables.lengths[head_index] = keep;
  if (!head.rule.scored || keep != head.cap) return;
  tables.victims[head_index] =
      PickVictim(head.args.pages, head.blocks, keep, head.rule, head.args.NextPosition());
}

}  // namespace

void AppendPages(const AppendPagesArgs& args, ThreadPool& threads) {
  const SequenceTables& tables = args.tables;
  threads.ParallelFor(tables.num_kv_heads, [&](int head, int) {
    const size_t head_index = tables.HeadIndex(args.slot, args.layer, head);
    Append({args, tables.rules[args.slot], tables.HeadBlocks(args.slot, args.layer, head), head,
            tables.lengths[head_index], tables.caps[head_index]});
  });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
