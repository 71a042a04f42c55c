#include "kernels/cpu/elementwise/elementwise.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/cpu/isa/parallel_rows.h"
#include "kernels/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/elementwise.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/pages/page_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using D64 = hn::ScalableTag<double>;
using HalfD = hn::Rebind<float, D64>;

// In double: activations of a few thousand squared would lose half of a float's digits, and the
// loads hide the conversion.
double SumOfSquares(const float* x, size_t n, double center) {
  const D64 d64;
  const HalfD half;
  const size_t lanes = hn::Lanes(d64);
  const auto center_v = hn::Set(d64, center);
  auto sum0 = hn::Zero(d64), sum1 = hn::Zero(d64);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::Sub(hn::PromoteTo(d64, hn::LoadU(half, x + i)), center_v);
    const auto b = hn::Sub(hn::PromoteTo(d64, hn::LoadU(half, x + i + lanes)), center_v);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += (x[i] - center) * (x[i] - center);
  return sum;
}

double Sum(const float* x, size_t n) {
  const D64 d64;
  const HalfD half;
  auto sums = hn::Zero(d64);
  size_t i = 0;
  for (; i + hn::Lanes(d64) <= n; i += hn::Lanes(d64))
    sums = hn::Add(sums, hn::PromoteTo(d64, hn::LoadU(half, x + i)));
  double sum = hn::GetLane(hn::SumOfLanes(d64, sums));
  for (; i < n; ++i) sum += x[i];
  return sum;
}

void RmsNormRun(const float* x, const float* weight, size_t n, float eps, bool accumulate,
                float* out) {
  const D d;
  const double mean = SumOfSquares(x, n, 0.0) / static_cast<double>(n);
  const float scale = static_cast<float>(1.0 / std::sqrt(mean + eps));
  const auto scale_v = hn::Set(d, scale);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto scaled = hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale_v), hn::LoadU(d, weight + i));
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, out + i), scaled) : scaled, d, out + i);
  }
  for (; i < n; ++i) out[i] = (accumulate ? out[i] : 0.0f) + x[i] * scale * weight[i];
}

void LayerNormRow(const float* x, const float* weight, const float* bias, size_t n, float eps,
                  float* out) {
  const D d;
  const double mean = Sum(x, n) / static_cast<double>(n);
  const double variance = SumOfSquares(x, n, mean) / static_cast<double>(n);
  const auto center = static_cast<float>(mean);
  const auto scale = static_cast<float>(1.0 / std::sqrt(variance + eps));
  const auto center_v = hn::Set(d, center), scale_v = hn::Set(d, scale);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto normalised = hn::Mul(hn::Sub(hn::LoadU(d, x + i), center_v), scale_v);
    const auto w = hn::LoadU(d, weight + i), b = hn::LoadU(d, bias + i);
    hn::StoreU(hn::MulAdd(normalised, w, b), d, out + i);
  }
  for (; i < n; ++i) out[i] = (x[i] - center) * scale * weight[i] + bias[i];
}

// Pairs (i, i + half). `out` may be `in`.
void RotateHalves(const float* in, const float* cos, const float* sin, float scale, size_t half,
                  float* out) {
  const D d;
  const auto scale_v = hn::Set(d, scale);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= half; i += hn::Lanes(d)) {
    const auto a = hn::LoadU(d, in + i), b = hn::LoadU(d, in + half + i);
    const auto c = hn::Mul(scale_v, hn::LoadU(d, cos + i));
    const auto s = hn::Mul(scale_v, hn::LoadU(d, sin + i));
    hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), d, out + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, out + half + i);
  }
  for (; i < half; ++i) {
    const float a = in[i], b = in[half + i], c = scale * cos[i], s = scale * sin[i];
    out[i] = a * c - b * s;
    out[half + i] = b * c + a * s;
  }
}

// Pairs (2i, 2i + 1).
void RotateNeighbours(const float* in, const float* cos, const float* sin, float scale, size_t half,
                      float* out) {
  const D d;
  const auto scale_v = hn::Set(d, scale);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= half; i += hn::Lanes(d)) {
    hn::Vec<D> a, b;
    hn::LoadInterleaved2(d, in + 2 * i, a, b);
    const auto c = hn::Mul(scale_v, hn::LoadU(d, cos + i));
    const auto s = hn::Mul(scale_v, hn::LoadU(d, sin + i));
    hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(b, c, hn::Mul(a, s)), d,
                          out + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = in[2 * i], b = in[2 * i + 1], c = scale * cos[i], s = scale * sin[i];
    out[2 * i] = a * c - b * s;
    out[2 * i + 1] = b * c + a * s;
  }
}

