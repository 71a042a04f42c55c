#include <cmath>
#include <cstddef>

#include "kernels/page_element.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {

void RmsNorm(const RmsNormArgs& args) {
  for (int i = 0; i < args.m; ++i) {
    const float* x = args.x + static_cast<size_t>(i) * args.n;
    const size_t first = static_cast<size_t>(i) * args.n;
    double sum_of_squares = 0.0;
    for (int j = 0; j < args.n; ++j) sum_of_squares += static_cast<double>(x[j]) * x[j];
    const double scale = 1.0 / std::sqrt(sum_of_squares / args.n + args.eps);
    for (int j = 0; j < args.n; ++j) {
      StorePageElement(args.out_dtype, args.out, first + j,
                       static_cast<float>(x[j] * scale * args.weight[j]));
    }
  }
}

namespace {

// Turns one head by the angles of its position.
void Rotate(const float* in, const float* cos, const float* sin, int head_dim, bool interleaved,
            float* out) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int first = interleaved ? 2 * i : i;
    const int second = interleaved ? 2 * i + 1 : i + half;
    const double a = in[first], b = in[second], c = cos[i], s = sin[i];
    out[first] = static_cast<float>(a * c - b * s);
    out[second] = static_cast<float>(b * c + a * s);
  }
}

}  // namespace

void RopeSplit(const RopeSplitArgs& args) {
  const int d = args.head_dim;
  const size_t row_size = static_cast<size_t>(args.num_heads + 2 * args.num_kv_heads) * d;
  for (int i = 0; i < args.m; ++i) {
    const float* in = args.qkv + i * row_size;
    const float* cos = args.cos + static_cast<size_t>(args.positions[i]) * (d / 2);
    const float* sin = args.sin + static_cast<size_t>(args.positions[i]) * (d / 2);
    for (int h = 0; h < args.num_heads; ++h, in += d) {
      Rotate(in, cos, sin, d, args.interleaved,
             args.q + (static_cast<size_t>(i) * args.num_heads + h) * d);
    }
    for (int h = 0; h < args.num_kv_heads; ++h, in += d) {
      Rotate(in, cos, sin, d, args.interleaved,
             args.k + i * args.kv_row_stride + h * args.kv_head_stride);
    }
    for (int h = 0; h < args.num_kv_heads; ++h, in += d) {
      float* v = args.v + i * args.kv_row_stride + h * args.kv_head_stride;
      for (int j = 0; j < d; ++j) v[j] = in[j];
    }
  }
}

void Swiglu(const SwigluArgs& args) {
  for (int i = 0; i < args.m; ++i) {
    const float* gate = args.gate_up + static_cast<size_t>(i) * 2 * args.n;
    const float* up = gate + args.n;
    for (int j = 0; j < args.n; ++j) {
      const double g = gate[j];
      StorePageElement(args.out_dtype, args.out, static_cast<size_t>(i) * args.n + j,
                       static_cast<float>(g / (1.0 + std::exp(-g)) * up[j]));
    }
  }
}

}  // namespace hydrant::reference
