// The sizes that are fixed when an engine is created; all allocators of its memory work within
// them. Plain data.
#ifndef HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_
#define HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "engine/cache/cache_group.h"
#include "engine/cache/cache_spec.h"
#include "engine/cache/state_slabs.h"

namespace hydrant {

struct EngineLimits {
  int num_layers = 0;    // of the model
  int num_kv_heads = 0;  // of a layer
  // [kind] the groups besides the budget group, which has all other layers; without layers: unused.
  std::array<CacheGroup, kNumGroupKinds> fixed_groups = {};
  int block_size = 16;
  int num_blocks = 0;              // pages of the pool
  int64_t page_bytes = 0;          // bytes of one page
  SlabShape slab = {};             // of pages that hold state
  int64_t table_entries = 0;       // size of the table arena
  int num_prefix_blocks = 0;       // prefix blocks (kernels/ops/prefix_blocks.h); 0: none are kept
  int query_blocks = 1;            // prefix blocks of queries per block of keys and values
  int sums_a_prefix_block = 1024;  // column sums in a prefix block, per layer and KV head
  int num_host_pages = 0;          // pages in host memory, for offloaded caches
  int num_swap_pages = 0;          // host pages for sequences that are swapped out
  int max_offloaded_caches = 0;    // offloaded caches at a time
  int max_num_seqs = 0;            // slots
  int max_model_len = 0;           // tokens of one sequence, prompt and output
  int prefill_arena_tokens = 0;    // tokens of all open prompts together; at least max_model_len
  int max_shared_statistics = 0;   // distinct statistics of a prompt with sharing slots
  int max_held_tokens = 0;         // tokens of a run that is committed later; 0: no such runs
  int prefill_rows = 512;  // prompt tokens that keep the device busy for a pass of the weights
  bool learned_positions = false;  // no position past max_model_len exists, even in rolling heads
  bool centred_keys = false;       // stored keys lack a constant, so they cannot be rotated again
  uint32_t score_predictor = 0;    // id of the model's score predictor; 0: there is none
  int max_steps_in_flight = 1;     // steps worth enqueueing before the first is collected

  // The groups that have layers; the budget group, if it does, is the first.
  absl::InlinedVector<CacheGroup, kNumGroupKinds> Groups() const {
    absl::InlinedVector<CacheGroup, kNumGroupKinds> groups;
    if (BudgetLayers() > 0)
      groups.push_back({.num_layers = BudgetLayers(), .num_kv_heads = num_kv_heads});
    for (const CacheGroup& group : fixed_groups) {
      if (group.num_layers > 0) groups.push_back(group);
    }
    return groups;
  }
  // Layers of the budget group.
  int BudgetLayers() const {
    int layers = num_layers;
    for (const CacheGroup& group : fixed_groups) layers -= group.num_layers;
    return layers;
  }
  int BudgetHeads() const { return BudgetLayers() * num_kv_heads; }
  // A prompt of so many tokens on this model.
  PromptShape ShapeOf(int64_t tokens) const {
    return {.tokens = tokens,
            .num_layers = BudgetLayers(),
            .num_kv_heads = num_kv_heads,
            .predicts_scores = score_predictor != 0,
            .num_fixed_layers = num_layers - BudgetLayers()};
  }
  // Sets the number of layers that hold only the last `window` tokens of a sequence.
  void SetWindow(int layers, int window) {
    SetGroup({GroupKind::kWindow, layers, num_kv_heads, window});
  }
  // Replaces the group of its kind. REQUIRES: not kBudget
  void SetGroup(const CacheGroup& group) { fixed_groups[static_cast<int>(group.kind)] = group; }
  const CacheGroup& GroupOf(GroupKind kind) const { return fixed_groups[static_cast<int>(kind)]; }
  int WindowLayers() const { return GroupOf(GroupKind::kWindow).num_layers; }
  int Window() const { return GroupOf(GroupKind::kWindow).window; }
  // Pages of a cache without eviction after `tokens` tokens.
  int64_t PagesOfFull(int64_t tokens) const {
    int64_t pages = 0;
    for (const CacheGroup& group : Groups())
      pages += PagesOf(group.EntriesOf(tokens, tokens), block_size) * group.NumHeads();
    return pages;
  }
  // Rows of a step that tokens are sampled from.
  int MaxSampledRows() const { return max_num_seqs * std::max(1, max_held_tokens); }
  // Host pages, and offloaded caches, for contexts.
  int NumContextPages() const { return num_host_pages - num_swap_pages; }
  int MaxContexts() const { return max_offloaded_caches - (num_swap_pages > 0 ? max_num_seqs : 0); }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_
