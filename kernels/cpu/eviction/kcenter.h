// KCenter on the cpu (contract: kernels/ops/kcenter.h).
#ifndef HYDRANT_KERNELS_CPU_EVICTION_KCENTER_H_
#define HYDRANT_KERNELS_CPU_EVICTION_KCENTER_H_

#include "kernels/ops/kcenter.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void KCenter(const KCenterArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_KCENTER_H_
