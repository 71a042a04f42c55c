// Copies pages, both halves or one: between the KV pool and the host's memory, where caches lie
// that nobody decodes with now, and within the pool.
#ifndef HYDRANT_KERNELS_OPS_COPY_PAGES_H_
#define HYDRANT_KERNELS_OPS_COPY_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int32_t kNotCopied = -1;

struct PageCopy {
  PageIds from;
  PageIds to;  // a half that is kNotCopied stays as it is
};

// `from` and `to` may be the same pages. REQUIRES: no half is written twice, and none that is
// written is read.
struct CopyPagesArgs {
  const PageCopy* copies = nullptr;  // [count]
  int count = 0;
  KvPages from;
  KvPages to;  // the same layout, but for its numbers of pages
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COPY_PAGES_H_
