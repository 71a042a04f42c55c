// The vectorised operations of kernels/ops/elementwise.h. A row's result depends on that row alone.
// Thread-safe as ThreadPool is: one caller at a time per pool.
#ifndef HYDRANT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_
#define HYDRANT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_

#include "kernels/ops/elementwise.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void RmsNorm(const RmsNormArgs& args, ThreadPool& threads);
void LayerNorm(const LayerNormArgs& args, ThreadPool& threads);
void RopeSplit(const RopeSplitArgs& args, ThreadPool& threads);
void Activate(const ActivateArgs& args, ThreadPool& threads);
void SoftCap(const SoftCapArgs& args, ThreadPool& threads);
void SumRows(const SumRowsArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_
