// Copies pages, their entries' state, or both: between the KV pool and the host's memory, where
// caches lie that nobody decodes with now, and within the pool.
#ifndef HYDRANT_KERNELS_OPS_COPY_PAGES_H_
#define HYDRANT_KERNELS_OPS_COPY_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int32_t kNotCopied = -1;

struct PageCopy {
  PageIds from;
  PageIds to;  // what is kNotCopied stays as it is
};

// `from` and `to` may be the same pages. Of state only what both have is copied. REQUIRES: nothing
// is written twice, and nothing that is written is read.
struct CopyPagesArgs {
  const PageCopy* copies = nullptr;  // [count]
  int count = 0;
  KvPages from;
  KvPages to;  // the same layout, but for its number of pages and where its state lies
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COPY_PAGES_H_
