// Half precision (IEEE binary16) and bfloat16 to and from float, and 8-bit floats to float, bit by
// bit. Scalar code for loading, references and tests; backends have vector forms. Widening is
// exact; narrowing rounds to nearest, ties to even. NaN stays NaN, overflow becomes infinity. No
// intermediate is a denormal float, so flush-to-zero modes change nothing.
#ifndef HYDRANT_KERNELS_FLOAT16_H_
#define HYDRANT_KERNELS_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace hydrant {

inline float F16ToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  }
  if (magnitude >= 0x0400u) {  // normal: the exponent's bias grows from 15 to 127
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  }
  // Subnormal: m * 2^-24, as the difference of two normal numbers, 2^-14 (1 + m/1024) - 2^-14.
  constexpr uint32_t kTwoToMinus14 = 113u << 23;
  const float value =
      std::bit_cast<float>(kTwoToMinus14 | magnitude << 13) - std::bit_cast<float>(kTwoToMinus14);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

inline uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;  // NaN
  if (magnitude >= 143u << 23) return sign | 0x7c00u;  // 2^16 and above: infinity
  if (magnitude < 113u << 23) {
    // Subnormal: adding 1/2, with an ulp of 2^-24, leaves the rounded mantissa in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  // 65520 and above carry into the exponent and become infinity.
  magnitude += 0x0fffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23)) >> 13));
}

inline float BF16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>(bits >> 16 | 0x0040u);  // NaN, made quiet
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// e4m3fn (OCP 8-bit Floating Point Specification 1.0, 5.1): no infinities, NaN is 0x7f and 0xff.
// Read as the bits of a half, the exponent's bias is 15 instead of 7, so the half is 2^8 too small.
inline float E4M3ToFloat(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  const auto half = static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7);
  return F16ToFloat(half) * 256.0f;
}

// Two e4m3 values in the low bytes of `pair`, as the bits of two halves that are 2^8 too small:
// sign, four of the five exponent bits, three fraction bits. NaN (all ones) is where adding to the
// last fraction bit carries into the exponent's upper bit; that bit makes a half NaN.
constexpr uint32_t E4M3PairToHalves(uint32_t pair) {
  const uint32_t apart = (pair & 0xffu) << 8 | (pair & 0xff00u) << 16;
  const uint32_t halves = (apart & 0x80008000u) | (apart & 0x7f007f00u) >> 1;
  return halves | ((halves + 0x00800080u) & 0x40004000u);
}

// Rounds to nearest, ties to even; 448 and above become 448, the largest value. NaN stays NaN.
constexpr uint8_t FloatToE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= std::bit_cast<uint32_t>(448.0f)) return sign | 0x7eu;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal: adding 2^14, with an ulp of 2^-9, leaves the rounded fraction in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// Half of the power of two that an e8m0 exponent encodes (OCP Microscaling Formats 1.0, 5.4.1;
// ggml's e8m0_to_fp32_half): 2^(e - 128). The first two are denormal and built bit by bit; 255, NaN
// in e8m0, is 2^127, as in ggml.
inline float HalfE8M0ToFloat(uint8_t exponent) {
  const uint32_t e = exponent;
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_FLOAT16_H_
