#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/float16.h"

namespace hydrant {
namespace {

constexpr int kValues = 32;  // in a block

// The value of the largest magnitude, the first among equals; NaN if any value is not finite.
float PeakOf(const float* x, int count = kValues) {
  float peak = x[0];
  float finite = 0.0f;  // 0, or NaN
  for (int i = 0; i < count; ++i) {
    if (std::abs(x[i]) > std::abs(peak)) peak = x[i];
    finite += x[i] * 0.0f;
  }
  return finite == 0.0f ? peak : std::numeric_limits<float>::quiet_NaN();
}

// 1 / d, or 0 where that is not finite: the values are then all zero, too small for a half
// precision scale, or not finite.
float InverseOf(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void PutScale(float d, uint8_t* block) {
  const uint16_t bits = FloatToF16(d);
  std::memcpy(block, &bits, sizeof(bits));
}

void EncodeQ8_0(const float* x, uint8_t* block) {
  const float d = std::abs(PeakOf(x)) / 127.0f;
  const float inverse = InverseOf(d);
  PutScale(d, block);
  for (int i = 0; i < kValues; ++i) {
    // Rounds halves away from zero. Quants beside a scale that is not finite are arbitrary.
    const float rounded = inverse == 0.0f ? 0.0f : std::round(x[i] * inverse);
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
  }
}

// The peak becomes -8: the negative side of the range has one step more.
void EncodeQ4_0(const float* x, uint8_t* block) {
  const float d = PeakOf(x) / -8.0f;
  const float inverse = InverseOf(d);
  PutScale(d, block);
  const auto quant = [&](int i) {
    const float shifted = inverse == 0.0f ? 8.5f : x[i] * inverse + 8.5f;
    return static_cast<uint8_t>(std::min(static_cast<int>(shifted), 15));
  };
  for (int j = 0; j < kValues / 2; ++j)
    block[2 + j] = static_cast<uint8_t>(quant(j) | quant(j + kValues / 2) << 4);
}

void EncodeF8_E4M3(const float* x, uint8_t* block) {
  constexpr int kCount = BlockElements(DType::kF8_E4M3);
  const float scale = std::abs(PeakOf(x, kCount)) / 448.0f;
  const float inverse = InverseOf(scale);
  std::memcpy(block, &scale, sizeof(scale));
  for (int i = 0; i < kCount; ++i)
    block[sizeof(scale) + i] = inverse == 0.0f ? uint8_t{0} : FloatToE4M3(x[i] * inverse);
}

}  // namespace

void QuantizeRow(DType dtype, const float* src, int64_t count, uint8_t* dst) {
  const auto encode = dtype == DType::kQ8_0      ? EncodeQ8_0
                      : dtype == DType::kF8_E4M3 ? EncodeF8_E4M3
                                                 : EncodeQ4_0;
  const DTypeTraits traits = TraitsOf(dtype);
  for (int64_t i = 0; i < count; i += traits.block_elements, dst += traits.block_bytes)
    encode(src + i, dst);
}

}  // namespace hydrant
