// Loads a block of kLanes of a group's sixteen rows: its quants, scales and minima. `side` counts
// such parts of a group. Included by files compiled for one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BASE_BLOCKS_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BASE_BLOCKS_INL_H_

#include "kernels/cpu/isa/vectors-inl.h"
#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

inline constexpr int kSides = kGroupRows / kLanes;
inline constexpr int kSideBytes = 4 * kLanes;  // of four values of each row

HYDRANT_INLINE ByteVec LoadBytes(const uint8_t* p) { return hn::LoadU(kBytes, p); }

// The bytes shifted right; bits of a neighbour come in from above.
template <int kBits>
HYDRANT_INLINE ByteVec ShiftBytes(ByteVec bytes) {
  constexpr hn::Repartition<uint16_t, Bytes> kPairs;
  return hn::BitCast(kBytes, hn::ShiftRight<kBits>(hn::BitCast(kPairs, bytes)));
}
template <int kBits>
HYDRANT_INLINE ByteVec ShiftBytesLeft(ByteVec bytes) {
  constexpr hn::Repartition<uint16_t, Bytes> kPairs;
  return hn::BitCast(kBytes, hn::ShiftLeft<kBits>(hn::BitCast(kPairs, bytes)));
}

// Two bits of values 4 kStep .. 4 kStep + 3 of the rows.
template <int kStep>
HYDRANT_INLINE ByteVec PairOf(const uint8_t* pairs) {
  return hn::And(ShiftBytes<kStep % 4 * 2>(LoadBytes(pairs + kStep / 4 * 64)), hn::Set(kBytes, 3));
}

// The unsigned quants of values 4 kStep .. 4 kStep + 3 of the rows: one byte each, four to a row.
// `low` and `high` point at the rows' part of the block's vectors.
template <DType dtype, int kStep>
HYDRANT_INLINE ByteVec UnpackStep(const uint8_t* low, const uint8_t* high) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (kTraits.low_bits == 8) {
    return LoadBytes(low + kStep * 64);
  } else {
    ByteVec quants;
    if constexpr (kTraits.low_bits == 2) {
      quants = PairOf<kStep>(low);
    } else {
      const ByteVec vector = LoadBytes(low + kStep % 4 * 64);
      quants = hn::And(kStep < 4 ? vector : ShiftBytes<4>(vector), hn::Set(kBytes, 15));
    }
    if constexpr (kTraits.high_bits == 1) {
      const ByteVec bit = hn::And(ShiftBytes<kStep>(LoadBytes(high)), hn::Set(kBytes, 1));
      quants = hn::Or(quants, ShiftBytesLeft<kTraits.low_bits>(bit));
    } else if constexpr (kTraits.high_bits == 2) {
      quants = hn::Or(quants, ShiftBytesLeft<4>(PairOf<kStep>(high)));
    }
    if constexpr (kTraits.codebook != Codebook::kNone) {
      static constexpr CodeBytes kCodes = CodeBytesOf(kTraits);
      quants = hn::TableLookupBytes(hn::LoadDup128(kBytes, kCodes.bytes), quants);
    }
    return quants;
  }
}

HYDRANT_INLINE IntVec LoadU8Ints(const uint8_t* p) {
  return hn::PromoteTo(kInts, hn::LoadU(LaneTag<uint8_t>(), p));
}
HYDRANT_INLINE Vec LoadU8(const uint8_t* p) { return hn::ConvertTo(kFloats, LoadU8Ints(p)); }
HYDRANT_INLINE Vec LoadI8(const uint8_t* p) {
  const auto bytes = hn::LoadU(LaneTag<int8_t>(), reinterpret_cast<const int8_t*>(p));
  return hn::ConvertTo(kFloats, hn::PromoteTo(kInts, bytes));
}

// 2^(e - 128), as HalfE8M0ToFloat().
HYDRANT_INLINE Vec LoadExponents(const uint8_t* p) {
  const IntVec e = LoadU8Ints(p), one = hn::Set(kInts, 1);
  const IntVec usual = hn::ShiftLeft<23>(hn::Sub(e, one));
  const IntVec denormal = hn::Shl(hn::Set(kInts, 0x00200000), e);
  return hn::BitCast(kFloats, hn::IfThenElse(hn::Gt(e, one), usual, denormal));
}

