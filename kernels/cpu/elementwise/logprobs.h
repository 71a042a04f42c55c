// Logprobs on the cpu (contract: kernels/ops/logprobs.h): three vectorised passes over
// a row, rows in parallel.
#ifndef HYDRANT_KERNELS_CPU_ELEMENTWISE_LOGPROBS_H_
#define HYDRANT_KERNELS_CPU_ELEMENTWISE_LOGPROBS_H_

#include "kernels/ops/logprobs.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void Logprobs(const LogprobsArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ELEMENTWISE_LOGPROBS_H_
