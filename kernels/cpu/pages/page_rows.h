// The functions of kernels/page_row.h in vector code, for e4m3 and the block dtypes; bit-equal.
// (Other dtypes: page_rows-inl.h.) Stateless; any thread may call.
#ifndef HYDRANT_KERNELS_CPU_PAGES_PAGE_ROWS_H_
#define HYDRANT_KERNELS_CPU_PAGES_PAGE_ROWS_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace hydrant::cpu {

// REQUIRES: dtype is kE4M3, kQ8_0 or kQ4_0.
void LoadPageRow(DType dtype, const void* base, size_t first, size_t count, float* row);
void StorePageRow(DType dtype, const float* row, size_t count, void* base, size_t first);
void HadamardTransform(size_t count, float* row);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_PAGES_PAGE_ROWS_H_
