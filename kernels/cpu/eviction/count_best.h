// CountBest on the cpu (contract: kernels/ops/count_best.h): one linear-time selection
// over all heads' entries.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_COUNT_BEST_H_
#define HYDRANT_KERNELS_CPU_EVICTION_COUNT_BEST_H_

#include "kernels/ops/count_best.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void CountBest(const CountBestArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_COUNT_BEST_H_
