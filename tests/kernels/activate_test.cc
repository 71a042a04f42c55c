// Activate of every backend against the definitions in double.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/float16.h"
#include "kernels/ops/elementwise.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr Activation kAll[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
                               Activation::kSilu, Activation::kIdentity};

double Defined(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return std::fmax(x, 0.0);
    case Activation::kGelu:
      // Where 1 + erf would cancel, erfc gives the same value.
      return x * std::erfc(-x / std::numbers::sqrt2) / 2;
    case Activation::kGeluTanh: {
      const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3));
      return x * (1 + std::tanh(u)) / 2;
    }
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kIdentity:
      return x;
    case Activation::kClampedSwiglu:
      break;  // takes two inputs
  }
  return NAN;
}

class ActivateTest : public BackendTest {
 protected:
  std::vector<float> Run(Activation activation, const std::vector<float>& x, int m) {
    auto in = Upload(x);
    auto out = Output(x.size());
    backend().Activate({.x = in.data(),
                        .activation = activation,
                        .m = m,
                        .n = static_cast<int>(x.size()) / m,
                        .out = out.data()});
    return out.Read();
  }

  void Check(Activation activation, const std::vector<float>& x, int m, const std::string& what) {
    std::vector<double> expected, tolerance;
    for (const float value : x) {
      expected.push_back(std::isnan(value) ? NAN : Defined(activation, value));
      // ReLU and identity are exact. GELU is x times a factor in [0, 1]: off by 7.5e-8 where erfc
      // uses a formula, plus a few roundings.
      const bool exact = activation == Activation::kRelu || activation == Activation::kIdentity;
      tolerance.push_back(exact ? 0.0 : 3e-7 * std::abs(value) + FLT_MIN);
    }
    ExpectNear(Run(activation, x, m), expected, tolerance,
               what + " activation " + std::to_string(static_cast<int>(activation)));
  }
};

TEST_P(ActivateTest, MatchesDouble) {
  for (const Activation activation : kAll) {
    for (const int n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 257, 1001}) {
      for (const int m : {1, 3}) {
        const uint64_t seed = 3000 + n * 10 + m;
        Check(activation, RandomFloats(static_cast<size_t>(m) * n, seed, 3.0f), m,
              "n " + std::to_string(n) + " seed " + std::to_string(seed));
      }
    }
  }
}

// bf16 x gives the same bits as fp32 x of the same values; with rows that are whole vectors or
// not, at any alignment.
TEST_P(ActivateTest, TakesBFloat16) {
  for (const bool gated : {false, true}) {
    for (const int n : {1, 7, 8, 64, 257, 1000}) {
      for (const int offset : {0, 4, 3}) {
        constexpr int kRows = 3;
        const size_t count = static_cast<size_t>(kRows) * n * (gated ? 2 : 1);
        const std::vector<float> values = RandomFloats(offset + count, 5 + n, 3.0f);
        std::vector<float> rounded;
        std::vector<uint16_t> halves;
        for (const float value : values) {
          halves.push_back(FloatToBF16(value));
          rounded.push_back(BF16ToFloat(halves.back()));
        }
        auto x = Upload(rounded);
        auto x_bf16 = Upload(halves);
        auto expected = Output(static_cast<size_t>(kRows) * n), out = Output(expected.size());
        ActivateArgs args = {.x = x.data() + offset,
                             .activation = Activation::kSilu,
                             .gated = gated,
                             .m = kRows,
                             .n = n,
                             .out = expected.data()};
        backend().Activate(args);
        args.x = nullptr;
        args.x_bf16 = x_bf16.data() + offset;
        args.out = out.data();
        backend().Activate(args);
        EXPECT_EQ(out.Read(), expected.Read()) << "n " << n << " offset " << offset;
      }
    }
  }
}

