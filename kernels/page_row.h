// Rows of keys and values as they lie in pages and prefix blocks, for plain code: the meaning that
// faster code must equal to the bit. Stateless; any thread may call.
//
//   f32, f16, bf16   each value by itself, to nearest, ties to even
//   e4m3 ("fp8")     the same in 8 bits (OCP 8-bit Floating Point Specification 1.0, 5.1), no
//                    scale: larger values become 448
//   q8_0 ("int8")    GGUF's blocks: 32 values share a scale in half precision
//   q4_0 ("int4")    the same with 4 bits, of the values after a Hadamard transform of each 32: it
//                    spreads what a few channels of keys have in excess, which would set the scale
//                    of all (QuaRot, arXiv 2404.00456, of whole heads there)
//
// What has been rounded once is rounded to the same bits again. A block with a value that is not
// finite, or larger than its scale may say (8e6 of q8_0, 1e5 of q4_0), is NaN.
#ifndef HYDRANT_KERNELS_PAGE_ROW_H_
#define HYDRANT_KERNELS_PAGE_ROW_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace hydrant {

inline constexpr int kE4M3RowUnit = 16;  // rows of e4m3 are whole vectors of a device
inline constexpr int kHadamardDim = 32;
// What lies transformed is HadamardTransform(row) * kToPage, and row is HadamardTransform(that) *
// kFromPage. So a query's product with a row is that of HadamardTransform(query) * kFromPage with
// what lies there. Powers of two, so that nothing is rounded; about as large as the row was.
inline constexpr float kToPage = 1.0f / 8;
inline constexpr float kFromPage = 1.0f / 4;

// Whether rows of so many values may have the dtype.
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

// Whether values lie transformed.
constexpr bool IsTransformed(DType dtype) { return dtype == DType::kQ4_0; }

// Elements [first, first + count) of `base`; of blocks whole ones.
void LoadPageRow(DType dtype, const void* base, size_t first, size_t count, float* row);
void StorePageRow(DType dtype, const float* row, size_t count, void* base, size_t first);
// As it would be read back, in place.
void RoundPageRow(DType dtype, size_t count, float* row);

// x[i] = sum over j of (-1)^(bits that i and j share) x[j], in place, of each kHadamardDim values:
// twice is kHadamardDim times. The additions pair values 1 apart, then 2, 4, 8, 16.
void HadamardTransform(size_t count, float* row);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_PAGE_ROW_H_
