// Vectorised conversion of rows between fp32 and page dtypes, for files that Highway compiles once
// per target: bit-equal to kernels/page_row.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/pages/page_rows.h"
#include "kernels/dtype.h"
#include "kernels/float16.h"

#if defined(HYDRANT_KERNELS_CPU_PAGE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYDRANT_KERNELS_CPU_PAGE_ROWS_INL_H_
#undef HYDRANT_KERNELS_CPU_PAGE_ROWS_INL_H_
#else
#define HYDRANT_KERNELS_CPU_PAGE_ROWS_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace page_rows {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// Bit-equal to FloatToBF16.
inline void NarrowToBF16(const float* in, size_t n, uint16_t* out) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, in + i);
    const auto bits = hn::BitCast(du, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    const auto quiet_nan = hn::Or(high, hn::Set(du, 0x0040u));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    const auto narrow = hn::IfThenElse(is_nan, quiet_nan, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, narrow)), d16, out + i);
  }
  for (; i < n; ++i) out[i] = FloatToBF16(in[i]);
}

inline void NarrowToF16(const float* in, size_t n, uint16_t* out) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> d16;
  const hn::RebindToUnsigned<decltype(d16)> du16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto half = hn::DemoteTo(d16, hn::LoadU(d, in + i));
    hn::StoreU(hn::BitCast(du16, half), du16, out + i);
  }
  for (; i < n; ++i) out[i] = FloatToF16(in[i]);
}

inline void WidenBF16(const uint16_t* in, size_t n, float* out) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, in + i)));
    hn::StoreU(hn::BitCast(d, bits), d, out + i);
  }
  for (; i < n; ++i) out[i] = BF16ToFloat(in[i]);
}

inline void WidenF16(const uint16_t* in, size_t n, float* out) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> d16;
  const hn::RebindToUnsigned<decltype(d16)> du16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(du16, in + i))), d, out + i);
  for (; i < n; ++i) out[i] = F16ToFloat(in[i]);
}

}  // namespace page_rows

// Converts n elements and stores them in `base` from element `offset` on.
inline void StoreRow(DType dtype, const float* in, size_t n, void* base, size_t offset) {
  switch (dtype) {
    case DType::kBF16:
      page_rows::NarrowToBF16(in, n, static_cast<uint16_t*>(base) + offset);
      break;
    case DType::kF16:
      page_rows::NarrowToF16(in, n, static_cast<uint16_t*>(base) + offset);
      break;
    case DType::kE4M3:
    case DType::kQ8_0:
    case DType::kQ4_0:
      cpu::StorePageRow(dtype, in, n, base, offset);
      break;
    default:
      std::memcpy(static_cast<float*>(base) + offset, in, n * sizeof(float));
      break;
  }
}

// The inverse of StoreRow.
inline void LoadRow(DType dtype, const void* base, size_t offset, size_t n, float* out) {
  switch (dtype) {
    case DType::kBF16:
      page_rows::WidenBF16(static_cast<const uint16_t*>(base) + offset, n, out);
      break;
    case DType::kF16:
      page_rows::WidenF16(static_cast<const uint16_t*>(base) + offset, n, out);
      break;
    case DType::kE4M3:
    case DType::kQ8_0:
    case DType::kQ4_0:
      cpu::LoadPageRow(dtype, base, offset, n, out);
      break;
    default:
      std::memcpy(out, static_cast<const float*>(base) + offset, n * sizeof(float));
      break;
  }
}

// Rounds fp32 elements in place to the values of the dtype.
inline void RoundRow(DType dtype, size_t n, float* row) {
  constexpr size_t kAtOnce = 256;
  uint16_t narrow[kAtOnce];
  if (dtype == DType::kF32) return;
  for (size_t i = 0; i < n; i += kAtOnce) {
    const size_t count = n - i < kAtOnce ? n - i : kAtOnce;
    StoreRow(dtype, row + i, count, narrow, 0);
    LoadRow(dtype, narrow, 0, count, row + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
