#include "kernels/ops/elementwise.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "kernels/float16.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

// 1, odd, and around the vector widths.
constexpr int kSizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 576, 1001};

class ElementwiseTest : public BackendTest {
 protected:
  std::vector<float> RunRmsNorm(const std::vector<float>& x, const std::vector<float>& weight,
                                float eps = 1e-5f) {
    const int n = static_cast<int>(weight.size()), m = static_cast<int>(x.size()) / n;
    auto x_device = Upload(x), weight_device = Upload(weight), out = Output(x.size());
    backend().RmsNorm({.x = x_device.data(),
                       .weight = weight_device.data(),
                       .m = m,
                       .n = n,
                       .eps = eps,
                       .out = out.data()});
    return out.Read();
  }

  void CheckRmsNorm(const std::vector<float>& x, const std::vector<float>& weight, float eps,
                    const std::string& what) {
    const size_t n = weight.size();
    std::vector<double> expected, tolerance;
    for (size_t row = 0; row < x.size() / n; ++row) {
      long double squares = 0;
      for (size_t j = 0; j < n; ++j)
        squares += static_cast<long double>(x[row * n + j]) * x[row * n + j];
      const long double scale = 1 / std::sqrt(squares / n + eps);
      for (size_t j = 0; j < n; ++j) {
        expected.push_back(static_cast<double>(x[row * n + j] * scale * weight[j]));
        // Three roundings to float: the scale and two products.
        tolerance.push_back(4 * kFloatEpsilon * std::abs(expected.back()) + FLT_MIN);
      }
    }
    ExpectNear(RunRmsNorm(x, weight, eps), expected, tolerance, what);
  }

  std::vector<float> RunLayerNorm(const std::vector<float>& x, const std::vector<float>& weight,
                                  const std::vector<float>& bias, float eps = 1e-5f) {
    const int n = static_cast<int>(weight.size()), m = static_cast<int>(x.size()) / n;
    auto x_device = Upload(x), weight_device = Upload(weight), bias_device = Upload(bias);
    auto out = Output(x.size());
    backend().LayerNorm({.x = x_device.data(),
                         .weight = weight_device.data(),
                         .bias = bias_device.data(),
                         .m = m,
                         .n = n,
                         .eps = eps,
                         .out = out.data()});
    return out.Read();
  }

  void CheckLayerNorm(const std::vector<float>& x, const std::vector<float>& weight,
                      const std::vector<float>& bias, float eps, const std::string& what) {
    const size_t n = weight.size();
    std::vector<double> expected, tolerance;
    for (size_t row = 0; row < x.size() / n; ++row) {
      long double sum = 0, squares = 0;
      for (size_t j = 0; j < n; ++j) sum += x[row * n + j];
      const long double mean = sum / n;
      for (size_t j = 0; j < n; ++j) squares += (x[row * n + j] - mean) * (x[row * n + j] - mean);
      const long double scale = 1 / std::sqrt(squares / n + eps);
      for (size_t j = 0; j < n; ++j) {
        const long double scaled = (x[row * n + j] - mean) * scale * weight[j];
        expected.push_back(static_cast<double>(scaled + bias[j]));
        // Four roundings to float, and the mean's own, which the difference may amplify.
        tolerance.push_back(static_cast<double>(
            4 * kFloatEpsilon *
                (std::abs(scaled) + std::abs(bias[j]) + std::abs(mean * scale * weight[j])) +
            FLT_MIN));
      }
    }
    ExpectNear(RunLayerNorm(x, weight, bias, eps), expected, tolerance, what);
  }

  std::vector<float> RunSwiglu(const std::vector<float>& gate_up, int n) {
    const int m = static_cast<int>(gate_up.size()) / (2 * n);
    auto in = Upload(gate_up);
    auto out = Output(static_cast<size_t>(m) * n);
    backend().Activate({.x = in.data(),
                        .activation = Activation::kSilu,
                        .gated = true,
                        .m = m,
                        .n = n,
                        .out = out.data()});
    return out.Read();
  }

