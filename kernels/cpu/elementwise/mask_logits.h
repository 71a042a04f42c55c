// MaskLogits on the cpu (contract: kernels/ops/edit_logits.h): one word of 32 tokens at
// a time, rows in parallel.
#ifndef HYDRANT_KERNELS_CPU_ELEMENTWISE_MASK_LOGITS_H_
#define HYDRANT_KERNELS_CPU_ELEMENTWISE_MASK_LOGITS_H_

#include "kernels/ops/edit_logits.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void MaskLogits(const MaskLogitsArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ELEMENTWISE_MASK_LOGITS_H_
