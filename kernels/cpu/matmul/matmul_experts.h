// ExpertMatmul of the cpu backend: the kernels and the weights of matmul.h, its arithmetic and what
// it says of batch invariance, with an expert's places in the part of m. One loop runs over pieces
// of all experts, so that threads have work however few places each of them has.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_EXPERTS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_EXPERTS_H_

#include "kernels/ops/experts.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

// REQUIRES: args.weight was made by PackWeight, x and y do not overlap.
void ExpertMatmul(const ExpertMatmulArgs& args, bool batch_invariant, ThreadPool& pool);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_EXPERTS_H_