  void CheckSwiglu(const std::vector<float>& gate_up, int n, const std::string& what) {
    std::vector<double> expected, tolerance;
    for (size_t row = 0; row < gate_up.size() / (2 * n); ++row) {
      const float* gate = gate_up.data() + row * 2 * n;
      for (int j = 0; j < n; ++j) {
        const double g = gate[j], up = gate[n + j];
        const double silu = g / (1.0 + std::exp(-g));
        expected.push_back(silu * up);
        // Vector exp within 4 ulp, then three roundings; silu below 4e-36 may be 0.
        const double least = std::abs(silu) < 4e-36 ? 4e-36 : 0.0;
        tolerance.push_back(8 * kFloatEpsilon * std::abs(silu * up) + least * std::abs(up) +
                            FLT_MIN);
      }
    }
    ExpectNear(RunSwiglu(gate_up, n), expected, tolerance, what);
  }
};

TEST_P(ElementwiseTest, RmsNormMatchesLongDouble) {
  for (int n : kSizes) {
    for (int m : {1, 2, 5}) {
      const uint64_t seed = 1000 + n * 10 + m;
      CheckRmsNorm(
          RandomFloats(static_cast<size_t>(m) * n, seed, 3.0f), RandomFloats(n, seed + 1), 1e-5f,
          "n " + std::to_string(n) + " m " + std::to_string(m) + " seed " + std::to_string(seed));
    }
  }
}

// Runs within wider rows, as the heads of queries or keys in a projection.
TEST_P(ElementwiseTest, RmsNormOfGroupsInWiderRows) {
  const struct {
    int m, groups, n, begin, row_stride;
  } cases[] = {{3, 4, 16, 0, 96}, {2, 1, 33, 5, 40}, {5, 7, 9, 63, 126}, {64, 3, 128, 384, 1024}};
  for (const auto& c : cases) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(c.m) * c.row_stride, 31, 2.0f);
    const std::vector<float> weight = RandomFloats(c.n, 32);
    auto in_place = Upload(x), weight_device = Upload(weight);
    float* const first = in_place.data() + c.begin;
    backend().RmsNorm({.x = first,
                       .weight = weight_device.data(),
                       .m = c.m,
                       .n = c.n,
                       .out = first,
                       .groups = c.groups,
                       .row_stride = c.row_stride});
    std::vector<float> expected = x;
    for (int run = 0; run < c.m * c.groups; ++run) {
      const auto begin =
          expected.begin() + c.begin + run / c.groups * c.row_stride + run % c.groups * c.n;
      const std::vector<float> alone = RunRmsNorm({begin, begin + c.n}, weight);
      std::copy(alone.begin(), alone.end(), begin);
    }
    EXPECT_EQ(in_place.Read(), expected) << c.m << " x " << c.groups << " x " << c.n;
  }
}

TEST_P(ElementwiseTest, RmsNormAdds) {
  for (const int n : kSizes) {
    const std::vector<float> x = RandomFloats(3 * n, 33, 2.0f), weight = RandomFloats(n, 34);
    const std::vector<float> before = RandomFloats(3 * n, 35), added = RunRmsNorm(x, weight);
    auto x_device = Upload(x), weight_device = Upload(weight), out = Upload(before);
    backend().RmsNorm({.x = x_device.data(),
                       .weight = weight_device.data(),
                       .m = 3,
                       .n = n,
                       .out = out.data(),
                       .accumulate = true});
    std::vector<double> expected, tolerance;
    for (int i = 0; i < 3 * n; ++i) {
      expected.push_back(static_cast<double>(before[i]) + added[i]);
      tolerance.push_back(2 * kFloatEpsilon * (std::abs(before[i]) + std::abs(added[i])));
    }
    ExpectNear(out.Read(), expected, tolerance, "n " + std::to_string(n));
  }
}

