// PoolScores on the cpu (contract: kernels/ops/pool_scores.h): one task per
// piece of a head's positions.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_POOL_SCORES_H_
#define HYDRANT_KERNELS_CPU_EVICTION_POOL_SCORES_H_

#include "kernels/ops/pool_scores.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void PoolScores(const PoolScoresArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_POOL_SCORES_H_