// A head of queries or keys, numbered in this order, times its factors.
void MultiplyHead(const RopeSplitArgs& args, size_t head, float* row) {
  if (args.factors == nullptr) return;
  const size_t n = args.head_dim;
  const float* const factors = args.factors + head * n;
  const D d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, factors + i)), d, row + i);
  for (; i < n; ++i) row[i] *= factors[i];
}

void SubtractRow(const float* subtracted, size_t n, float* row) {
  const D d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d))
    hn::StoreU(hn::Sub(hn::LoadU(d, row + i), hn::LoadU(d, subtracted + i)), d, row + i);
  for (; i < n; ++i) row[i] -= subtracted[i];
}

void RopeSplitRow(const RopeSplitArgs& args, int row) {
  const size_t d = args.head_dim, half = args.rotary_dim / 2;
  const size_t turned = 2 * half, rest_bytes = (d - turned) * sizeof(float);
  const float* in = args.qkv + row * (args.num_heads + 2 * args.num_kv_heads) * d;
  const float* cos = args.cos + args.positions[row] * half;
  const float* sin = args.sin + args.positions[row] * half;
  const auto turn = args.interleaved ? RotateNeighbours : RotateHalves;
  const auto rotate = [&](const float* from, float scale, float* to) {
    turn(from, cos, sin, scale, half, to);
    std::memcpy(to + turned, from + turned, rest_bytes);
  };
  float* const q = args.q.f32() + row * args.num_heads * d;
  const bool rounds = args.query_precision != DType::kF32;
  if (rounds) {
    std::memcpy(q, in, args.num_heads * d * sizeof(float));
    RoundRow(args.query_precision, args.num_heads * d, q);
  }
  for (int h = 0; h < args.num_heads; ++h, in += d) {
    float* const to = q + h * d;
    if (rounds) {
      turn(to, cos, sin, args.query_scale, half, to);  // in place
    } else {
      rotate(in, args.query_scale, to);
    }
    MultiplyHead(args, h, to);
  }
  if (args.k == nullptr) return;
  const int64_t kv_row = row * args.kv_row_stride;
  for (int h = 0; h < args.num_kv_heads; ++h, in += d) {
    float* const k = args.k.f32() + kv_row + h * args.kv_head_stride;
    rotate(in, 1.0f, k);
    MultiplyHead(args, args.num_heads + h, k);
    if (args.key_offsets != nullptr) SubtractRow(args.key_offsets + h * d, d, k);
    RoundRow(args.kv_precision, d, k);
  }
  for (int h = 0; h < args.num_kv_heads; ++h, in += d) {
    float* const v = args.v.f32() + kv_row + h * args.kv_head_stride;
    std::memcpy(v, in, d * sizeof(float));
    RoundRow(args.kv_precision, d, v);
  }
}

// x / divisor within 3 units in the last place, by Newton steps instead of a division: one from the
// 12 bits of x86, two from the 8 bits of ARM. The divisor is from 1 to 2^125.
HWY_INLINE hn::Vec<D> Quotient(hn::Vec<D> x, hn::Vec<D> divisor) {
  auto rough = hn::ApproximateReciprocal(divisor);
#if HWY_ARCH_ARM
  rough = hn::MulAdd(rough, hn::NegMulAdd(divisor, rough, hn::Set(D(), 1.0f)), rough);
#endif
  const auto error = hn::NegMulAdd(divisor, rough, hn::Set(D(), 1.0f));
  return hn::Mul(x, hn::MulAdd(rough, error, rough));
}

// Below -86, where 1 / exp(-x) is denormal, the result is smaller than 1e-35 and becomes 0.
HWY_INLINE hn::Vec<D> Silu(hn::Vec<D> x) {
  const D d;
  const auto lowest = hn::Set(d, -86.0f);
  const auto exponential = hn::Exp(d, hn::Neg(hn::Max(x, lowest)));
  const auto result = Quotient(x, hn::Add(hn::Set(d, 1.0f), exponential));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), result);
}