TEST_P(ElementwiseTest, RmsNormOfExtremeValues) {
  const std::vector<float> weight(19, 1.5f);
  CheckRmsNorm(std::vector<float>(19, 0.0f), weight, 1e-5f, "zeros");
  CheckRmsNorm(std::vector<float>(19, 1e-30f), weight, 1e-12f, "tiny: eps decides");
  CheckRmsNorm(std::vector<float>(19, 1e30f), weight, 1e-5f, "squares beyond float");
  std::vector<float> outlier(19, 1e-3f);
  outlier[18] = -1e20f;
  CheckRmsNorm(outlier, weight, 1e-5f, "one outlier, in the tail");
}

TEST_P(ElementwiseTest, RmsNormPassesNanOnInItsRowOnly) {
  const int n = 33;
  std::vector<float> x = RandomFloats(3 * n, 7);
  x[n + 32] = kNan;
  const std::vector<float> out = RunRmsNorm(x, std::vector<float>(n, 1.0f));
  for (int i = 0; i < 3 * n; ++i) EXPECT_EQ(std::isnan(out[i]), i / n == 1) << i;
}

TEST_P(ElementwiseTest, RmsNormInPlace) {
  const int n = 41, m = 3;
  const std::vector<float> x = RandomFloats(n * m, 11), weight = RandomFloats(n, 12);
  auto device = Upload(x), weight_device = Upload(weight);
  backend().RmsNorm({.x = device.data(),
                     .weight = weight_device.data(),
                     .m = m,
                     .n = n,
                     .eps = 1e-5f,
                     .out = device.data()});
  EXPECT_EQ(device.Read(), RunRmsNorm(x, weight));
}

TEST_P(ElementwiseTest, LayerNormMatchesLongDouble) {
  for (int n : kSizes) {
    for (int m : {1, 2, 5}) {
      const uint64_t seed = 4000 + n * 10 + m;
      std::vector<float> x = RandomFloats(static_cast<size_t>(m) * n, seed, 3.0f);
      for (float& value : x) value += 2.5f;
      CheckLayerNorm(
          x, RandomFloats(n, seed + 1), RandomFloats(n, seed + 2), 1e-5f,
          "n " + std::to_string(n) + " m " + std::to_string(m) + " seed " + std::to_string(seed));
    }
  }
}

TEST_P(ElementwiseTest, LayerNormOfExtremeValues) {
  const std::vector<float> weight(19, 1.5f), bias(19, -0.25f);
  CheckLayerNorm(std::vector<float>(19, 0.0f), weight, bias, 1e-5f, "zeros");
  CheckLayerNorm(std::vector<float>(19, 7.0f), weight, bias, 1e-5f, "all the same: bias alone");
  std::vector<float> x = RandomFloats(19, 71);
  for (float& value : x) value *= 1e25f;
  CheckLayerNorm(x, weight, bias, 1e-5f, "squares beyond float");
  x = RandomFloats(19, 72, 1e-3f);
  for (float& value : x) value += 4096.0f;
  CheckLayerNorm(x, weight, bias, 1e-5f, "a mean far above the distances from it");
  x[18] = -1e20f;
  CheckLayerNorm(x, weight, bias, 1e-5f, "one outlier, in the tail");
}

TEST_P(ElementwiseTest, LayerNormPassesNanOnInItsRowOnly) {
  const int n = 33;
  std::vector<float> x = RandomFloats(3 * n, 73);
  x[n + 32] = kNan;
  const std::vector<float> out =
      RunLayerNorm(x, std::vector<float>(n, 1.0f), std::vector<float>(n, 0.5f));
  for (int i = 0; i < 3 * n; ++i) EXPECT_EQ(std::isnan(out[i]), i / n == 1) << i;
}

