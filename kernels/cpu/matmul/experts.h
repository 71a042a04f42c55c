// RouteExperts and CombineExperts of the cpu backend, one task per row; contracts
// in kernels/ops/experts.h.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_EXPERTS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_EXPERTS_H_

#include "kernels/ops/experts.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void RouteExperts(const RouteExpertsArgs& args, ThreadPool& threads);
void CombineExperts(const CombineExpertsArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_EXPERTS_H_