TEST_P(ActivateTest, OfExtremeValues) {
  const std::vector<float> x = {0.0f,  -0.0f,  1e-30f, -1e-30f, 0.5f,    -0.5f,    6.0f, -6.0f,
                                13.0f, -13.0f, 20.0f,  -20.0f,  100.0f,  -100.0f,  1e6f, -1e6f,
                                1e20f, -1e20f, 1e30f,  -1e30f,  FLT_MAX, -FLT_MAX, kNan};
  for (const Activation activation : kAll) Check(activation, x, 1, "extremes");
}

// A dense grid, so that no range of an approximation is missed.
TEST_P(ActivateTest, OfAGrid) {
  std::vector<float> x;
  for (int i = -3000; i <= 3000; ++i) x.push_back(static_cast<float>(i) / 256);
  for (const Activation activation : kAll) Check(activation, x, 1, "grid");
}

TEST_P(ActivateTest, InPlaceAndAloneGiveTheSameBits) {
  const int m = 64, n = 577, row = 29;
  const std::vector<float> x = RandomFloats(m * n, 51, 2.0f);
  for (const Activation activation : kAll) {
    const std::vector<float> batch = Run(activation, x, m);
    const std::vector<float> alone =
        Run(activation, {x.begin() + row * n, x.begin() + (row + 1) * n}, 1);
    EXPECT_EQ(std::memcmp(&batch[row * n], alone.data(), n * sizeof(float)), 0);
    auto device = Upload(x);
    backend().Activate(
        {.x = device.data(), .activation = activation, .m = m, .n = n, .out = device.data()});
    EXPECT_EQ(device.Read(), batch);
  }
}

TEST_P(ActivateTest, RoundsForTheMatrixProduct) {
  const DType dtype = backend().ActivationDType(DType::kBF16);
  if (dtype == DType::kF32) GTEST_SKIP() << GetParam() << " takes fp32 rows as they are";
  ASSERT_EQ(dtype, DType::kBF16);
  const std::vector<float> x = RandomFloats(5 * 136, 61, 2.0f);
  for (const Activation activation : kAll) {
    const std::vector<float> exact = Run(activation, x, 5);
    auto in = Upload(x);
    auto out = Upload(std::vector<uint16_t>(x.size(), 0xFFFF));
    backend().Activate({.x = in.data(),
                        .activation = activation,
                        .m = 5,
                        .n = 136,
                        .out = out.data(),
                        .out_dtype = dtype});
    const std::vector<uint16_t> rounded = out.Read();
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(rounded[i], FloatToBF16(exact[i])) << i;
  }
}

// Each element is the activation of the row's first half times its second half.
TEST_P(ActivateTest, GatedMultipliesByTheOtherHalf) {
  for (const Activation activation : kAll) {
    for (const int n : {1, 7, 8, 9, 16, 17, 33, 257}) {
      constexpr int kRows = 3;
      const std::vector<float> x = RandomFloats(2 * kRows * n, 4000 + n, 3.0f);
      std::vector<float> gates;
      for (int row = 0; row < kRows; ++row)
        gates.insert(gates.end(), x.begin() + 2 * row * n, x.begin() + (2 * row + 1) * n);
      const std::vector<float> activated = Run(activation, gates, kRows);
      auto in = Upload(x);
      auto out = Output(gates.size());
      backend().Activate({.x = in.data(),
                          .activation = activation,
                          .gated = true,
                          .m = kRows,
                          .n = n,
                          .out = out.data()});
      const std::vector<float> gated = out.Read();
      for (int i = 0; i < kRows * n; ++i) {
        const float up = x[(2 * (i / n) + 1) * n + i % n];
        EXPECT_NEAR(gated[i], activated[i] * up, 2e-7 * std::abs(activated[i] * up) + FLT_MIN)
            << "activation " << static_cast<int>(activation) << " n " << n << " element " << i;
      }
    }
  }
}