TEST_P(ElementwiseTest, LayerNormInPlaceAndAlone) {
  const int n = 577, m = 64, row = 29;
  const std::vector<float> x = RandomFloats(n * m, 74), weight = RandomFloats(n, 75),
                           bias = RandomFloats(n, 76);
  const std::vector<float> batch = RunLayerNorm(x, weight, bias);
  const std::vector<float> alone =
      RunLayerNorm({x.begin() + row * n, x.begin() + (row + 1) * n}, weight, bias);
  EXPECT_EQ(std::memcmp(&batch[row * n], alone.data(), n * sizeof(float)), 0);
  auto device = Upload(x), weight_device = Upload(weight), bias_device = Upload(bias);
  backend().LayerNorm({.x = device.data(),
                       .weight = weight_device.data(),
                       .bias = bias_device.data(),
                       .m = m,
                       .n = n,
                       .eps = 1e-5f,
                       .out = device.data()});
  EXPECT_EQ(device.Read(), batch);
}

// Rounding by the operation or by the reader of its floats gives the same bits. With bf16 weights,
// the matrix product of the rounded rows equals that of the floats, bit for bit.
TEST_P(ElementwiseTest, RoundsForTheMatrixProduct) {
  const DType dtype = backend().ActivationDType(DType::kBF16);
  if (dtype == DType::kF32) GTEST_SKIP() << GetParam() << " takes fp32 rows as they are";
  ASSERT_EQ(dtype, DType::kBF16);
  constexpr int kRows = 5, kCols = 136, kOutputs = 24;
  const std::vector<float> x = RandomFloats(kRows * kCols, 31), norm = RandomFloats(kCols, 32),
                           gate_up = RandomFloats(2 * kRows * kCols, 33, 4.0f),
                           values = RandomFloats(kOutputs * kCols, 34);
  const WeightPart part = {DType::kF32, values.data(), kOutputs, kCols, {}};
  const auto weight = backend().PackWeight(std::span(&part, 1), WeightDType::kBFloat16);
  ASSERT_TRUE(weight.ok()) << weight.status();
  auto x_device = Upload(x), norm_device = Upload(norm), gate_up_device = Upload(gate_up),
       bias_device = Upload(RandomFloats(kCols, 35));
  const auto check = [&](auto run) {
    auto floats = Output(kRows * kCols);
    auto halves = Upload(std::vector<uint16_t>(kRows * kCols, 0xFFFF));
    run(floats.data(), DType::kF32);
    run(halves.data(), dtype);
    const std::vector<float> exact = floats.Read();
    const std::vector<uint16_t> rounded = halves.Read();
    for (int i = 0; i < kRows * kCols; ++i) EXPECT_EQ(rounded[i], FloatToBF16(exact[i])) << i;
    auto from_floats = Output(kRows * kOutputs), from_halves = Output(kRows * kOutputs);
    const auto multiply = [&](const void* rows, DType row_dtype, float* y) {
      backend().Matmul(
          {.x = rows, .x_dtype = row_dtype, .m = kRows, .weight = weight->get(), .y = y});
    };
    multiply(floats.data(), DType::kF32, from_floats.data());
    multiply(halves.data(), dtype, from_halves.data());
    EXPECT_EQ(from_halves.Read(), from_floats.Read());
  };
  check([&](void* out, DType out_dtype) {
    backend().RmsNorm({.x = x_device.data(),
                       .weight = norm_device.data(),
                       .m = kRows,
                       .n = kCols,
                       .out = out,
                       .out_dtype = out_dtype});
  });
  check([&](void* out, DType out_dtype) {
    backend().LayerNorm({.x = x_device.data(),
                         .weight = norm_device.data(),
                         .bias = bias_device.data(),
                         .m = kRows,
                         .n = kCols,
                         .out = out,
                         .out_dtype = out_dtype});
  });
  check([&](void* out, DType out_dtype) {
    backend().Activate({.x = gate_up_device.data(),
                        .activation = Activation::kSilu,
                        .gated = true,
                        .m = kRows,
                        .n = kCols,
                        .out = out,
                        .out_dtype = out_dtype});
  });
}

