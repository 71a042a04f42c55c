// Activate of every backend against the functions' definitions in double.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/float16.h"
#include "kernels/ops/elementwise.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr Activation kAll[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh};

double Defined(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return std::fmax(x, 0.0);
    case Activation::kGelu:
      // Where 1 + erf would cancel, erfc is the same number.
      return x * std::erfc(-x / std::numbers::sqrt2) / 2;
    case Activation::kGeluTanh: {
      const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3));
      return x * (1 + std::tanh(u)) / 2;
    }
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
      // Relu is exact. Gelu is x times a factor in [0, 1]: 7.5e-8 off where erfc comes from a
      // formula, and rounded a few times.
      tolerance.push_back(activation == Activation::kRelu ? 0.0 : 3e-7 * std::abs(value) + FLT_MIN);
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

TEST_P(ActivateTest, OfExtremeValues) {
  const std::vector<float> x = {0.0f,  -0.0f,  1e-30f, -1e-30f, 0.5f,    -0.5f,    6.0f, -6.0f,
                                13.0f, -13.0f, 20.0f,  -20.0f,  100.0f,  -100.0f,  1e6f, -1e6f,
                                1e20f, -1e20f, 1e30f,  -1e30f,  FLT_MAX, -FLT_MAX, kNan};
  for (const Activation activation : kAll) Check(activation, x, 1, "extremes");
}

// Every float of a grid, so that no stretch of an approximation goes unseen.
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
  const DType dtype = backend().ActivationDType(WeightDType::kBFloat16);
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

TEST_P(ActivateTest, NoRows) {
  backend().Activate({.m = 0, .n = 8});
  EXPECT_TRUE(backend().Synchronize().ok());
}

HYDRANT_FOR_EACH_BACKEND(ActivateTest);

}  // namespace
}  // namespace hydrant
