// The sizes that were fixed when an engine was made; all that lends its memory works within them.
// Plain data.
#ifndef HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_
#define HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_

#include <cstdint>

#include "engine/cache/state_slabs.h"

namespace hydrant {

struct EngineLimits {
  int num_layers = 0;     // of the model
  int window_layers = 0;  // of these: their heads hold a sequence's last `window` entries, whatever
                          // its plan says
  int window = 0;
  int num_kv_heads = 0;
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

  // Pages of a cache without evictions after `tokens` tokens; a layer with a window holds its last
  // `window` entries.
  int64_t PagesOfFull(int64_t tokens) const {
    const auto pages = [this](int64_t entries) {
      return (entries + block_size - 1) / block_size * num_kv_heads;
    };
    return FullLayers() * pages(tokens) + window_layers * pages(tokens < window ? tokens : window);
  }
  // Those whose entries a request's plan is about.
  int FullLayers() const { return num_layers - window_layers; }
  // What of the host's pages and of the caches in them contexts may have.
  int NumContextPages() const { return num_host_pages - num_swap_pages; }
  int MaxContexts() const { return max_kept_caches - (num_swap_pages > 0 ? max_num_seqs : 0); }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_ENGINE_LIMITS_H_
