// Loads and stores of single plain elements, for scalar code. Stores round to nearest, ties to
// even. Stateless. Rows of keys and values, which may have block dtypes: page_row.h.
#ifndef HYDRANT_KERNELS_PAGE_ELEMENT_H_
#define HYDRANT_KERNELS_PAGE_ELEMENT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/float16.h"

namespace hydrant {

// REQUIRES: dtype is f32, f16, bf16 or e4m3.
inline float LoadPageElement(DType dtype, const void* base, size_t index) {
  switch (dtype) {
    case DType::kF16:
      return F16ToFloat(static_cast<const uint16_t*>(base)[index]);
    case DType::kBF16:
      return BF16ToFloat(static_cast<const uint16_t*>(base)[index]);
    case DType::kE4M3:
      return E4M3ToFloat(static_cast<const uint8_t*>(base)[index]);
    default:
      return static_cast<const float*>(base)[index];
  }
}

inline void StorePageElement(DType dtype, void* base, size_t index, float value) {
  switch (dtype) {
    case DType::kF16:
      static_cast<uint16_t*>(base)[index] = FloatToF16(value);
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(base)[index] = FloatToBF16(value);
      break;
    case DType::kE4M3:
      static_cast<uint8_t*>(base)[index] = FloatToE4M3(value);
      break;
    default:
      static_cast<float*>(base)[index] = value;
      break;
  }
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_PAGE_ELEMENT_H_
