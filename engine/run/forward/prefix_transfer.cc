#include "engine/run/forward/prefix_transfer.h"

#include <algorithm>
#include <vector>

namespace hydrant {

absl::Status PrefixTransfer::Allocate(Backend* backend, const EngineLimits& limits) {
  backend_ = backend;
  limits_ = limits;
  const size_t blocks = limits.prefill_arena_tokens / kPrefixBlockTokens;
  return ids_.Allocate(*backend, blocks * (1 + limits.query_blocks));
}

PrefixTransfer::Blocks PrefixTransfer::BlocksOf(const PrefillSlice& slice,
                                                const KvState& kv) const {
  const CachePlan& plan = kv.plan(slice.slot);
  Blocks blocks;
  blocks.parts = PrefixLayout(plan, static_cast<int>(slice.prompt.size()), limits_).parts();
  blocks.total = static_cast<int>(plan.prompt.tokens) / kPrefixBlockTokens;
  blocks.cached = slice.first_token / kPrefixBlockTokens;
  blocks.new_ids = std::min(static_cast<int>(slice.new_blocks.size()),
                            (blocks.total - blocks.cached) * blocks.parts);
  return blocks;
}

int32_t* PrefixTransfer::IdsOf(const PrefillSlice& slice, const Blocks& blocks, int part) const {
  const size_t first = slice.arena_begin / kPrefixBlockTokens * (1 + limits_.query_blocks);
  return ids_.data() + first + static_cast<size_t>(part) * blocks.total;
}

void PrefixTransfer::Begin(const PrefillSlice& slice, const KvState& kv) {
  if (slice.cached_blocks.empty() && slice.new_blocks.empty()) return;
  const Blocks blocks = BlocksOf(slice, kv);
  for (int part = 0; part < blocks.parts; ++part) {
    std::vector<int32_t> ids;
    ids.reserve(blocks.cached + blocks.NewOf(part));
    for (int i = 0; i < blocks.cached; ++i)
      ids.push_back(slice.cached_blocks[i * blocks.parts + part]);
    for (int i = 0; i < blocks.NewOf(part); ++i)
      ids.push_back(slice.new_blocks[i * blocks.parts + part]);
    ids_.Write(*backend_, IdsOf(slice, blocks, part) - ids_.data(), ids);
  }
}

PrefixBlocksArgs PrefixTransfer::ArgsOf(int layer, const PrefillSlice& slice, const Blocks& blocks,
                                        int part, int first_block, const KvState& kv) const {
  return {.blocks = IdsOf(slice, blocks, part) + first_block, .layer = layer, .pool = kv.prefix()};
}

namespace {

// Points the arguments to the rows from `token` on.
void SetRows(const TokenRows& k, const TokenRows& v, int token, PrefixBlocksArgs* args) {
  args->k = k.x + token * k.row_stride;
  args->v = v.x + token * v.row_stride;
  args->kv_head_stride = k.head_stride;
  args->row_stride = k.row_stride;
}

}  // namespace

void PrefixTransfer::LoadKv(int layer, const PrefillSlice& slice, const TokenRows& k,
                            const TokenRows& v, const KvState& kv) {
  if (slice.cached_blocks.empty()) return;
  const Blocks blocks = BlocksOf(slice, kv);
  PrefixBlocksArgs args = ArgsOf(layer, slice, blocks, 0, 0, kv);
  SetRows(k, v, 0, &args);
  args.count = blocks.cached;
  backend_->LoadPrefix(args);
}

void PrefixTransfer::SaveKv(int layer, const PrefillSlice& slice, const TokenRows& k,
                            const TokenRows& v, const KvState& kv) {
  if (slice.new_blocks.empty()) return;
  const Blocks blocks = BlocksOf(slice, kv);
  PrefixBlocksArgs args = ArgsOf(layer, slice, blocks, 0, blocks.cached, kv);
  SetRows(k, v, slice.first_token, &args);
  args.count = blocks.NewOf(0);
  backend_->SavePrefix(args);
}

// Calls move(args) for each query block: num_kv_heads query heads in place of keys, the next
// num_kv_heads in place of values.
template <typename Move>
void PrefixTransfer::ForQueries(int layer, const PrefillSlice& slice, int begin, int end,
                                int num_heads, const TokenRows& q, const KvState& kv,
                                const Move& move) const {
  const Blocks blocks = BlocksOf(slice, kv);
  const int first = begin / kPrefixBlockTokens;
  for (int part = 1; part < blocks.parts; ++part) {
    PrefixBlocksArgs args = ArgsOf(layer, slice, blocks, part, first, kv);
    const int there = blocks.cached + blocks.NewOf(part);
    args.count = std::min(end / kPrefixBlockTokens, there) - first;
    if (args.count <= 0) continue;
    const int head = 2 * (part - 1) * limits_.num_kv_heads;
    args.k = q.x + head * q.head_stride;
    const int next = head + limits_.num_kv_heads;
    if (next < num_heads) args.v = q.x + next * q.head_stride;
    args.kv_head_stride = q.head_stride;
    args.row_stride = q.row_stride;
    move(args);
  }
}

void PrefixTransfer::LoadQueries(int layer, const PrefillSlice& slice, int begin, int end,
                                 int num_heads, const TokenRows& q, const KvState& kv) {
  ForQueries(layer, slice, begin, end, num_heads, q, kv,
             [&](const PrefixBlocksArgs& args) { backend_->LoadPrefix(args); });
}

void PrefixTransfer::SaveQueries(int layer, const PrefillSlice& slice, int begin, int end,
                                 int num_heads, const TokenRows& q, const KvState& kv) {
  if (slice.new_blocks.empty()) return;
  ForQueries(layer, slice, begin, end, num_heads, q, kv,
             [&](const PrefixBlocksArgs& args) { backend_->SavePrefix(args); });
}

}  // namespace hydrant
