// Products of bytes in the lanes of attention's vectors, for AVX-512 VNNI and for ARM's dot
// products (FEAT_DotProd). Included once per instruction set, after attention_simd.h.
#if HWY_ARCH_X86
#include "kernels/cpu/isa/byte_dots.h"
#else
#include <arm_neon.h>
#endif

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// VNNI multiplies unsigned bytes by signed ones; ARM's instruction signed ones by signed ones.
inline constexpr bool kUnsignedFirst = HWY_ARCH_X86;
using FirstByte = std::conditional_t<kUnsignedFirst, uint8_t, int8_t>;
inline constexpr float kMostFirst = kUnsignedFirst ? 255.0f : 127.0f;

// Adds to each lane of `sum` the dot product of its four bytes of `first`, as FirstByte, and of
// `second`, as int8_t.
HYDRANT_INLINE void AddByteDots(IntVec first, IntVec second, IntVec* sum) {
#if HWY_ARCH_X86
  cpu::AddByteDots(first.raw, second.raw, &sum->raw);
#else
  sum->raw = vdotq_s32(sum->raw, vreinterpretq_s8_s32(first.raw), vreinterpretq_s8_s32(second.raw));
#endif
}

// Stores each lane, a number of the range of T, as a byte.
template <typename T>
HYDRANT_INLINE void StoreBytes(IntVec numbers, void* to) {
  hn::StoreU(hn::DemoteTo(LaneTag<T>(), numbers), LaneTag<T>(), static_cast<T*>(to));
}

// Packs four vectors of numbers of the range of T: word i has the bytes of lane i of each, that of
// four[0] lowest.
template <typename T>
HYDRANT_INLINE IntVec PackBytes(const IntVec (&four)[4]) {
#if HWY_ARCH_X86
  const __m512i low = _mm512_packs_epi32(four[0].raw, four[1].raw);
  const __m512i high = _mm512_packs_epi32(four[2].raw, four[3].raw);
  const __m128i turns = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes =
      std::is_signed_v<T> ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
  return IntVec{_mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(turns))};
#else
  const IntVec byte = hn::Set(kInts, 255);
  const IntVec low = hn::Or(hn::And(four[0], byte), hn::ShiftLeft<8>(hn::And(four[1], byte)));
  return hn::Or(low, hn::Or(hn::ShiftLeft<16>(hn::And(four[2], byte)), hn::ShiftLeft<24>(four[3])));
#endif
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
