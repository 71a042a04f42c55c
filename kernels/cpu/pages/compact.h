// Compact on the cpu (contract: kernels/ops/compact.h): linear-time selection, one task per head;
// then moves, one task per few entries.
#ifndef HYDRANT_KERNELS_CPU_PAGES_COMPACT_H_
#define HYDRANT_KERNELS_CPU_PAGES_COMPACT_H_

#include "kernels/ops/compact.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void Compact(const CompactArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_PAGES_COMPACT_H_
