#include "kernels/page_row.h"

#include <algorithm>
#include <cstdint>

#include "kernels/dequantize.h"
#include "kernels/page_element.h"
#include "kernels/quantize.h"

namespace hydrant {

void HadamardTransform(size_t count, float* row) {
  for (size_t block = 0; block < count; block += kHadamardDim) {
    float* const x = row + block;
    for (int apart = 1; apart < kHadamardDim; apart *= 2) {
      for (int i = 0; i < kHadamardDim; ++i) {
        if ((i & apart) != 0) continue;
        const float a = x[i], b = x[i + apart];
        x[i] = a + b;
        x[i + apart] = a - b;
      }
    }
  }
}

namespace {

// The dtype is known in the loop, which the compiler can then simplify.
template <DType kDType>
void LoadElements(const void* base, size_t first, size_t count, float* row) {
  for (size_t i = 0; i < count; ++i) row[i] = LoadPageElement(kDType, base, first + i);
}

}  // namespace

void LoadPageRow(DType dtype, const void* base, size_t first, size_t count, float* row) {
  if (dtype == DType::kF32) return LoadElements<DType::kF32>(base, first, count, row);
  if (dtype == DType::kF16) return LoadElements<DType::kF16>(base, first, count, row);
  if (dtype == DType::kBF16) return LoadElements<DType::kBF16>(base, first, count, row);
  if (dtype == DType::kE4M3) return LoadElements<DType::kE4M3>(base, first, count, row);
  DequantizeRow(dtype, static_cast<const uint8_t*>(base) + BytesOf(dtype, first),
                static_cast<int64_t>(count), row);
  if (!IsTransformed(dtype)) return;
  HadamardTransform(count, row);
  for (size_t i = 0; i < count; ++i) row[i] *= kFromPage;
}

void StorePageRow(DType dtype, const float* row, size_t count, void* base, size_t first) {
  if (BlockElements(dtype) == 1) {
    for (size_t i = 0; i < count; ++i) StorePageElement(dtype, base, first + i, row[i]);
    return;
  }
  uint8_t* to = static_cast<uint8_t*>(base) + BytesOf(dtype, first);
  for (size_t i = 0; i < count; i += kHadamardDim, to += TraitsOf(dtype).block_bytes) {
    float values[kHadamardDim];
    std::copy_n(row + i, kHadamardDim, values);
    if (IsTransformed(dtype)) {
      HadamardTransform(kHadamardDim, values);
      for (float& value : values) value *= kToPage;
    }
    QuantizeRow(dtype, values, kHadamardDim, to);
  }
}

void RoundPageRow(DType dtype, size_t count, float* row) {
  alignas(float) uint8_t stored[kHadamardDim * sizeof(float)];
  for (size_t i = 0; i < count; i += kHadamardDim) {
    const size_t some = std::min<size_t>(count - i, kHadamardDim);
    StorePageRow(dtype, row + i, some, stored, 0);
    LoadPageRow(dtype, stored, 0, some, row + i);
  }
}

}  // namespace hydrant
