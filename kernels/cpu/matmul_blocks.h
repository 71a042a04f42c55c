// How the block formats of kernels/dtype.h lie in memory once packed for multiplication: the file's
// bits in another order, nothing rounded. Sixteen rows form a group (a short last group is padded
// with zero blocks); a group's bytes, for cols / 32 = n blocks of 32 values, are
//
//   low    [n][4 or 8 vectors][16 rows][4 values]  the low 4 bits (vector v: values 4v.. in the low
//   nibbles, 16 + 4v.. in
//                                                  the high ones), or all 8 bits of q8_0, stored as
//                                                  quant + 128
//   high   [n][16 rows][4 values]                  5 bits: bit s of a byte belongs to value 4s +
//   (byte % 4)
//          [n][2][16 rows][4 values]               6 bits: bits 2(s % 4).. of vector s / 4
//   scale  [n or n / 8][16] f16                    min [n or n / 8][16] f16 where the format has
//   one sub    q4_k, q5_k: [n][16] u8 scales, then [n][16] u8 minima; q6_k: [n][2][16] i8 scales
//
// so that one 64-byte vector holds four consecutive values of each of sixteen rows: what a 4-way
// integer dot product and an AMX tile row want. Value of a weight: scale * (quant - offset) [* sub
// scale] [+ min], exactly as kernels/dequantize.h.
//
// Plain data only: the files compiled for one instruction set include this.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_BLOCKS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace hydrant::cpu {

inline constexpr int kGroupRows = 16;
inline constexpr int kBlock = 32;  // values a block; the k formats' 256 are eight of these

struct BlockTraits {
  int low_bits;   // 4 or 8
  int high_bits;  // 0, 1 or 2
  int offset;     // subtracted from the unsigned quant
  bool has_min;
  bool super;   // scale and min count for 256 values, with a sub scale for each 32 (q6_k: 16)
  bool halves;  // sub scales for each 16
};

constexpr BlockTraits BlockTraitsOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return {4, 0, 8, false, false, false};
    case DType::kQ4_1:
      return {4, 0, 0, true, false, false};
    case DType::kQ5_0:
      return {4, 1, 16, false, false, false};
    case DType::kQ5_1:
      return {4, 1, 0, true, false, false};
    case DType::kQ8_0:
      return {8, 0, 128, false, false, false};
    case DType::kQ4_K:
      return {4, 0, 0, true, true, false};
    case DType::kQ5_K:
      return {4, 1, 0, true, true, false};
    case DType::kQ6_K:
      return {4, 2, 32, false, true, true};
    default:
      return {0, 0, 0, false, false, false};
  }
}

// Byte offsets inside a group.
struct GroupLayout {
  size_t high;
  size_t scale;
  size_t min;
  size_t sub_scale;
  size_t sub_min;
  size_t bytes;  // of a group, a multiple of 64
};

constexpr size_t LowBytes(const BlockTraits& t) { return static_cast<size_t>(t.low_bits) * 64; }
constexpr size_t HighBytes(const BlockTraits& t) { return static_cast<size_t>(t.high_bits) * 64; }

constexpr GroupLayout GroupLayoutOf(const BlockTraits& t, int num_blocks) {
  const size_t n = static_cast<size_t>(num_blocks);
  const size_t scale_bytes = (t.super ? n / 8 : n) * kGroupRows * 2;
  GroupLayout layout{};
  layout.high = n * LowBytes(t);
  layout.scale = layout.high + n * HighBytes(t);
  layout.min = layout.scale + scale_bytes;
  layout.sub_scale = layout.min + (t.has_min ? scale_bytes : 0);
  layout.sub_min = layout.sub_scale + (t.super ? n * kGroupRows * (t.halves ? 2 : 1) : 0);
  const size_t end = layout.sub_min + (t.super && t.has_min ? n * kGroupRows : 0);
  layout.bytes = (end + 63) / 64 * 64;
  return layout;
}

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_BLOCKS_H_
