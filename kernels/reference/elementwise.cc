#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "kernels/float16.h"
#include "kernels/page_element.h"
#include "kernels/page_row.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {

void RmsNorm(const RmsNormArgs& args) {
  for (int run = 0; run < args.m * args.groups; ++run) {
    const size_t first = run / args.groups * args.RowStride() + run % args.groups * args.n;
    const float* x = args.x + first;
    double sum_of_squares = 0.0;
    for (int j = 0; j < args.n; ++j) sum_of_squares += static_cast<double>(x[j]) * x[j];
    const double scale = 1.0 / std::sqrt(sum_of_squares / args.n + args.eps);
    for (int j = 0; j < args.n; ++j) {
      const double before = args.accumulate ? static_cast<float*>(args.out)[first + j] : 0.0;
      StorePageElement(args.out_dtype, args.out, first + j,
                       static_cast<float>(before + x[j] * scale * args.weight[j]));
    }
  }
}

void LayerNorm(const LayerNormArgs& args) {
  for (int i = 0; i < args.m; ++i) {
    const size_t first = static_cast<size_t>(i) * args.n;
    const float* x = args.x + first;
    double sum = 0.0, sum_of_squares = 0.0;
    for (int j = 0; j < args.n; ++j) sum += x[j];
    const double mean = sum / args.n;
    for (int j = 0; j < args.n; ++j) sum_of_squares += (x[j] - mean) * (x[j] - mean);
    const double scale = 1.0 / std::sqrt(sum_of_squares / args.n + args.eps);
    for (int j = 0; j < args.n; ++j) {
      StorePageElement(args.out_dtype, args.out, first + j,
                       static_cast<float>((x[j] - mean) * scale * args.weight[j] + args.bias[j]));
    }
  }
}

namespace {

// Rotates the first rotary_dim elements of one head by the angles of its position.
void Rotate(const float* in, const float* cos, const float* sin, double scale,
            const RopeSplitArgs& args, float* out) {
  const int half = args.rotary_dim / 2;
  const bool interleaved = args.interleaved;
  for (int i = 0; i < half; ++i) {
    const int first = interleaved ? 2 * i : i;
    const int second = interleaved ? 2 * i + 1 : i + half;
    const double a = in[first], b = in[second], c = scale * cos[i], s = scale * sin[i];
    out[first] = static_cast<float>(a * c - b * s);
    out[second] = static_cast<float>(b * c + a * s);
  }
  for (int i = args.rotary_dim; i < args.head_dim; ++i) out[i] = in[i];
}

void Multiply(const RopeSplitArgs& args, int head, float* row) {
  if (args.factors == nullptr) return;
  for (int i = 0; i < args.head_dim; ++i)
    row[i] *= args.factors[static_cast<size_t>(head) * args.head_dim + i];
}

}  // namespace

void RopeSplit(const RopeSplitArgs& args) {
  const int d = args.head_dim;
  const size_t row_size = static_cast<size_t>(args.num_heads + 2 * args.num_kv_heads) * d;
  for (int i = 0; i < args.m; ++i) {
    const float* in = args.qkv + i * row_size;
    const size_t angles = static_cast<size_t>(args.positions[i]) * (args.rotary_dim / 2);
    const float* cos = args.cos + angles;
    const float* sin = args.sin + angles;
    for (int h = 0; h < args.num_heads; ++h, in += d) {
      float* q = args.q.f32() + (static_cast<size_t>(i) * args.num_heads + h) * d;
      std::vector<float> rounded(in, in + d);
      RoundPageRow(args.query_precision, d, rounded.data());
      Rotate(rounded.data(), cos, sin, args.query_scale, args, q);
      Multiply(args, h, q);
    }
    if (args.k == nullptr) continue;
    for (int h = 0; h < args.num_kv_heads; ++h, in += d) {
      float* k = args.k.f32() + i * args.kv_row_stride + h * args.kv_head_stride;
      Rotate(in, cos, sin, 1.0, args, k);
      Multiply(args, args.num_heads + h, k);
      for (int j = 0; args.key_offsets != nullptr && j < d; ++j)
        k[j] -= args.key_offsets[h * d + j];
      RoundPageRow(args.kv_precision, d, k);
    }
    for (int h = 0; h < args.num_kv_heads; ++h, in += d) {
      float* v = args.v.f32() + i * args.kv_row_stride + h * args.kv_head_stride;
      std::copy_n(in, d, v);
      RoundPageRow(args.kv_precision, d, v);
    }
  }
}

namespace {

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0.0 ? 0.0 : x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2.0);
    case Activation::kGeluTanh: {
      const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * u));  // (1 + tanh(u)) / 2, without its cancellation
    }
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kIdentity:
    case Activation::kClampedSwiglu:  // two inputs: ClampedSwiglu
      return x;
  }
  return x;
}

// Comparisons with NaN are false, so NaN is kept.
double ClampedSwiglu(double gate, double up) {
  constexpr double kLimit = kSwigluLimit;
  gate = gate > kLimit ? kLimit : gate;
  up = up > kLimit ? kLimit : up < -kLimit ? -kLimit : up;
  return (up + 1.0) * gate / (1.0 + std::exp(-kSwigluSlope * gate));
}

}  // namespace

void Activate(const ActivateArgs& args) {
  const int width = args.gated ? 2 * args.n : args.n;
  for (int i = 0; i < args.m; ++i) {
    const auto x = [&](int j) {
      const size_t at = static_cast<size_t>(i) * width + j;
      return args.x_bf16 != nullptr ? BF16ToFloat(args.x_bf16[at]) : args.x[at];
    };
    for (int j = 0; j < args.n; ++j) {
      const double up = args.gated ? x(args.n + j) : 1.0;
      const double value = args.activation == Activation::kClampedSwiglu
                               ? ClampedSwiglu(x(j), up)
                               : Activated(args.activation, x(j)) * up;
      StorePageElement(args.out_dtype, args.out, static_cast<size_t>(i) * args.n + j,
                       static_cast<float>(value));
    }
  }
}

void SoftCap(const SoftCapArgs& args) {
  const double cap = args.cap;
  for (size_t i = 0; i < static_cast<size_t>(args.m) * args.n; ++i)
    args.x[i] = static_cast<float>(cap * std::tanh(args.x[i] / cap));
}

void SumRows(const SumRowsArgs& args) {
  for (int j = 0; j < args.n; ++j) {
    double sum = 0.0;
    for (int i = 0; i < args.m; ++i) sum += args.x[static_cast<size_t>(i) * args.n + j];
    args.out[j] += static_cast<float>(args.scale * sum);
  }
}

}  // namespace hydrant::reference
