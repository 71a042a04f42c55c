// Copies pages, their entries' state, or both: between the KV pool and host memory, which holds
// offloaded caches, and within the pool.
#ifndef HYDRANT_KERNELS_OPS_COPY_PAGES_H_
#define HYDRANT_KERNELS_OPS_COPY_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int32_t kNotCopied = -1;

struct PageCopy {
  PageIds from;
  PageIds to;  // kNotCopied: not copied
};

// `from` and `to` may be the same pages. State is copied only as far as both sides have it.
// REQUIRES: copies write disjoint areas, and write no area that a copy reads.
struct CopyPagesArgs {
  const PageCopy* copies = nullptr;  // [count]
  int count = 0;
  KvPages from;
  KvPages to;  // same layout, except the number of pages and the place of state
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COPY_PAGES_H_