// 2 * P(X > |x|) for a standard normal X, as erfc(z) with z = |x| / sqrt(2): formula 7.1.26 of
// Abramowitz and Stegun, Handbook of Mathematical Functions, with an error of at most 1.5e-7.
hn::Vec<D> UpperTails(hn::Vec<D> x) {
  const D d;
  const auto z = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f)), hn::Set(d, 9.3f));
  const auto one = hn::Set(d, 1.0f);
  const auto t = hn::Div(one, hn::MulAdd(z, hn::Set(d, 0.3275911f), one));
  auto sum = hn::Set(d, 1.061405429f);
  for (const float coefficient : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
    sum = hn::MulAdd(sum, t, hn::Set(d, coefficient));
  return hn::Mul(hn::Mul(sum, t), hn::Exp(d, hn::Neg(hn::Mul(z, z))));
}

hn::Vec<D> Gelu(hn::Vec<D> x) {
  const D d;
  const auto tail = hn::Mul(hn::Set(d, 0.5f), UpperTails(x));
  const auto below = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
  return hn::Mul(x, below);
}

// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)). Below -44, where exp(-2u) leaves the range of Exp, the
// result is smaller than 1e-36 and becomes 0.
hn::Vec<D> GeluTanh(hn::Vec<D> x) {
  const D d;
  const auto cubic = hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715f * 0.79788456f));
  const auto u = hn::Mul(x, hn::Add(cubic, hn::Set(d, 0.79788456f)));
  const auto lowest = hn::Set(d, -44.0f);
  const auto exponential = hn::Exp(d, hn::Mul(hn::Set(d, -2.0f), hn::Max(u, lowest)));
  const auto result = hn::Div(x, hn::Add(hn::Set(d, 1.0f), exponential));
  return hn::IfThenZeroElse(hn::Lt(u, lowest), result);
}

hn::Vec<D> Relu(hn::Vec<D> x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(D())), x); }

// Clamps by comparisons, which keep NaN. Below -51, where exp(-slope * gate) leaves the range of
// Exp, the result is smaller than 1e-35 and becomes 0.
hn::Vec<D> ClampedSwiglu(hn::Vec<D> gate, hn::Vec<D> up) {
  const D d;
  const auto limit = hn::Set(d, kSwigluLimit), lower = hn::Neg(limit);
  const auto slope = hn::Set(d, kSwigluSlope), lowest = hn::Set(d, -51.0f);
  gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
  up = hn::IfThenElse(hn::Gt(up, limit), limit, up);
  up = hn::IfThenElse(hn::Lt(up, lower), lower, up);
  const auto exponential = hn::Exp(d, hn::Neg(hn::Mul(slope, hn::Max(gate, lowest))));
  const auto swish = hn::Div(gate, hn::Add(hn::Set(d, 1.0f), exponential));
  const auto result = hn::Mul(hn::Add(up, hn::Set(d, 1.0f)), swish);
  return hn::IfThenElse(hn::Lt(gate, lowest), hn::Mul(up, hn::Zero(d)), result);
}

