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

PrefixTransfer::Blocks PrefixTransfer::BlocksOf(const TokenRun& run, const KvState& kv) const {
  const CachePlan& plan = kv.plan(run.slot);
  Blocks blocks;
  blocks.parts = PrefixLayout(plan, static_cast<int>(run.tokens.size()), limits_).parts();
  blocks.total = static_cast<int>(plan.prompt.tokens) / kPrefixBlockTokens;
  blocks.cached = run.prompt.first_token / kPrefixBlockTokens;
  blocks.new_ids = std::min(static_cast<int>(run.prompt.new_blocks.size()),
                            (blocks.total - blocks.cached) * blocks.parts);
  return blocks;
}

int32_t* PrefixTransfer::IdsOf(const TokenRun& run, const Blocks& blocks, int part) const {
  const size_t first = run.arena_begin / kPrefixBlockTokens * (1 + limits_.query_blocks);
  return ids_.data() + first + static_cast<size_t>(part) * blocks.total;
}

void PrefixTransfer::Begin(const TokenRun& run, const KvState& kv) {
  if (run.prompt.cached_blocks.empty() && run.prompt.new_blocks.empty()) return;
  const Blocks blocks = BlocksOf(run, kv);
  for (int part = 0; part < blocks.parts; ++part) {
    std::vector<int32_t> ids;
    ids.reserve(blocks.cached + blocks.NewOf(part));
    for (int i = 0; i < blocks.cached; ++i)
      ids.push_back(run.prompt.cached_blocks[i * blocks.parts + part]);
    for (int i = 0; i < blocks.NewOf(part); ++i)
      ids.push_back(run.prompt.new_blocks[i * blocks.parts + part]);
    ids_.Write(*backend_, IdsOf(run, blocks, part) - ids_.data(), ids);
  }
}

PrefixBlocksArgs PrefixTransfer::ArgsOf(int layer, const TokenRun& run, const Blocks& blocks,
                                        int part, int first_block, const KvState& kv) const {
  return {.blocks = IdsOf(run, blocks, part) + first_block, .layer = layer, .pool = kv.prefix()};
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

void PrefixTransfer::LoadKv(int layer, const TokenRun& run, const TokenRows& k, const TokenRows& v,
                            const KvState& kv) {
  if (run.prompt.cached_blocks.empty()) return;
  const Blocks blocks = BlocksOf(run, kv);
  PrefixBlocksArgs args = ArgsOf(layer, run, blocks, 0, 0, kv);
  SetRows(k, v, 0, &args);
  args.count = blocks.cached;
  backend_->LoadPrefix(args);
}

void PrefixTransfer::SaveKv(int layer, const TokenRun& run, const TokenRows& k, const TokenRows& v,
                            const KvState& kv) {
  if (run.prompt.new_blocks.empty()) return;
  const Blocks blocks = BlocksOf(run, kv);
  PrefixBlocksArgs args = ArgsOf(layer, run, blocks, 0, blocks.cached, kv);
  SetRows(k, v, run.prompt.first_token, &args);
  args.count = blocks.NewOf(0);
  backend_->SavePrefix(args);
}

// Calls move(args) for each query block: num_kv_heads query heads in place of keys, the next
// num_kv_heads in place of values.
template <typename Move>
void PrefixTransfer::ForQueries(int layer, const TokenRun& run, int begin, int end, int num_heads,
                                const TokenRows& q, const KvState& kv, const Move& move) const {
  const Blocks blocks = BlocksOf(run, kv);
  const int first = begin / kPrefixBlockTokens;
  for (int part = 1; part < blocks.parts; ++part) {
    PrefixBlocksArgs args = ArgsOf(layer, run, blocks, part, first, kv);
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

void PrefixTransfer::LoadQueries(int layer, const TokenRun& run, int begin, int end, int num_heads,
                                 const TokenRows& q, const KvState& kv) {
  ForQueries(layer, run, begin, end, num_heads, q, kv,
             [&](const PrefixBlocksArgs& args) { backend_->LoadPrefix(args); });
}

void PrefixTransfer::SaveQueries(int layer, const TokenRun& run, int begin, int end, int num_heads,
                                 const TokenRows& q, const KvState& kv) {
  if (run.prompt.new_blocks.empty()) return;
  ForQueries(layer, run, begin, end, num_heads, q, kv,
             [&](const PrefixBlocksArgs& args) { backend_->SavePrefix(args); });
}

}  // namespace hydrant
