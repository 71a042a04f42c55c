// Whole pages between the KV pool and pages of the same layout in the host's memory: caches that
// nobody decodes with now leave the pool without being forgotten. SwapOutPages copies out of the
// pool, SwapInPages into it; keys, values, positions, scores and log-weights alike.
#ifndef HYDRANT_KERNELS_OPS_SWAP_PAGES_H_
#define HYDRANT_KERNELS_OPS_SWAP_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

struct PageSwap {
  int32_t page = 0;       // of the pool
  int32_t host_page = 0;  // of the host's
};

// REQUIRES: no page is written twice.
struct SwapPagesArgs {
  const PageSwap* swaps = nullptr;  // [count]
  int count = 0;
  KvPages pool;
  KvPages host;  // the pool's layout, but for num_blocks
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SWAP_PAGES_H_
