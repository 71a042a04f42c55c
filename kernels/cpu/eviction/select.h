// Select and WritePages on the cpu (contracts: kernels/ops/select.h): linear-time selection, one
// task per head; pages are written with vectorised narrowing, one task per few pages.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_SELECT_H_
#define HYDRANT_KERNELS_CPU_EVICTION_SELECT_H_

#include "kernels/ops/select.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void Select(const SelectArgs& args, ThreadPool& threads);
void WritePages(const WritePagesArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_SELECT_H_