// The low four bits of bytes; LoadHighNibbles loads the high ones.
HYDRANT_INLINE Vec LoadLowNibbles(const uint8_t* p) {
  return hn::ConvertTo(kFloats, hn::And(LoadU8Ints(p), hn::Set(kInts, 15)));
}
HYDRANT_INLINE Vec LoadHighNibbles(const uint8_t* p) {
  return hn::ConvertTo(kFloats, hn::ShiftRight<4>(LoadU8Ints(p)));
}

// Scale of the rows in a block, or in half a block.
template <DType dtype>
HYDRANT_INLINE Vec ScaleOf(const uint8_t* group, const GroupLayout& layout, int block, int half,
                           int side) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const int first = side * kLanes;
  if constexpr (kTraits.scale_bytes == 1)
    return LoadExponents(group + layout.scale + block * 16 + first);
  if constexpr (!kTraits.super()) return LoadHalves(group + layout.scale + block * 32 + first * 2);
  const Vec scale = LoadHalves(group + layout.scale + block / 8 * 32 + first * 2);
  const int sub_block = kTraits.halves ? block * 2 + half : block;
  const uint8_t* sub = group + layout.sub_scale + sub_block * 16 + first;
  if constexpr (kTraits.sub == SubScales::kSigned) return hn::Mul(scale, LoadI8(sub));
  if constexpr (kTraits.sub == SubScales::kNibbles) return hn::Mul(scale, LoadLowNibbles(sub));
  return hn::Mul(scale, LoadU8(sub));
}

template <DType dtype>
HYDRANT_INLINE Vec MinOf(const uint8_t* group, const GroupLayout& layout, int block, int half,
                         int side) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const int first = side * kLanes;
  if constexpr (!kTraits.super()) return LoadHalves(group + layout.min + block * 32 + first * 2);
  const Vec min = LoadHalves(group + layout.min + block / 8 * 32 + first * 2);
  const int sub_block = kTraits.halves ? block * 2 + half : block;
  const size_t at = sub_block * 16 + first;
  const Vec sub = kTraits.sub == SubScales::kNibbles
                      ? LoadHighNibbles(group + layout.sub_scale + at)
                      : LoadU8(group + layout.sub_min + at);
  return hn::Sub(Zero(), hn::Mul(min, sub));
}

// The 32 values of a row's block.
inline constexpr int kBlockVectors = kBlock / kLanes;
struct BlockVectors {
  Vec v[kBlockVectors];
};
inline BlockVectors LoadBlock(const float* x) {
  BlockVectors values;
  for (int i = 0; i < kBlockVectors; ++i) values.v[i] = Load(x + i * kLanes);
  return values;
}
// The scale with which no value exceeds `limit`.
inline BlockScale ScaleOfBlock(const BlockVectors& values, float limit) {
  Vec peak = Zero();
  Mask unordered = hn::IsNaN(peak);
  for (const Vec v : values.v) {
    peak = hn::Max(peak, hn::Abs(v));
    unordered = hn::Or(unordered, hn::IsNaN(v));
  }
  float peaks[kLanes];
  Store(peaks, peak);
  return BlockScaleOf(peaks, kLanes, !hn::AllFalse(kFloats, unordered), limit);
}
HYDRANT_INLINE IntVec RoundedTo(const BlockScale& s, Vec values) {
  return s.finite ? RoundToInts(hn::Mul(values, Set(s.inverse))) : hn::Zero(kInts);
}

// Rounds a block to integers of type T, at most `limit`, in the order of the row.
template <typename T>
inline BlockScale RoundBlock(const float* x, float limit, T* quants, int32_t half_sums[2]) {
  const BlockVectors values = LoadBlock(x);
  const BlockScale s = ScaleOfBlock(values, limit);
  for (int half = 0; half < 2; ++half) {
    IntVec sum = hn::Zero(kInts);
    for (int i = half * kBlockVectors / 2; i < (half + 1) * kBlockVectors / 2; ++i) {
      const IntVec rounded = RoundedTo(s, values.v[i]);
      hn::StoreU(hn::DemoteTo(LaneTag<T>(), rounded), LaneTag<T>(), quants + i * kLanes);
      sum = hn::Add(sum, rounded);
    }
    half_sums[half] = hn::GetLane(hn::SumOfLanes(kInts, sum));
  }
  return s;
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_BASE_BLOCKS_INL_H_