TEST_P(ElementwiseTest, SwigluMatchesDouble) {
  for (int n : kSizes) {
    for (int m : {1, 3}) {
      const uint64_t seed = 2000 + n * 10 + m;
      CheckSwiglu(RandomFloats(static_cast<size_t>(m) * n * 2, seed, 4.0f), n,
                  "n " + std::to_string(n) + " seed " + std::to_string(seed));
    }
  }
}

TEST_P(ElementwiseTest, SwigluOfExtremeGates) {
  const std::vector<float> gates = {0.0f,   -0.0f,   1e-30f, -1e-30f, 20.0f,   -20.0f,   80.0f,
                                    -80.0f, 85.9f,   -85.9f, 86.1f,   -86.1f,  88.0f,    -88.0f,
                                    100.0f, -100.0f, 1e30f,  -1e30f,  FLT_MAX, -FLT_MAX, kNan};
  std::vector<float> gate_up = gates;
  for (size_t i = 0; i < gates.size(); ++i) gate_up.push_back(i % 2 == 0 ? 0.5f : -1.0f);
  CheckSwiglu(gate_up, static_cast<int>(gates.size()), "extreme gates");
}

struct RopeCase {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  bool interleaved;
  int rotary_dim = head_dim;
  float query_scale = 1.0f;
  DType kv_precision = DType::kF32;
  DType query_precision = DType::kF32;
};

struct RopeResult {
  std::vector<float> q, k, v;
};

class RopeTest : public BackendTest {
 protected:
  static constexpr int kPositions = 50;

  static std::vector<float> Table(int half, bool sine) {
    std::vector<float> table;
    for (int p = 0; p < kPositions; ++p) {
      for (int i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        table.push_back(static_cast<float>(sine ? std::sin(angle) : std::cos(angle)));
      }
    }
    return table;
  }

  // Scratch layout: [num_kv_heads][m + 2 spare rows][head_dim + 3], to check that
  // strides are respected.
  static int64_t RowStride(const RopeCase& c) { return c.head_dim + 3; }
  static int64_t HeadStride(const RopeCase& c, int m) { return RowStride(c) * (m + 2); }

  // factors: none if empty.
  RopeResult Run(const RopeCase& c, const std::vector<float>& qkv,
                 const std::vector<int32_t>& positions, bool queries_only = false,
                 const std::vector<float>& factors = {}) {
    const int m = static_cast<int>(positions.size());
    auto in = Upload(qkv), cos = Upload(Table(c.rotary_dim / 2, false)),
         sin = Upload(Table(c.rotary_dim / 2, true));
    auto positions_device = Upload(positions);
    auto factors_device = Upload(factors.empty() ? std::vector<float>(1) : factors);
    auto q = Output(static_cast<size_t>(m) * c.num_heads * c.head_dim);
    auto k = Output(c.num_kv_heads * HeadStride(c, m)),
         v = Output(c.num_kv_heads * HeadStride(c, m));
    backend().RopeSplit({.qkv = in.data(),
                         .positions = positions_device.data(),
                         .cos = cos.data(),
                         .sin = sin.data(),
                         .m = m,
                         .num_heads = c.num_heads,
                         .num_kv_heads = c.num_kv_heads,
                         .head_dim = c.head_dim,
                         .rotary_dim = c.rotary_dim,
                         .interleaved = c.interleaved,
                         .query_scale = c.query_scale,
                         .factors = factors.empty() ? nullptr : factors_device.data(),
                         .q = q.data(),
                         .k = queries_only ? nullptr : k.data(),
                         .v = queries_only ? nullptr : v.data(),
                         .kv_row_stride = RowStride(c),
                         .kv_head_stride = HeadStride(c, m),
                         .kv_precision = c.kv_precision,
                         .query_precision = c.query_precision});
    return {q.Read(), k.Read(), v.Read()};
  }
};

