// The host memory with the caches of ended requests. The engine copies them there and back by a
// batch's SwapOut and SwapIn. A copy is complete when its step has been collected; from then on any
// thread may read it until the cache is dropped.
#ifndef HYDRANT_ENGINE_CACHE_OFFLOAD_MEMORY_H_
#define HYDRANT_ENGINE_CACHE_OFFLOAD_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// The heads of one cache, [layers * KV heads] each, in KvCacheManager's order.
struct OffloadedHeads {
  int32_t* caps = nullptr;
  int32_t* lengths = nullptr;
  int32_t* victims = nullptr;  // as SequenceTables
};

// Borrowed from the engine.
struct OffloadMemory {
  KvPages pages;             // in host memory; the pool's layout except for the number of pages
  size_t num_heads = 0;      // layers * KV heads
  int32_t* heads = nullptr;  // [max_offloaded_caches, 3, num_heads]

  OffloadedHeads HeadsOf(int index) const {
    int32_t* first = heads + 3 * static_cast<size_t>(index) * num_heads;
    return {first, first + num_heads, first + 2 * num_heads};
  }
};

// The prefix blocks in host memory; borrowed from the engine. Between steps any thread may read a
// filled block, or write a free one.
struct PrefixMemory {
  char* blocks = nullptr;  // [num_prefix_blocks, block_bytes]
  size_t block_bytes = 0;

  char* At(int32_t block) const { return blocks + block_bytes * block; }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_OFFLOAD_MEMORY_H_
