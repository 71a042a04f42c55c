// Vectors of floats and their integers, in Highway (github.com/google/highway) and the width of the
// instruction set that the including file is compiled for, and operations that Highway 1.0 lacks or
// makes slower. Included by files compiled for one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_ISA_VECTORS_INL_H_
#define HYDRANT_KERNELS_CPU_ISA_VECTORS_INL_H_

// GCC 12 warns about the deliberately undefined operands of its own AVX-512 intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "hwy/highway.h"
#pragma GCC diagnostic pop

#include <cstdint>

#define HYDRANT_INLINE inline __attribute__((always_inline))

namespace hydrant::cpu {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kLanes = HWY_LANES(float);

// Highway's tags of a vector of floats, and of its bits as other types.
using Floats = hn::FixedTag<float, kLanes>;
using Ints = hn::Rebind<int32_t, Floats>;
using Words = hn::Repartition<int16_t, Floats>;
using Bytes = hn::Repartition<uint8_t, Floats>;
inline constexpr Floats kFloats;
inline constexpr Ints kInts;
inline constexpr Words kWords;
inline constexpr Bytes kBytes;

using Vec = hn::Vec<Floats>;
using IntVec = hn::Vec<Ints>;
using WordVec = hn::Vec<Words>;
using ByteVec = hn::Vec<Bytes>;
using Mask = hn::Mask<Floats>;

// As many elements of another type as a vector has floats.
template <typename T>
using LaneTag = hn::Rebind<T, Floats>;

HYDRANT_INLINE Vec Zero() { return hn::Zero(kFloats); }
HYDRANT_INLINE Vec Set(float x) { return hn::Set(kFloats, x); }
HYDRANT_INLINE Vec Load(const float* p) { return hn::LoadU(kFloats, p); }
HYDRANT_INLINE void Store(float* p, Vec v) { hn::StoreU(v, kFloats, p); }

HYDRANT_INLINE Vec FromHalves(hn::Vec<LaneTag<int16_t>> bits) {
  return hn::PromoteTo(kFloats, hn::BitCast(LaneTag<hwy::float16_t>(), bits));
}
HYDRANT_INLINE Vec LoadHalves(const void* p) {
  return FromHalves(hn::LoadU(LaneTag<int16_t>(), static_cast<const int16_t*>(p)));
}

// The nearest integers, ties to even. On x86 those past the range of int32 become INT32_MIN;
// Highway's NearestInt would take three more instructions for them.
HYDRANT_INLINE IntVec RoundToInts(Vec v) {
#if HWY_TARGET <= HWY_AVX3
  return IntVec{_mm512_cvtps_epi32(v.raw)};
#elif HWY_TARGET == HWY_AVX2
  return IntVec{_mm256_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

// sum + the products of the two words of each lane. REQUIRES: no overflow.
HYDRANT_INLINE IntVec AddPairs(WordVec a, WordVec b, IntVec sum) {
#if HWY_ARCH_X86
  IntVec unused = hn::Zero(kInts);
  return hn::ReorderWidenMulAccumulate(kInts, a, b, sum, unused);
#else
  const auto low = vmull_s16(vget_low_s16(a.raw), vget_low_s16(b.raw));
  return hn::Add(sum, IntVec(vpaddq_s32(low, vmull_high_s16(a.raw, b.raw))));
#endif
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_VECTORS_INL_H_