std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  for (float& value : values) {
    if (std::isnan(value)) continue;
    value = dtype == DType::kF16 ? F16ToFloat(FloatToF16(value)) : BF16ToFloat(FloatToBF16(value));
  }
  return values;
}

// Multiplies the pair (as a complex number) by cos + i sin: the definition of RoPE
// (arXiv 2104.09864, 3.4).
void Expect(const RopeCase& c, double scale, const float* in, int position, double* out,
            double* tolerance) {
  const int half = c.rotary_dim / 2;
  for (int i = c.rotary_dim; i < c.head_dim; ++i) {
    out[i] = in[i];
    tolerance[i] = 0;
  }
  for (int i = 0; i < half; ++i) {
    const double angle = position * std::pow(10000.0, -static_cast<double>(i) / half);
    const int first = c.interleaved ? 2 * i : i, second = c.interleaved ? 2 * i + 1 : i + half;
    const double a = scale * in[first], b = scale * in[second];
    out[first] = a * std::cos(angle) - b * std::sin(angle);
    out[second] = a * std::sin(angle) + b * std::cos(angle);
    // The table's rounding, two products and a sum.
    tolerance[first] = tolerance[second] =
        (scale == 1 ? 4 : 5) * kFloatEpsilon * (std::abs(a) + std::abs(b));
  }
}

TEST_P(RopeTest, MatchesRotationInDouble) {
  for (const RopeCase& c :
       {RopeCase{1, 1, 2, false}, RopeCase{4, 4, 10, false}, RopeCase{9, 3, 64, false},
        RopeCase{4, 1, 128, false}, RopeCase{3, 1, 34, false}, RopeCase{1, 1, 2, true},
        RopeCase{4, 4, 10, true}, RopeCase{9, 3, 64, true}, RopeCase{6, 2, 80, true},
        RopeCase{3, 1, 34, true}, RopeCase{4, 4, 16, false, 4}, RopeCase{3, 3, 80, false, 20},
        RopeCase{4, 2, 96, false, 24}, RopeCase{2, 1, 10, false, 2}, RopeCase{4, 2, 96, true, 34},
        RopeCase{4, 4, 64, false, 0}, RopeCase{3, 1, 34, true, 0},
        RopeCase{4, 2, 96, false, 72, 1.25f}, RopeCase{3, 1, 34, true, 34, 1.25f}}) {
    const std::vector<int32_t> positions = {0, 49, 3, 3, 17};
    const int m = static_cast<int>(positions.size()), d = c.head_dim;
    const size_t row = static_cast<size_t>(c.num_heads + 2 * c.num_kv_heads) * d;
    const std::vector<float> qkv = RandomFloats(m * row, 31 + d);
    const size_t kv_size = c.num_kv_heads * HeadStride(c, m);
    std::vector<double> q(static_cast<size_t>(m) * c.num_heads * d), q_tolerance(q.size());
    std::vector<double> k(kv_size, NAN), k_tolerance(kv_size), v(kv_size, NAN), zero(kv_size, 0.0);
    for (int i = 0; i < m; ++i) {
      const float* in = qkv.data() + i * row;
      for (int h = 0; h < c.num_heads; ++h) {
        const size_t at = (static_cast<size_t>(i) * c.num_heads + h) * d;
        Expect(c, c.query_scale, in + h * d, positions[i], &q[at], &q_tolerance[at]);
      }
      for (int h = 0; h < c.num_kv_heads; ++h) {
        const size_t at = h * HeadStride(c, m) + i * RowStride(c);
        Expect(c, 1, in + (c.num_heads + h) * d, positions[i], &k[at], &k_tolerance[at]);
        std::copy_n(in + (c.num_heads + c.num_kv_heads + h) * d, d, &v[at]);
      }
    }
    const std::string what = "head_dim " + std::to_string(d) + " of which turn " +
                             std::to_string(c.rotary_dim) + (c.interleaved ? " interleaved" : "") +
                             " query scale " + std::to_string(c.query_scale);
    const RopeResult result = Run(c, qkv, positions);
    ExpectNear(result.q, q, q_tolerance, what + " q");
    ExpectNear(result.k, k, k_tolerance, what + " k");  // NaN where nothing may be written
    ExpectNear(result.v, v, zero, what + " v");
    EXPECT_EQ(Run(c, qkv, positions, true).q, result.q) << what << " without keys";
  }
}

