// Element types and constants shared by the SIMD headers of the attention kernels. Plain data.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_TYPES_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_TYPES_H_

#include <cstdint>

namespace hydrant::cpu {

// Elements of a page in memory; distinct types, so that loads pick the conversion.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
struct E4M3 {
  uint8_t bits;
};
// Blocks of 32 elements: kernels/page_row.h.
struct Q8Block {
  uint16_t scale;  // half precision
  int8_t quants[32];
};
struct Q4Block {
  uint16_t scale;
  uint8_t quants[16];  // 8 encodes zero; low nibbles first, then high ones
};
inline constexpr int kBlockElements = 32;

// E4M3 in the bit positions of a half: sign, four of the five exponent bits, three fraction bits.
// NaN (all ones) is where adding to the last fraction bit carries into the exponent's upper bit.
inline constexpr int16_t kE4M3Mask = static_cast<int16_t>(0xbf80);
inline constexpr int16_t kE4M3Last = 0x0080;
inline constexpr int16_t kE4M3Carry = 0x4000;
inline constexpr float kE4M3Scale = 256.0f;  // 2^(15 - 7), the difference of the exponents' biases

template <typename T>
inline constexpr bool kIsBlock = false;
template <>
inline constexpr bool kIsBlock<Q8Block> = true;
template <>
inline constexpr bool kIsBlock<Q4Block> = true;
// Rows stored by kernels/cpu/pages/page_rows.h.
template <typename T>
inline constexpr bool kIsPacked = kIsBlock<T> || sizeof(T) == 1;

// e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln(2) / 2. The polynomial interpolates (e^r - 1 - r) /
// r^2 at the Chebyshev nodes of that range; its relative error is 1e-8, below fp32's rounding. ln 2
// is split so that n * kLn2High is exact.
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kExpC2 = 0.5f;
inline constexpr float kExpC3 = 0.1666657689460664f;
inline constexpr float kExpC4 = 0.0416665544984156f;
inline constexpr float kExpC5 = 0.00836319488241411f;
inline constexpr float kExpC6 = 0.0013926203361484387f;
inline constexpr float kExpLowest = -87.3f;  // e^x is a normal float down to here
inline constexpr float kExpHighest = 88.0f;

// tanh x = x + x^3 p(x^2) for |x| below the border, 1 - 2 / (e^2x + 1) above it: Cephes' tanhf and
// its polynomial (S. Moshier, netlib.org/cephes). Near 0 the second form suffers from cancellation.
inline constexpr float kTanhBorder = 0.625f;
inline constexpr float kTanhC3 = -3.33332819422e-1f;
inline constexpr float kTanhC5 = 1.33314422036e-1f;
inline constexpr float kTanhC7 = -5.37397155531e-2f;
inline constexpr float kTanhC9 = 2.06390887954e-2f;
inline constexpr float kTanhC11 = -5.70498872745e-3f;

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_TYPES_H_