// out = map(x, up), by vectors. If `up` is null, x takes its place.
template <typename Map>
void MapLanes(const Map& map_lanes, const float* x, const float* up, size_t n, float* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto map = [&](const float* x_lanes, const float* up_lanes) {
    return map_lanes(hn::LoadU(d, x_lanes), hn::LoadU(d, up == nullptr ? x_lanes : up_lanes));
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(map(x + i, up == nullptr ? nullptr : up + i), d, out + i);
  if (i == n) return;
  HWY_ALIGN float x_rest[hn::MaxLanes(d)] = {}, up_rest[hn::MaxLanes(d)] = {};
  std::memcpy(x_rest, x + i, (n - i) * sizeof(float));
  if (up != nullptr) std::memcpy(up_rest, up + i, (n - i) * sizeof(float));
  hn::Store(map(x_rest, up_rest), d, x_rest);
  std::memcpy(out + i, x_rest, (n - i) * sizeof(float));
}

// out = function(x), or function(x) * up if `up` is not null.
template <typename Function>
void MapRow(const Function& function, const float* x, const float* up, size_t n, float* out) {
  if (up == nullptr)
    return MapLanes([&](auto lanes, auto) { return function(lanes); }, x, up, n, out);
  MapLanes([&](auto lanes, auto factor) { return hn::Mul(function(lanes), factor); }, x, up, n,
           out);
}

void ActivateRow(Activation activation, const float* x, const float* up, size_t n, float* out) {
  switch (activation) {
    case Activation::kRelu:
      return MapRow(Relu, x, up, n, out);
    case Activation::kGelu:
      return MapRow(Gelu, x, up, n, out);
    case Activation::kGeluTanh:
      return MapRow(GeluTanh, x, up, n, out);
    case Activation::kSilu:
      return MapRow([](hn::Vec<D> lanes) { return Silu(lanes); }, x, up, n, out);
    case Activation::kIdentity:
      return MapRow([](hn::Vec<D> lanes) { return lanes; }, x, up, n, out);
    case Activation::kClampedSwiglu:
      return MapLanes(ClampedSwiglu, x, up, n, out);
  }
}

void SoftCapRow(float cap, size_t n, float* x) {
  const D d;
  const auto bound = hn::Set(d, cap), inverse = hn::Set(d, 1.0f / cap);
  const auto function = [&](hn::Vec<D> lanes) {
    return hn::Mul(bound, hn::Tanh(d, hn::Mul(lanes, inverse)));
  };
  MapRow(function, x, nullptr, n, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(ActivateRow);
HWY_EXPORT(LayerNormRow);
HWY_EXPORT(RmsNormRun);
HWY_EXPORT(RopeSplitRow);
HWY_EXPORT(SoftCapRow);
}  // namespace

void RmsNorm(const RmsNormArgs& args, ThreadPool& threads) {
  ParallelRows(threads, args.m * args.groups, args.n, [&](int run) {
    const int64_t first =
        run / args.groups * args.RowStride() + static_cast<int64_t>(run % args.groups) * args.n;
    HWY_DYNAMIC_DISPATCH(RmsNormRun)
    (args.x + first, args.weight, args.n, args.eps, args.accumulate,
     static_cast<float*>(args.out) + first);
  });
}

void LayerNorm(const LayerNormArgs& args, ThreadPool& threads) {
  const size_t n = args.n;
  ParallelRows(threads, args.m, args.n, [&](int row) {
    HWY_DYNAMIC_DISPATCH(LayerNormRow)
    (args.x + row * n, args.weight, args.bias, n, args.eps,
     static_cast<float*>(args.out) + row * n);
  });
}

void RopeSplit(const RopeSplitArgs& args, ThreadPool& threads) {
  const int64_t elements =
      static_cast<int64_t>(args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  ParallelRows(threads, args.m, elements, [&](int row) {
    HWY_DYNAMIC_DISPATCH(RopeSplitRow)(args, row);
  });
}

void Activate(const ActivateArgs& args, ThreadPool& threads) {
  const size_t n = args.n, width = args.gated ? 2 * n : n;
  ParallelRows(threads, args.m, 4 * static_cast<int64_t>(args.n), [&](int row) {
    std::vector<float> wide;  // for completeness: products on the cpu write fp32
    if (args.x_bf16 != nullptr) {
      for (size_t i = 0; i < width; ++i) wide.push_back(BF16ToFloat(args.x_bf16[row * width + i]));
    }
    const float* x = args.x_bf16 != nullptr ? wide.data() : args.x + row * width;
    HWY_DYNAMIC_DISPATCH(ActivateRow)
    (args.activation, x, args.gated ? x + n : nullptr, n, static_cast<float*>(args.out) + row * n);
  });
}

void SoftCap(const SoftCapArgs& args, ThreadPool& threads) {
  ParallelRows(threads, args.m, 4 * static_cast<int64_t>(args.n), [&](int row) {
    HWY_DYNAMIC_DISPATCH(SoftCapRow)
    (args.cap, args.n, args.x + static_cast<size_t>(row) * args.n);
  });
}

void SumRows(const SumRowsArgs& args, ThreadPool& threads) {
  constexpr int kColumns = 64;  // per task
  ParallelRows(threads, (args.n + kColumns - 1) / kColumns, int64_t{args.m} * kColumns,
               [&](int task) {
                 const int first = task * kColumns, count = std::min(kColumns, args.n - first);
                 double sums[kColumns] = {};
                 for (int i = 0; i < args.m; ++i) {
                   const float* row = args.x + static_cast<size_t>(i) * args.n + first;
                   for (int j = 0; j < count; ++j) sums[j] += row[j];
                 }
                 for (int j = 0; j < count; ++j)
                   args.out[first + j] += static_cast<float>(args.scale * sums[j]);
               });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
