// The sizes that were fixed when an engine was made; all that lends its memory works within them.
// Plain data.
#ifndef HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_
#define HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "engine/cache/cache_group.h"
#include "engine/cache/state_slabs.h"

namespace hydrant {

inline constexpr int kMostFixedGroups = 1;

struct EngineLimits {
  int num_layers = 0;    // of the model
  int num_kv_heads = 0;  // of a layer
  // The groups beside the budget group, which has the layers that these leave; empty ones are none.
  std::array<CacheGroup, kMostFixedGroups> fixed_groups = {};
  int block_size = 16;
  int num_blocks = 0;              // pages of the pool
  int64_t page_bytes = 0;          // bytes of one page
  SlabShape slab = {};             // of those that are lent for state
  int64_t table_entries = 0;       // size of the table arena
  int num_prefix_blocks = 0;       // prefix blocks (kernels/ops/prefix_blocks.h); 0: none are kept
  int query_blocks = 1;            // that hold queries, for each that holds keys and values
  int sums_a_prefix_block = 1024;  // column sums that one holds, of a layer and KV head
  int num_host_pages = 0;          // pages in the host's memory, for caches that are kept
  int num_swap_pages = 0;          // of these, for sequences that are swapped out
  int max_kept_caches = 0;         // caches in host pages at a time
  int max_num_seqs = 0;            // slots
  int max_model_len = 0;           // tokens of one sequence, prompt and output
  int prefill_arena_tokens = 0;    // tokens of all open prompts together; at least max_model_len
  int max_shared_statistics = 0;   // that the other slots of a slice may want together
  int prefill_rows = 512;  // prompt tokens that keep the device busy for a pass of the weights
  bool learned_positions = false;  // no position past max_model_len can be had, not even by rolling
  int max_steps_in_flight = 1;     // steps worth enqueueing before the first is collected

  // The groups of which each has layers; the budget group, where there is one, is the first.
  absl::InlinedVector<CacheGroup, 1 + kMostFixedGroups> Groups() const {
    absl::InlinedVector<CacheGroup, 1 + kMostFixedGroups> groups;
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
  // The last `window` tokens of every sequence are what so many layers hold; 0: none has a window.
  void SetWindow(int layers, int window) {
    fixed_groups[0] = {GroupKind::kWindow, layers, num_kv_heads, window};
  }
  int WindowLayers() const { return fixed_groups[0].num_layers; }
  int Window() const { return fixed_groups[0].window; }
  // Pages of a cache without evictions after `tokens` tokens.
  int64_t PagesOfFull(int64_t tokens) const {
    int64_t pages = 0;
    for (const CacheGroup& group : Groups()) {
      const int64_t held =
          group.kind == GroupKind::kWindow ? std::min<int64_t>(tokens, group.window) : tokens;
      pages += PagesOf(held, block_size) * group.NumHeads();
    }
    return pages;
  }
  // What of the host's pages and of the caches in them contexts may have.
  int NumContextPages() const { return num_host_pages - num_swap_pages; }
  int MaxContexts() const { return max_kept_caches - (num_swap_pages > 0 ? max_num_seqs : 0); }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_
