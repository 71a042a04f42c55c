#include "kernels/cpu/pages/page_rows.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/page_row.h"
#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pages/page_rows.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// HadamardTransform of one block. Values within one vector are paired by a shuffle; the second of a
// pair is negated before the addition.
#if HWY_MAX_BYTES < 32
void TransformBlock(float* x) { hydrant::HadamardTransform(kHadamardDim, x); }
#else
void TransformBlock(float* x) {
  const D d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  const auto lane = hn::Iota(hn::RebindToSigned<D>(), 0);
  const auto paired = [&](auto value, auto partner, int apart) {
    const hn::RebindToSigned<D> di;
    const auto is_second = hn::RebindMask(d, hn::TestBit(lane, hn::Set(di, apart)));
    return hn::Add(partner, hn::IfThenElse(is_second, hn::Neg(value), value));
  };
  for (int i = 0; i < kHadamardDim; i += kLanes) {
    auto v = hn::LoadU(d, x + i);
    v = paired(v, hn::Reverse2(d, v), 1);
    v = paired(v, hn::Shuffle1032(v), 2);
    v = paired(v, hn::SwapAdjacentBlocks(v), 4);
    if constexpr (kLanes == 16) v = paired(v, hn::ConcatLowerUpper(d, v, v), 8);
    hn::StoreU(v, d, x + i);
  }
  for (int apart = kLanes; apart < kHadamardDim; apart *= 2) {
    for (int i = 0; i < kHadamardDim; i += kLanes) {
      if ((i & apart) != 0) continue;
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + apart);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + apart);
    }
  }
}

#endif  // HWY_MAX_BYTES

// The largest magnitude of a block; NaN where a value is not finite.
float LargestMagnitude(const float* x) {
  const D d;
  auto most = hn::Zero(d), spoilt = hn::Zero(d);
  for (int i = 0; i < kHadamardDim; i += static_cast<int>(hn::Lanes(d))) {
    const auto v = hn::LoadU(d, x + i);
    most = hn::Max(most, hn::Abs(v));
    spoilt = hn::MulAdd(v, hn::Zero(d), spoilt);
  }
  return hn::GetLane(hn::Add(hn::MaxOfLanes(d, most), hn::SumOfLanes(d, spoilt)));
}

// 32 integers: each value times `inverse`, rounded, halves away from zero.
void RoundBlock(const float* x, float inverse, int8_t* out) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  for (int i = 0; i < kHadamardDim; i += static_cast<int>(hn::Lanes(d))) {
    const auto v = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
    const auto whole = hn::Trunc(v);
    const auto half = hn::Ge(hn::Abs(hn::Sub(v, whole)), hn::Set(d, 0.5f));
    const auto away = hn::IfThenElseZero(half, hn::CopySign(hn::Set(d, 1.0f), v));
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, hn::Add(whole, away))), d8, out + i);
  }
}

// FloatToE4M3() of each value.
void NarrowToE4M3(const float* in, size_t n, uint8_t* out) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, in + i);
    const auto magnitude = hn::Min(hn::Abs(value), hn::Set(d, 448.0f));
    const auto bits = hn::BitCast(du, magnitude);
    const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7ffffu)));
    const auto normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(du, 120u << 3));
    const auto shift = hn::Set(d, 0x1p14f);  // its ulp is 2^-9, the smallest e4m3 number
    const auto least = hn::Sub(hn::BitCast(du, hn::Add(magnitude, shift)), hn::BitCast(du, shift));
    const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-6f)));
    const auto number = hn::IfThenElse(is_small, least, normal);
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, value)), hn::Set(du, 0x80u));
    const auto byte = hn::Or(sign, hn::IfThenElse(is_nan, hn::Set(du, 0x7fu), number));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, byte)), d8, out + i);
  }
  for (; i < n; ++i) out[i] = FloatToE4M3(in[i]);
}

