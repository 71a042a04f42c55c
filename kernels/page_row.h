// Rows of keys and values as stored in pages and prefix blocks, in scalar code: the definition that
// faster code must equal to the bit. Stateless; any thread may call.
//
//   f32, f16, bf16   each value by itself, to nearest, ties to even
//   e4m3 ("fp8")     the same in 8 bits (OCP 8-bit Floating Point Specification 1.0, 5.1), no
//                    scale: larger values become 448
//   q8_0 ("int8")    GGUF's blocks: 32 values share a scale in half precision
//   q4_0 ("int4")    the same with 4 bits, after a Hadamard transform of each 32 values: it spreads
//                    outlier channels of keys, which would set the scale of the whole block
//                    (QuaRot, arXiv 2404.00456, transforms whole heads)
//
// Rounding is idempotent to the bit. A block with a value that is not finite, or too large for its
// scale (8e6 in q8_0, 1e5 in q4_0), is NaN.
#ifndef HYDRANT_KERNELS_PAGE_ROW_H_
#define HYDRANT_KERNELS_PAGE_ROW_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace hydrant {

inline constexpr int kE4M3RowUnit = 16;  // e4m3 rows are whole device vectors
inline constexpr int kHadamardDim = 32;
// A stored row is HadamardTransform(row) * kToPage, and row is HadamardTransform(stored) *
// kFromPage. A query's product with a row therefore equals that of HadamardTransform(query) *
// kFromPage with the stored row. Powers of two, so that nothing is rounded; stored values are
// about as large as the row's.
inline constexpr float kToPage = 1.0f / 8;
inline constexpr float kFromPage = 1.0f / 4;

// Whether rows of head_dim values may have the dtype.
constexpr bool IsPageDType(DType dtype, int head_dim) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return true;
    case DType::kE4M3:
      return head_dim % kE4M3RowUnit == 0;
    case DType::kQ8_0:
    case DType::kQ4_0:
      return head_dim % BlockElements(dtype) == 0;
    default:
      return false;
  }
}

// Whether rows are stored Hadamard-transformed.
constexpr bool IsTransformed(DType dtype) { return dtype == DType::kQ4_0; }

// Elements [first, first + count) of `base`; whole blocks in block dtypes.
void LoadPageRow(DType dtype, const void* base, size_t first, size_t count, float* row);
void StorePageRow(DType dtype, const float* row, size_t count, void* base, size_t first);
// Rounds as a store and a load would, in place.
void RoundPageRow(DType dtype, size_t count, float* row);

// x[i] = sum over j of (-1)^(number of bits set in both i and j) x[j], in place, for each
// kHadamardDim values; applied twice it multiplies by kHadamardDim. The additions pair values 1
// apart, then 2, 4, 8, 16.
void HadamardTransform(size_t count, float* row);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_PAGE_ROW_H_
