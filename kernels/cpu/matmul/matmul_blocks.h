// The packed layout of the block formats of kernels/dtype.h: the file's bits in another order,
// unrounded. Sixteen rows form a group (a short last group is padded with zero blocks); a group's
// bytes, for cols / 32 = n blocks of 32 values, are
//
//   low    [n][2, 4 or 8 vectors][16 rows][4 values]  the low bits. 4 bits: vector v has values
//                                                     4v.. in the low nibbles, 16 + 4v.. in the
//                                                     high ones. 2 bits: bits 2(s % 4).. of vector
//                                                     s / 4 are values 4s... 8 bits: q8_0's, as
//                                                     quant + 128
//   high   [n][16 rows][4 values]                     one more bit: bit s of a byte belongs to
//                                                     value 4s + (byte % 4)
//          [n][2][16 rows][4 values]                  two more bits: as 2 low bits
//   scale  [n or n / 8][16] f16, or mxfp4: u8         min [n or n / 8][16] f16, where there is one
//   sub    q4_k, q5_k: [n][16] u8 scales, then [n][16] u8 minima; iq4_xs: [n][16] i8 scales;
//          q3_k, q6_k: [n][2][16] i8 scales; q2_k: [n][2][16] u8, scale in the low nibble, minimum
//          in the high one
//
// so that one 64-byte vector holds four consecutive values of each of sixteen rows, the
// operand of a 4-way integer dot product and of an AMX tile row. Value of a weight: scale *
// (quant - offset) [* sub scale] [+ min], exactly as in kernels/dequantize.h. Quants of a
// codebook are looked up first.
//
// Plain data only: files compiled for one instruction set include this header.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BLOCKS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/codebooks.h"
#include "kernels/dtype.h"

namespace hydrant::cpu {

inline constexpr int kGroupRows = 16;
inline constexpr int kBlock = 32;  // values per block; the k formats' 256 are eight blocks

// Sub-scales of a 256-value block, per 32 or 16 values.
enum class SubScales : uint8_t {
  kNone,      // a block of 32 has none
  kUnsigned,  // u8; separate minima
  kSigned,    // i8
  kNibbles,   // u8: scale and minimum
};

enum class Codebook : uint8_t { kNone, kIq4Nl, kMxfp4 };

struct BlockTraits {
  int low_bits = 0;   // 2, 4 or 8
  int high_bits = 0;  // above those: 0, 1 or 2
  int offset = 0;     // subtracted from the unsigned quant or code
  bool has_min = false;
  SubScales sub = SubScales::kNone;
  bool halves = false;  // sub-scales per 16 values
  int scale_bytes = 2;  // f16, or 1: an e8m0 exponent, halved
  Codebook codebook = Codebook::kNone;

  constexpr bool super() const { return sub != SubScales::kNone; }
};

constexpr BlockTraits BlockTraitsOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return {.low_bits = 4, .offset = 8};
    case DType::kQ4_1:
      return {.low_bits = 4, .has_min = true};
    case DType::kQ5_0:
      return {.low_bits = 4, .high_bits = 1, .offset = 16};
    case DType::kQ5_1:
      return {.low_bits = 4, .high_bits = 1, .has_min = true};
    case DType::kQ8_0:
      return {.low_bits = 8, .offset = 128};
    case DType::kQ4_K:
      return {.low_bits = 4, .has_min = true, .sub = SubScales::kUnsigned};
    case DType::kQ5_K:
      return {.low_bits = 4, .high_bits = 1, .has_min = true, .sub = SubScales::kUnsigned};
    case DType::kQ6_K:
      return {
          .low_bits = 4, .high_bits = 2, .offset = 32, .sub = SubScales::kSigned, .halves = true};
    case DType::kQ2_K:
      return {.low_bits = 2, .has_min = true, .sub = SubScales::kNibbles, .halves = true};
    case DType::kQ3_K:
      return {
          .low_bits = 2, .high_bits = 1, .offset = 4, .sub = SubScales::kSigned, .halves = true};
    case DType::kIQ4_NL:
      return {.low_bits = 4, .offset = 128, .codebook = Codebook::kIq4Nl};
    case DType::kIQ4_XS:
      return {
          .low_bits = 4, .offset = 128, .sub = SubScales::kSigned, .codebook = Codebook::kIq4Nl};
    case DType::kMXFP4:
      return {.low_bits = 4, .offset = 12, .scale_bytes = 1, .codebook = Codebook::kMxfp4};
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8_E4M3:
    case DType::kE4M3:
      break;  // no integers
  }
  return {};
}

// Bytes that replace the quants of a codebook format: its values plus the offset, so
// that all are non-negative.
struct CodeBytes {
  alignas(16) uint8_t bytes[16];
};

constexpr CodeBytes CodeBytesOf(const BlockTraits& traits) {
  CodeBytes codes{};
  for (int i = 0; i < 16; ++i) {
    const int value = traits.codebook == Codebook::kIq4Nl ? kIq4NlValues[i] : kMxfp4Values[i];
    codes.bytes[i] = static_cast<uint8_t>(value + traits.offset);
  }
  return codes;
}

// The largest unsigned quant.
constexpr int LargestQuant(const BlockTraits& traits) {
  if (traits.codebook == Codebook::kNone) return (1 << (traits.low_bits + traits.high_bits)) - 1;
  int largest = 0;
  for (const uint8_t code : CodeBytesOf(traits).bytes) largest = code > largest ? code : largest;
  return largest;
}

// Byte offsets inside a group.
struct GroupLayout {
  size_t high;
  size_t scale;
  size_t min;
  size_t sub_scale;
  size_t sub_min;
  size_t bytes;  // per group, a multiple of 64
};

constexpr size_t LowBytes(const BlockTraits& t) { return static_cast<size_t>(t.low_bits) * 64; }
constexpr size_t HighBytes(const BlockTraits& t) { return static_cast<size_t>(t.high_bits) * 64; }

constexpr GroupLayout GroupLayoutOf(const BlockTraits& t, int num_blocks) {
  const size_t n = static_cast<size_t>(num_blocks);
  const size_t scales = (t.super() ? n / 8 : n) * kGroupRows * t.scale_bytes;
  const size_t subs = t.super() ? n * kGroupRows * (t.halves ? 2 : 1) : 0;
  GroupLayout layout{};
  layout.high = n * LowBytes(t);
  layout.scale = layout.high + n * HighBytes(t);
  layout.min = layout.scale + scales;
  layout.sub_scale = layout.min + (t.has_min ? scales : 0);
  layout.sub_min = layout.sub_scale + subs;
  const size_t end = layout.sub_min + (t.sub == SubScales::kUnsigned ? subs : 0);
  layout.bytes = (end + 63) / 64 * 64;
  return layout;
}

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BLOCKS_H_
