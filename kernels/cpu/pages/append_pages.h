// AppendPages on the cpu (contract: kernels/ops/append_pages.h): linear-time
// selection, one task per head.
#ifndef HYDRANT_KERNELS_CPU_PAGES_APPEND_PAGES_H_
#define HYDRANT_KERNELS_CPU_PAGES_APPEND_PAGES_H_

#include "kernels/ops/append_pages.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void AppendPages(const AppendPagesArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_PAGES_APPEND_PAGES_H_
