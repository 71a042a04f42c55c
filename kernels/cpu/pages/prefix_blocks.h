// The vectorised operations of kernels/ops/prefix_blocks.h.
#ifndef HYDRANT_KERNELS_CPU_PAGES_PREFIX_BLOCKS_H_
#define HYDRANT_KERNELS_CPU_PAGES_PREFIX_BLOCKS_H_

#include "kernels/ops/prefix_blocks.h"
#include "kernels/thread_pool.h"

namespace hydrant::cpu {

void SavePrefix(const PrefixBlocksArgs& args, ThreadPool& threads);
void LoadPrefix(const PrefixBlocksArgs& args, ThreadPool& threads);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_PAGES_PREFIX_BLOCKS_H_
