// SubGenBuild and SubGenInsert on the cpu (contract: kernels/ops/subgen.h): one task per head.
#ifndef HYDRANT_KERNELS_CPU_EVICTION_SUBGEN_H_
#define HYDRANT_KERNELS_CPU_EVICTION_SUBGEN_H_

#include "kernels/ops/subgen.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void SubGenBuild(const SubGenBuildArgs& args, ThreadPool& threads);
void SubGenInsert(const SubGenInsertArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_EVICTION_SUBGEN_H_