// Rounded keys and values equal rounding the unrounded results; queries are not rounded.
TEST_P(RopeTest, RoundsKeysAndValues) {
  for (const RopeCase& c : {RopeCase{4, 2, 10, false}, RopeCase{9, 3, 64, true},
                            RopeCase{4, 2, 96, false, 24}, RopeCase{3, 1, 34, false, 0}}) {
    const std::vector<int32_t> positions = {0, 49, 3};
    const size_t row = static_cast<size_t>(c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    const std::vector<float> qkv = RandomFloats(positions.size() * row, 5);
    const RopeResult exact = Run(c, qkv, positions);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const auto rounded = [&](const std::vector<float>& values) { return Rounded(dtype, values); };
      RopeCase narrow = c;
      narrow.kv_precision = dtype;
      const RopeResult result = Run(narrow, qkv, positions);
      const std::string what =
          std::string(DTypeName(dtype)) + ", head_dim " + std::to_string(c.head_dim);
      EXPECT_EQ(result.q, exact.q) << what;
      ExpectSame(result.k, rounded(exact.k), what + " k");
      ExpectSame(result.v, rounded(exact.v), what + " v");
    }
  }
}

// Powers of two multiply the rotated rows to the bit, rounded ones too.
TEST_P(RopeTest, MultipliesQueriesAndKeys) {
  for (const RopeCase& c : {RopeCase{9, 3, 64, false}, RopeCase{9, 3, 64, true},
                            RopeCase{4, 2, 96, false, 24, 1.25f}, RopeCase{3, 1, 34, false, 0},
                            RopeCase{4, 2, 10, false, 10, 1.0f, DType::kBF16, DType::kBF16}}) {
    const std::vector<int32_t> positions = {0, 49, 3};
    const int m = static_cast<int>(positions.size()), d = c.head_dim, heads = c.num_heads;
    const size_t row = static_cast<size_t>(heads + 2 * c.num_kv_heads) * d;
    const std::vector<float> qkv = RandomFloats(positions.size() * row, 7);
    std::vector<float> factors(static_cast<size_t>(heads + c.num_kv_heads) * d);
    for (size_t i = 0; i < factors.size(); ++i) {
      const int head = static_cast<int>(i) / d, element = static_cast<int>(i) % d;
      const int half = c.rotary_dim / 2;
      const int pair = element >= c.rotary_dim ? element
                       : c.interleaved         ? element / 2
                                               : element % half;
      factors[i] = std::ldexp(1.0f, (head * 5 + pair) % 13 - 6);
    }
    RopeResult expected = Run(c, qkv, positions);
    for (int i = 0; i < m * heads * d; ++i) expected.q[i] *= factors[i % (heads * d)];
    for (int h = 0; h < c.num_kv_heads; ++h) {
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < d; ++j)
          expected.k[h * HeadStride(c, m) + i * RowStride(c) + j] *= factors[(heads + h) * d + j];
      }
    }
    const std::string what = "head_dim " + std::to_string(d);
    const RopeResult result = Run(c, qkv, positions, false, factors);
    EXPECT_EQ(result.q, expected.q) << what;
    ExpectSame(result.k, expected.k, what + " k");
    ExpectSame(result.v, expected.v, what + " v");
    EXPECT_EQ(Run(c, qkv, positions, true, factors).q, expected.q) << what << " without keys";
  }
}

