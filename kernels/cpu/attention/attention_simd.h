// Parts of the attention kernels in Highway's vectors: loads of page elements, exponentials, folds.
// A kernel's -inl.h file is compiled once with each instruction set. The file that includes this
// header defines HYDRANT_SIMD_NAMESPACE before: all functions are always inlined and live in that
// namespace, so that the linker cannot pick code of one instruction set for another file.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_H_

#include <cstdint>

#include "kernels/cpu/attention/attention_types.h"
#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/isa/vectors-inl.h"

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Register tiles. Query heads that share one pass of decode attention, vectors of the value row
// beside them, and rows of a prefill panel, two vectors each.
inline constexpr bool kManyRegisters = HWY_TARGET != HWY_AVX2;  // 32, not 16
inline constexpr int kGroupTile = kManyRegisters ? 4 : 3;
inline constexpr int kDimTile = 4;
inline constexpr int kPanelTile = kManyRegisters ? 12 : 6;

// The first n lanes; all from n = kLanes on.
HYDRANT_INLINE Mask FirstN(int n) { return hn::FirstN(kFloats, n); }

// The first n elements at p, at least 0; other lanes are zero. Memory past them is not read, as
// Highway's MaskedLoad does on ARM.
template <typename Tag>
HYDRANT_INLINE hn::Vec<Tag> LoadFirst(Tag tag, int n, const hn::TFromD<Tag>* p) {
#if HWY_ARCH_X86
  return hn::MaskedLoad(hn::RebindMask(tag, FirstN(n)), tag, p);
#else
  if (n >= kLanes) return hn::LoadU(tag, p);
  hn::TFromD<Tag> padded[kLanes] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return hn::LoadU(tag, padded);
#endif
}
HYDRANT_INLINE Vec LoadFirst(int n, const float* p) { return LoadFirst(kFloats, n, p); }

