// Copies whole pages: between the KV pool and the host's memory, where caches lie that nobody
// decodes with now, and within the pool. Keys, values, positions, scores and log weights alike.
#ifndef HYDRANT_KERNELS_OPS_COPY_PAGES_H_
#define HYDRANT_KERNELS_OPS_COPY_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// `from` and `to` may be the same pages. REQUIRES: no page is written twice, and none that is
// written is read.
struct CopyPagesArgs {
  const PageCopy* copies = nullptr;  // [count]
  int count = 0;
  KvPages from;
  KvPages to;  // the same layout, but for num_blocks
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COPY_PAGES_H_
