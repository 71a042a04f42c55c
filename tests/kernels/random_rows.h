// Random rows of a weight of any type, in file format, with finite scales.
#ifndef HYDRANT_TESTS_KERNELS_RANDOM_ROWS_H_
#define HYDRANT_TESTS_KERNELS_RANDOM_ROWS_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/float16.h"

namespace hydrant {

// Byte offsets of a block's 16-bit scales, which must be finite; all other bytes may be anything.
inline std::vector<int> ScaleOffsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return {0};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ6_K:
      return {208};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    default:
      return {};
  }
}

// Finite scales, and no NaN.
inline void SetF8(std::normal_distribution<float>& normal, std::mt19937& random,
                  std::vector<uint8_t>* bytes) {
  for (size_t block = 0; block < bytes->size(); block += 132) {
    const float scale = normal(random) / 16;
    for (size_t i = block + 4; i < block + 132; ++i) {
      if (((*bytes)[i] & 0x7f) == 0x7f) (*bytes)[i] = 0x7e;
    }
    std::memcpy(&(*bytes)[block], &scale, sizeof(scale));
  }
}

inline std::vector<uint8_t> RandomRows(DType dtype, int rows, int cols, std::mt19937& random) {
  std::vector<uint8_t> bytes(BytesOf(dtype, static_cast<size_t>(rows) * cols));
  std::normal_distribution<float> normal(0.0f, 0.05f);
  if (BlockElements(dtype) == 1) {
    for (size_t i = 0; i < bytes.size(); i += TraitsOf(dtype).block_bytes) {
      const float value = normal(random);
      const uint16_t half = dtype == DType::kF16 ? FloatToF16(value) : FloatToBF16(value);
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[i], &value, 4);
      } else {
        std::memcpy(&bytes[i], &half, 2);
      }
    }
    return bytes;
  }
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  if (dtype == DType::kMXFP4) {
    for (size_t block = 0; block < bytes.size(); block += 17)
      bytes[block] = static_cast<uint8_t>(118 + random() % 8);
  }
  if (dtype == DType::kF8_E4M3) SetF8(normal, random, &bytes);
  for (size_t block = 0; block < bytes.size(); block += TraitsOf(dtype).block_bytes) {
    for (int offset : ScaleOffsets(dtype)) {
      const uint16_t scale = FloatToF16(normal(random));
      std::memcpy(&bytes[block + offset], &scale, 2);
    }
  }
  return bytes;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_RANDOM_ROWS_H_
