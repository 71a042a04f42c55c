// DeriveScores on the cpu (contract: kernels/ops/derive_scores.h).
#ifndef HYDRANT_KERNELS_CPU_EVICTION_DERIVE_SCORES_H_
#define HYDRANT_KERNELS_CPU_EVICTION_DERIVE_SCORES_H_

#include "kernels/ops/derive_scores.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void DeriveScores(const DeriveScoresArgs& args, ThreadPool& pool);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_DERIVE_SCORES_H_