// Stores the first n lanes. Memory past them is not written, as it may be another thread's.
HYDRANT_INLINE void StoreFirst(int n, float* p, Vec v) {
#if HWY_ARCH_X86
  hn::BlendedStore(v, FirstN(n), kFloats, p);
#else
  if (n >= kLanes) return Store(p, v);
  float lanes[kLanes];
  Store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

// Loads of page elements.
HYDRANT_INLINE Vec LoadAs(const float* p) { return Load(p); }
HYDRANT_INLINE Vec LoadAs(const F16* p) { return LoadHalves(p); }
HYDRANT_INLINE Vec LoadAs(const BF16* p) {
  const auto bits = hn::LoadU(LaneTag<uint16_t>(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(kInts, bits)));
}
// Read as a half, the byte is 2^8 too small; kE4M3Carry sets the rest of the
// half's exponent for NaN.
HYDRANT_INLINE Vec LoadAs(const E4M3* p) {
  constexpr LaneTag<int16_t> kHalves;
  const auto bytes =
      hn::PromoteTo(kHalves, hn::LoadU(LaneTag<int8_t>(), reinterpret_cast<const int8_t*>(p)));
  const auto half = hn::And(hn::ShiftLeft<7>(bytes), hn::Set(kHalves, kE4M3Mask));
  const auto carried = hn::Add(half, hn::Set(kHalves, kE4M3Last));
  const auto nan = hn::And(carried, hn::Set(kHalves, kE4M3Carry));
  return hn::Mul(FromHalves(hn::Or(half, nan)), Set(kE4M3Scale));
}
// Elements first .. first + kLanes - 1 of a block.
HYDRANT_INLINE Vec ScaleOf(uint16_t half) {
  return FromHalves(hn::Set(LaneTag<int16_t>(), static_cast<int16_t>(half)));
}
HYDRANT_INLINE Vec LoadAs(const Q8Block* block, int first) {
  const auto quants = hn::LoadU(LaneTag<int8_t>(), block->quants + first);
  return hn::Mul(ScaleOf(block->scale), hn::ConvertTo(kFloats, hn::PromoteTo(kInts, quants)));
}
HYDRANT_INLINE Vec LoadAs(const Q4Block* block, int first) {
  const IntVec bytes =
      hn::PromoteTo(kInts, hn::LoadU(LaneTag<uint8_t>(), block->quants + first % 16));
  const IntVec quants = first < 16 ? hn::And(bytes, hn::Set(kInts, 15)) : hn::ShiftRight<4>(bytes);
  return hn::Mul(ScaleOf(block->scale), hn::ConvertTo(kFloats, hn::Sub(quants, hn::Set(kInts, 8))));
}
// Narrowing rounds to nearest, ties to even; NaN stays NaN.
HYDRANT_INLINE void StoreAs(float* p, Vec v) { Store(p, v); }
HYDRANT_INLINE void StoreAs(F16* p, Vec v) {
  const auto halves = hn::DemoteTo(LaneTag<hwy::float16_t>(), v);
  hn::StoreU(hn::BitCast(LaneTag<uint16_t>(), halves), LaneTag<uint16_t>(), &p->bits);
}
HYDRANT_INLINE void StoreAs(BF16* p, Vec v) {
  constexpr LaneTag<uint32_t> kBits;
  const auto bits = hn::BitCast(kBits, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kBits, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(kBits, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(kBits, 0x400000));
  const auto is_nan = hn::RebindMask(kBits, hn::IsNaN(v));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(LaneTag<uint16_t>(), hn::BitCast(kInts, high)), LaneTag<uint16_t>(),
             &p->bits);
}

// e^x within 1.1 units in the last place; 0 below -87.3 (no denormals), and for -inf.
HYDRANT_INLINE Vec Exp(Vec x) {
#if HWY_TARGET <= HWY_AVX3
  const Vec exponent = x;  // scalef takes any
#else
  // On x86 min and max return their second operand if one is NaN, on ARM NaN, so NaN passes.
  const Vec exponent = hn::Min(Set(kExpHighest), hn::Max(Set(kExpLowest), x));
#endif
  const Vec n = hn::Round(hn::Mul(exponent, Set(kLog2E)));
  Vec r = hn::NegMulAdd(n, Set(kLn2High), exponent);
  r = hn::NegMulAdd(n, Set(kLn2Low), r);
  Vec p = hn::MulAdd(Set(kExpC6), r, Set(kExpC5));
  p = hn::MulAdd(p, r, Set(kExpC4));
  p = hn::MulAdd(p, r, Set(kExpC3));
  p = hn::MulAdd(p, r, Set(kExpC2));
  p = hn::MulAdd(p, r, Set(1.0f));
  p = hn::MulAdd(p, r, Set(1.0f));
  const Mask zero = hn::Lt(x, Set(kExpLowest));
#if HWY_TARGET <= HWY_AVX3
  return Vec{_mm512_mask_scalef_ps(Zero().raw, static_cast<__mmask16>(~zero.raw), p.raw, n.raw)};
#else
  const IntVec power = hn::ShiftLeft<23>(hn::Add(RoundToInts(n), hn::Set(kInts, 127)));
  return hn::IfThenZeroElse(zero, hn::Mul(p, hn::BitCast(kFloats, power)));
#endif
}

#if HWY_TARGET <= HWY_AVX3
// e^x within a relative error of 3e-6, for logits that have been rounded more coarsely: 2^f by a
// minimax polynomial. 0 where Exp() is 0.
HYDRANT_INLINE Vec RoughExp(Vec x) {
  const Vec n = hn::Round(hn::Mul(x, Set(kLog2E)));
  const Vec f = hn::MulSub(x, Set(kLog2E), n);
  Vec p = hn::MulAdd(Set(0.0095701003f), f, Set(0.0559178628f));
  p = hn::MulAdd(p, f, Set(0.240247449f));
  p = hn::MulAdd(p, f, Set(0.693121814f));
  p = hn::MulAdd(p, f, Set(0.999999261f));
  const Mask zero = hn::Lt(x, Set(kExpLowest));
  return Vec{_mm512_mask_scalef_ps(Zero().raw, static_cast<__mmask16>(~zero.raw), p.raw, n.raw)};
}
#else
HYDRANT_INLINE Vec RoughExp(Vec x) { return Exp(x); }
#endif

// The weights of a pair of bf16 numbers in each lane.
HYDRANT_INLINE Vec EvenWeights(IntVec words) {
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(words));
}
HYDRANT_INLINE Vec OddWeights(IntVec words) {
  return hn::BitCast(kFloats, hn::And(words, hn::Set(kInts, -65536)));
}