// All pairs of gate and up values around and far past the limits; NaN in either propagates.
TEST_P(ActivateTest, ClampedSwigluIsTheFunctionOfBothHalves) {
  const std::vector<float> values = {
      0.0f,  0.3f,   -0.3f,  1.0f,   -1.0f,  6.9f,    -6.9f, 7.0f,   -7.0f,   7.1f,     -7.1f,
      30.0f, -30.0f, -50.9f, -51.1f, 100.0f, -100.0f, 1e20f, -1e20f, FLT_MAX, -FLT_MAX, kNan};
  const int n = static_cast<int>(values.size());
  std::vector<float> x;
  std::vector<double> expected, tolerance;
  for (const float up : values) {
    x.insert(x.end(), values.begin(), values.end());
    x.insert(x.end(), n, up);
    for (const float gate : values) {
      const double g = std::isnan(gate) ? NAN : std::fmin(gate, 7.0);
      const double u = std::isnan(up) ? NAN : std::fmax(-7.0, std::fmin(up, 7.0));
      expected.push_back((u + 1) * g / (1 + std::exp(-1.702 * g)));
      // The exponent, rounded with 1.702 and in the product, is up to 90; past that all is tiny.
      tolerance.push_back(8e-6 * std::abs(expected.back()) + 1e-34);
    }
  }
  auto in = Upload(x);
  auto out = Output(expected.size());
  backend().Activate({.x = in.data(),
                      .activation = Activation::kClampedSwiglu,
                      .gated = true,
                      .m = n,
                      .n = n,
                      .out = out.data()});
  ExpectNear(out.Read(), expected, tolerance, "clamped SwiGLU");
}

TEST_P(ActivateTest, NoRows) {
  backend().Activate({.m = 0, .n = 8});
  EXPECT_TRUE(backend().Synchronize().ok());
}

HYDRANT_FOR_EACH_BACKEND(ActivateTest);

class SoftCapTest : public BackendTest {};

TEST_P(SoftCapTest, MatchesDoubleAndStaysBelow) {
  for (const float cap : {0.5f, 30.0f}) {
    for (const int n : {1, 7, 8, 17, 300}) {
      const uint64_t seed = 4000 + n;
      SCOPED_TRACE(testing::Message() << "cap " << cap << " n " << n << " seed " << seed);
      std::vector<float> values = RandomFloats(3 * static_cast<size_t>(n), seed, 40.0f);
      values[0] = 1e30f;
      values[1] = -1e30f;
      values[2] = 1e-20f;
      std::vector<double> expected, tolerance;
      for (const float value : values) {
        expected.push_back(cap * std::tanh(double{value} / cap));
        tolerance.push_back(4e-7 * std::abs(expected.back()));
      }
      auto x = Upload(values);
      backend().SoftCap({.x = x.data(), .m = 3, .n = n, .cap = cap});
      ExpectNear(x.Read(), expected, tolerance, "softcap");
    }
  }
  backend().SoftCap({.m = 0, .n = 8, .cap = 1.0f});
}

HYDRANT_FOR_EACH_BACKEND(SoftCapTest);

class SumRowsTest : public BackendTest {};

TEST_P(SumRowsTest, AddsToTheOutput) {
  for (const int m : {0, 1, 2, 33, 500}) {
    for (const int n : {1, 7, 64, 65, 300}) {
      const uint64_t seed = 5000 + m * 10 + n;
      SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " seed " << seed);
      const std::vector<float> values = RandomFloats(static_cast<size_t>(m) * n, seed, 2.0f);
      const std::vector<float> before = RandomFloats(n, seed + 1, 1.0f);
      std::vector<double> expected(before.begin(), before.end()), tolerance(n, 1e-4);
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) expected[j] += 0.25 * values[static_cast<size_t>(i) * n + j];
      }
      auto x = Upload(values);
      auto out = Upload(before);
      backend().SumRows({.x = x.data(), .m = m, .n = n, .scale = 0.25f, .out = out.data()});
      ExpectNear(out.Read(), expected, tolerance, "sum");
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(SumRowsTest);

}  // namespace
}  // namespace hydrant
