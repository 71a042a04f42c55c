// ExpertMatmul of the cpu backend: kernels, weights, arithmetic and batch invariance as in
// matmul.h, where m is the number of an expert's places. One loop runs over pieces of all experts,
// so that threads are busy even if each expert has few places.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_EXPERTS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_EXPERTS_H_

#include "kernels/ops/experts.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

// REQUIRES: args.weight was made by PackWeight, x and y do not overlap.
void ExpertMatmul(const ExpertMatmulArgs& args, bool batch_invariant, ThreadPool& pool);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_EXPERTS_H_
