// RetainedMass and KeepForMass on the cpu (contract:
// kernels/ops/retained_mass.h): one task per head.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_RETAINED_MASS_H_
#define HYDRANT_KERNELS_CPU_EVICTION_RETAINED_MASS_H_

#include "kernels/ops/retained_mass.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void RetainedMass(const RetainedMassArgs& args, ThreadPool& threads);
void KeepForMass(const KeepForMassArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_RETAINED_MASS_H_