// E4M3ToFloat() of each value.
void WidenE4M3(const uint8_t* in, size_t n, float* out) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> d8;
  const hn::Rebind<uint16_t, D> du16;
  const hn::Rebind<hwy::float16_t, D> d16;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto bytes = hn::LoadU(d8, in + i);
    const auto wide = hn::PromoteTo(du16, bytes);
    const auto magnitude = hn::And(wide, hn::Set(du16, 0x7f));
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(du16, 0x80)));
    const auto half = hn::BitCast(d16, hn::Or(sign, hn::ShiftLeft<7>(magnitude)));
    const auto value = hn::Mul(hn::PromoteTo(d, half), hn::Set(d, 256.0f));
    const auto is_nan = hn::Eq(hn::PromoteTo(du, magnitude), hn::Set(du, 0x7fu));
    const auto nan = hn::BitCast(d, hn::Set(du, 0x7fc00000u));
    hn::StoreU(hn::IfThenElse(hn::RebindMask(d, is_nan), nan, value), d, out + i);
  }
  for (; i < n; ++i) out[i] = E4M3ToFloat(in[i]);
}

void StoreRow(DType dtype, const float* in, size_t n, uint8_t* to) {
  if (dtype == DType::kE4M3) return NarrowToE4M3(in, n, to);
  for (size_t i = 0; i < n; i += kHadamardDim, to += TraitsOf(dtype).block_bytes) {
    if (IsTransformed(dtype)) {
      float x[kHadamardDim];
      std::memcpy(x, in + i, sizeof(x));
      TransformBlock(x);
      for (float& value : x) value *= kToPage;
      QuantizeRow(dtype, x, kHadamardDim, to);
      continue;
    }
    const float scale = std::abs(LargestMagnitude(in + i)) / 127.0f;
    const float inverse = 1.0f / scale;
    const uint16_t bits = FloatToF16(scale);
    std::memcpy(to, &bits, sizeof(bits));
    if (std::isfinite(inverse) && inverse != 0.0f) {
      RoundBlock(in + i, inverse, reinterpret_cast<int8_t*>(to + 2));
    } else {
      std::memset(to + 2, 0, kHadamardDim);
    }
  }
}

void LoadRow(DType dtype, const uint8_t* from, size_t n, float* out) {
  if (dtype == DType::kE4M3) return WidenE4M3(from, n, out);
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  for (size_t i = 0; i < n; i += kHadamardDim, from += TraitsOf(dtype).block_bytes) {
    float* const x = out + i;
    if (IsTransformed(dtype)) {
      DequantizeRow(dtype, from, kHadamardDim, x);
      TransformBlock(x);
      for (int j = 0; j < kHadamardDim; ++j) x[j] *= kFromPage;
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    const auto scale = hn::Set(d, F16ToFloat(bits));
    for (int j = 0; j < kHadamardDim; j += static_cast<int>(hn::Lanes(d))) {
      const auto quants = hn::LoadU(d8, reinterpret_cast<const int8_t*>(from + 2) + j);
      hn::StoreU(hn::Mul(scale, hn::ConvertTo(d, hn::PromoteTo(di, quants))), d, x + j);
    }
  }
}

void Transform(size_t count, float* row) {
  for (size_t i = 0; i < count; i += kHadamardDim) TransformBlock(row + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(LoadRow);
HWY_EXPORT(StoreRow);
HWY_EXPORT(Transform);
}  // namespace

void LoadPageRow(DType dtype, const void* base, size_t first, size_t count, float* row) {
  HWY_DYNAMIC_DISPATCH(LoadRow)
  (dtype, static_cast<const uint8_t*>(base) + BytesOf(dtype, first), count, row);
}

void StorePageRow(DType dtype, const float* row, size_t count, void* base, size_t first) {
  HWY_DYNAMIC_DISPATCH(StoreRow)
  (dtype, row, count, static_cast<uint8_t*>(base) + BytesOf(dtype, first));
}

void HadamardTransform(size_t count, float* row) { HWY_DYNAMIC_DISPATCH(Transform)(count, row); }

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