struct Sum {
  template <typename V>
  HYDRANT_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Largest {
  template <typename V>
  HYDRANT_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// The lower, or upper, pairs of lanes of each 128 bits of a and b.
HYDRANT_INLINE Vec LowerPairs(Vec a, Vec b) {
  constexpr hn::Repartition<double, Floats> kPairs;
  return hn::BitCast(kFloats, hn::InterleaveLower(hn::BitCast(kPairs, a), hn::BitCast(kPairs, b)));
}
HYDRANT_INLINE Vec UpperPairs(Vec a, Vec b) {
  constexpr hn::Repartition<double, Floats> kPairs;
  return hn::BitCast(kFloats,
                     hn::InterleaveUpper(kPairs, hn::BitCast(kPairs, a), hn::BitCast(kPairs, b)));
}
// The even, or odd, 128-bit blocks of a, then those of b.
HYDRANT_INLINE Vec EvenBlocks(Vec a, Vec b) {
#if HWY_MAX_BYTES == 64
  return Vec{_mm512_shuffle_f32x4(a.raw, b.raw, 0x88)};
#else
  return hn::ConcatLowerLower(kFloats, b, a);
#endif
}
HYDRANT_INLINE Vec OddBlocks(Vec a, Vec b) {
#if HWY_MAX_BYTES == 64
  return Vec{_mm512_shuffle_f32x4(a.raw, b.raw, 0xdd)};
#else
  return hn::ConcatUpperUpper(kFloats, b, a);
#endif
}

// Folds four vectors by Sum() or Largest(): lane 4 b + i of the result is the fold of the four
// lanes of block b of vector i.
template <typename Op>
HYDRANT_INLINE Vec FoldQuad(Op op, Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = op(hn::InterleaveLower(a, b), hn::InterleaveUpper(kFloats, a, b));
  const Vec cd = op(hn::InterleaveLower(c, d), hn::InterleaveUpper(kFloats, c, d));
  return op(LowerPairs(ab, cd), UpperPairs(ab, cd));
}
// Joins kLanes / 4 folded quads: lane 4 q + i of the result is the fold of all
// lanes of vector i of quad q.
template <typename Op>
HYDRANT_INLINE Vec JoinQuads(Op op, const Vec* q) {
  if constexpr (kLanes == 4) {
    return q[0];
  } else if constexpr (kLanes == 8) {
    return op(EvenBlocks(q[0], q[1]), OddBlocks(q[0], q[1]));
  } else {
    const Vec q01 = op(EvenBlocks(q[0], q[1]), OddBlocks(q[0], q[1]));
    const Vec q23 = op(EvenBlocks(q[2], q[3]), OddBlocks(q[2], q[3]));
    return op(EvenBlocks(q01, q23), OddBlocks(q01, q23));
  }
}
// Moves lane j of vector i to lane i of vector j.
HYDRANT_INLINE void Transpose(Vec (&rows)[kLanes]) {
  constexpr int kQuads = kLanes / 4;
  Vec quads[kQuads][4];  // [g][k]: rows 4g to 4g + 3 of columns k, 4 + k, ...
  Unroll<kQuads>(HYDRANT_UNROLLED(g) {
    const Vec* const row = rows + 4 * g;
    const Vec low[2] = {hn::InterleaveLower(row[0], row[1]), hn::InterleaveLower(row[2], row[3])};
    const Vec high[2] = {hn::InterleaveUpper(kFloats, row[0], row[1]),
                         hn::InterleaveUpper(kFloats, row[2], row[3])};
    quads[g][0] = LowerPairs(low[0], low[1]);
    quads[g][1] = UpperPairs(low[0], low[1]);
    quads[g][2] = LowerPairs(high[0], high[1]);
    quads[g][3] = UpperPairs(high[0], high[1]);
  });
  Unroll<4>(HYDRANT_UNROLLED(k) {
    if constexpr (kQuads == 1) {
      rows[k] = quads[0][k];
    } else if constexpr (kQuads == 2) {
      rows[k] = EvenBlocks(quads[0][k], quads[1][k]);
      rows[4 + k] = OddBlocks(quads[0][k], quads[1][k]);
    } else {
      const Vec low[2] = {
          hn::ConcatLowerLower(kFloats, quads[1][k], quads[0][k]),
          hn::ConcatLowerLower(kFloats, quads[kQuads - 1][k], quads[kQuads - 2][k])};
      const Vec high[2] = {
          hn::ConcatUpperUpper(kFloats, quads[1][k], quads[0][k]),
          hn::ConcatUpperUpper(kFloats, quads[kQuads - 1][k], quads[kQuads - 2][k])};
      rows[k] = EvenBlocks(low[0], low[1]);
      rows[4 + k] = OddBlocks(low[0], low[1]);
      rows[8 + k] = EvenBlocks(high[0], high[1]);
      rows[12 + k] = OddBlocks(high[0], high[1]);
    }
  });
}

#if HWY_MAX_BYTES != 64
// The fold of all lanes, by halves: the order of additions is fixed.
template <typename Op>
HYDRANT_INLINE float Reduce(Op op, Vec v) {
#if HWY_MAX_BYTES == 32
  auto x = op(hn::LowerHalf(v), hn::UpperHalf(hn::FixedTag<float, 4>(), v));
#else
  Vec x = v;
#endif
  x = op(x, hn::Shuffle1032(x));
  return hn::GetLane(op(x, hn::Shuffle2301(x)));
}
#endif
HYDRANT_INLINE float ReduceAdd(Vec v) {
#if HWY_MAX_BYTES == 64
  return _mm512_reduce_add_ps(v.raw);
#else
  return Reduce(Sum(), v);
#endif
}
HYDRANT_INLINE float ReduceMax(Vec v) {
#if HWY_MAX_BYTES == 64
  return _mm512_reduce_max_ps(v.raw);
#else
  return Reduce(Largest(), v);
#endif
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_H_