// Rounding queries before rotation equals rounding the projection; keys and values do not change.
TEST_P(RopeTest, RoundsQueriesBeforeTheyTurn) {
  for (const RopeCase& c : {RopeCase{4, 2, 10, false}, RopeCase{9, 3, 64, true},
                            RopeCase{4, 2, 96, false, 24, 1.25f}, RopeCase{3, 1, 34, false, 0}}) {
    const std::vector<int32_t> positions = {0, 49, 3};
    const size_t row = static_cast<size_t>(c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    const std::vector<float> qkv = RandomFloats(positions.size() * row, 6);
    const RopeResult exact = Run(c, qkv, positions);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      RopeCase narrow = c;
      narrow.query_precision = dtype;
      const RopeResult result = Run(narrow, qkv, positions);
      const std::string what =
          std::string(DTypeName(dtype)) + ", head_dim " + std::to_string(c.head_dim);
      EXPECT_NE(result.q, exact.q) << what;
      EXPECT_EQ(result.q, Run(c, Rounded(dtype, qkv), positions).q) << what;
      EXPECT_EQ(Run(narrow, qkv, positions, true).q, result.q) << what << " without keys";
      ExpectSame(result.k, exact.k, what + " k");
      ExpectSame(result.v, exact.v, what + " v");
    }
  }
}

// A row alone and in a batch large enough for several threads: the same bits.
TEST_P(ElementwiseTest, RowsDoNotDependOnTheBatch) {
  const int n = 577, m = 64, row = 29;
  const std::vector<float> x = RandomFloats(m * n * 2, 41), weight = RandomFloats(n, 42);
  const std::vector<float> norm =
      RunRmsNorm(std::vector<float>(x.begin(), x.begin() + m * n), weight);
  const std::vector<float> norm_alone =
      RunRmsNorm({x.begin() + row * n, x.begin() + (row + 1) * n}, weight);
  EXPECT_EQ(std::memcmp(&norm[row * n], norm_alone.data(), n * sizeof(float)), 0);
  const std::vector<float> gated = RunSwiglu(x, n);
  const std::vector<float> gated_alone =
      RunSwiglu({x.begin() + row * 2 * n, x.begin() + (row + 1) * 2 * n}, n);
  EXPECT_EQ(std::memcmp(&gated[row * n], gated_alone.data(), n * sizeof(float)), 0);
}

TEST_P(RopeTest, RowsDoNotDependOnTheBatch) {
  for (bool interleaved : {false, true}) {
    const RopeCase c{9, 3, 66, interleaved};
    const int m = 40, row = 23;
    const size_t row_size = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    const std::vector<float> qkv = RandomFloats(m * row_size, 43);
    std::vector<int32_t> positions(m);
    for (int i = 0; i < m; ++i) positions[i] = (i * 7) % kPositions;
    const RopeResult batch = Run(c, qkv, positions);
    const RopeResult alone = Run(
        c, {qkv.begin() + row * row_size, qkv.begin() + (row + 1) * row_size}, {positions[row]});
    EXPECT_EQ(std::memcmp(&batch.q[static_cast<size_t>(row) * c.num_heads * c.head_dim],
                          alone.q.data(), alone.q.size() * sizeof(float)),
              0);
    for (int h = 0; h < c.num_kv_heads; ++h) {
      EXPECT_EQ(std::memcmp(&batch.k[h * HeadStride(c, m) + row * RowStride(c)],
                            &alone.k[h * HeadStride(c, 1)], c.head_dim * sizeof(float)),
                0);
    }
  }
}

TEST_P(ElementwiseTest, NoRows) {
  backend().RmsNorm({.m = 0, .n = 8});
  backend().LayerNorm({.m = 0, .n = 8});
  EXPECT_TRUE(backend().Synchronize().ok());
}

HYDRANT_FOR_EACH_BACKEND(ElementwiseTest);
HYDRANT_FOR_EACH_BACKEND(RopeTest);

}  // namespace
}  // namespace hydrant
