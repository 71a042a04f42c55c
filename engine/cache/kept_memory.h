// Where the caches of ended requests lie in the host's memory. The engine moves them there and back
// as a batch says (CacheSwap); what a step has moved is there once it has been collected, and from
// then on, until the cache is given up, anybody may read it.
#ifndef HYDRANT_ENGINE_CACHE_KEPT_MEMORY_H_
#define HYDRANT_ENGINE_CACHE_KEPT_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// Of one cache, [layers * KV heads] each, in CacheSpace's order of the heads.
struct KeptHeads {
  int32_t* caps = nullptr;
  int32_t* lengths = nullptr;
  int32_t* victims = nullptr;  // as SequenceTables
};

// Borrowed from the engine.
struct KeptMemory {
  KvPages pages;         // of the host's memory; the pool's layout, but for its numbers of pages
  size_t num_heads = 0;  // layers * KV heads
  int32_t* heads = nullptr;  // [max_kept_caches, 3, num_heads]

  KeptHeads HeadsOf(int kept) const {
    int32_t* first = heads + 3 * static_cast<size_t>(kept) * num_heads;
    return {first, first + num_heads, first + 2 * num_heads};
  }
};

// Where prefix blocks lie, in the host's memory; borrowed from the engine. A block that is filled
// may be read by anybody between steps, one that is free be written.
struct PrefixMemory {
  char* blocks = nullptr;  // [num_prefix_blocks, block_bytes]
  size_t block_bytes = 0;

  char* At(int32_t block) const { return blocks + block_bytes * block; }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_KEPT_MEMORY_H_
