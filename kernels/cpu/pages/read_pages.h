// Reads entries of one head from its pages into fp32 rows, vectorised. Stateless.
#ifndef HYDRANT_KERNELS_CPU_PAGES_READ_PAGES_H_
#define HYDRANT_KERNELS_CPU_PAGES_READ_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant::cpu {

// keys, values: [end, head_dim]; rows [begin, end) are written. blocks: the head's
// (SequenceTables::HeadBlocks).
void ReadEntries(const KvPages& pages, const PageIds* blocks, int begin, int end, float* keys,
                 float* values);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_PAGES_READ_PAGES_H_
