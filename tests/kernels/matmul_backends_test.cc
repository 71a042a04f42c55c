// Matmul and Embed of every backend against the double-precision product of the same rounded
// numbers. matmul_test.cc has stricter tests of the cpu backend's kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/float16.h"
#include "tests/kernels/product_test.h"

namespace hydrant {
namespace {

class MatmulBackendsTest : public ProductTest {
 protected:
  // Packs two stacked fp32 parts as `dtype`; values_ gets the values as the backend stores them.
  std::unique_ptr<Weight> Pack(int rows, int cols, WeightDType dtype) {
    values_ = RandomFloats(static_cast<size_t>(rows) * cols, 7 + rows, 0.1f);
    const int first = rows / 2 + 1;
    const WeightPart parts[] = {
        {DType::kF32, values_.data(), first, cols},
        {DType::kF32, values_.data() + static_cast<size_t>(first) * cols, rows - first, cols}};
    auto weight = backend().PackWeight(std::span(parts, rows > first ? 2 : 1), dtype);
    EXPECT_TRUE(weight.ok()) << weight.status();
    if (dtype == WeightDType::kBFloat16)
      for (float& value : values_) value = BF16ToFloat(FloatToBF16(value));
    return *std::move(weight);
  }

  // With bf16 weights some units round x: x exact in bf16 leaves only the rounding of sums.
  static std::vector<float> Activations(int m, int cols) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(m) * cols, 11 + m);
    for (float& value : x) value = BF16ToFloat(FloatToBF16(value));
    return x;
  }

  void ExpectProduct(const std::vector<float>& x, int m, int rows, int cols, float start,
                     const std::vector<float>& y) {
    // Each of the cols additions may round the partial sum.
    ProductTest::ExpectProduct(x, m, values_, rows, cols, start, {}, y, "plain",
                               [&](const float*, const float*, double size) {
                                 return kFloatEpsilon * (cols + 4) * size + 1e-30;
                               });
  }

  std::vector<float> values_;
};

constexpr WeightDType kPlainDTypes[] = {WeightDType::kFloat32, WeightDType::kBFloat16,
                                        WeightDType::kStored};

TEST_P(MatmulBackendsTest, EqualsTheDoubleProduct) {
  for (const WeightDType dtype : kPlainDTypes) {
    for (const int cols : {8, 64, 200}) {
      for (const int rows : {1, 16, 77}) {
        const std::unique_ptr<Weight> weight = Pack(rows, cols, dtype);
        for (const int m : {1, 3, 17, 130}) {
          const std::vector<float> x = Activations(m, cols);
          ExpectProduct(x, m, rows, cols, kNan, Run(*weight, x, m));
          ExpectProduct(x, m, rows, cols, 0.75f, Run(*weight, x, m, 0.75f));
        }
      }
    }
  }
}

// A bf16 result is the fp32 result rounded once, whatever y held before.
TEST_P(MatmulBackendsTest, ResultsInBFloat16) {
  for (const WeightDType dtype : kPlainDTypes) {
    for (const int rows : {8, 77}) {
      const std::unique_ptr<Weight> weight = Pack(rows, 72, dtype);
      if (backend().ResultDType(*weight) != DType::kBF16) continue;
      for (const int m : {1, 3, 17, 128, 130, 260}) {
        const std::vector<float> x = Activations(m, 72);
        auto device_x = Upload(x);
        auto y = Upload(std::vector<uint16_t>(static_cast<size_t>(m) * rows, 0x7FC0));
        backend().Matmul(
            {.x = device_x.data(), .m = m, .weight = weight.get(), .y_bf16 = y.data()});
        const std::vector<uint16_t> halves = y.Read();
        const std::vector<float> sums = Run(*weight, x, m);
        for (size_t i = 0; i < sums.size(); ++i) {
          // A device may use another summation order there.
          EXPECT_NEAR(BF16ToFloat(halves[i]), sums[i], std::abs(sums[i]) / 256 + 1e-5)
              << "m " << m << " rows " << rows << " element " << i;
        }
      }
    }
  }
}

TEST_P(MatmulBackendsTest, RowsDoNotDependOnTheBatch) {
  for (const WeightDType dtype : kPlainDTypes) {
    const std::unique_ptr<Weight> weight = Pack(40, 136, dtype);
    const std::vector<float> x = Activations(300, 136);
    const std::vector<float> all = Run(*weight, x, 300);
    for (const int row : {0, 1, 127, 128, 255, 256, 299}) {
      const std::vector<float> alone =
          Run(*weight, {x.begin() + row * 136, x.begin() + (row + 1) * 136}, 1);
      EXPECT_EQ(std::memcmp(alone.data(), &all[static_cast<size_t>(row) * 40], 40 * sizeof(float)),
                0)
          << "row " << row;
    }
  }
}

// The bias is one more addition, after all others.
TEST_P(MatmulBackendsTest, BiasIsAddedOnceToEachRow) {
  for (const WeightDType dtype : kPlainDTypes) {
    for (const int rows : {1, 16, 77, 300}) {
      const std::unique_ptr<Weight> weight = Pack(rows, 64, dtype);
      const std::vector<float> bias = RandomFloats(rows, 97 + rows);
      for (const int m : {0, 1, 3, 130}) {
        const std::vector<float> x = Activations(m, 64);
        for (const float start : {kNan, 0.75f}) {
          const std::vector<float> plain = Run(*weight, x, m, start);
          const std::vector<float> biased = Run(*weight, x, m, start, bias);
          ASSERT_EQ(biased.size(), plain.size());
          for (size_t i = 0; i < biased.size(); ++i) {
            // The sum itself may have been rounded once less.
            const double expected = static_cast<double>(plain[i]) + bias[i % rows];
            ASSERT_NEAR(biased[i], expected,
                        kFloatEpsilon * (std::abs(expected) + std::abs(plain[i])))
                << "m " << m << " rows " << rows << " element " << i;
          }
        }
      }
    }
  }
}

TEST_P(MatmulBackendsTest, EmbedAddsTheTablesRows) {
  for (const WeightDType dtype : kPlainDTypes) {
    const std::unique_ptr<Weight> table = Pack(50, 72, dtype);
    const std::vector<uint32_t> ids = {49, 0, 7, 7, 31, 1, 2, 3, 4, 5, 6};
    const std::vector<float> before = RandomFloats(ids.size() * 72, 5);
    auto device_ids = Upload(ids);
    auto out = Upload(before);
    backend().Embed({.ids = device_ids.data(),
                     .m = static_cast<int>(ids.size()),
                     .table = table.get(),
                     .out = out.data(),
                     .accumulate = true});
    const std::vector<float> got = out.Read();
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], before[i] + values_[ids[i / 72] * 72 + i % 72]) << i;
  }
}

TEST_P(MatmulBackendsTest, EmbedGivesTheTablesRows) {
  for (const WeightDType dtype : kPlainDTypes) {
    const std::unique_ptr<Weight> table = Pack(50, 72, dtype);
    const std::vector<uint32_t> ids = {49, 0, 7, 7, 31};
    auto device_ids = Upload(ids);
    auto out = Output(ids.size() * 72);
    backend().Embed({.ids = device_ids.data(),
                     .m = static_cast<int>(ids.size()),
                     .table = table.get(),
                     .out = out.data()});
    const std::vector<float> got = out.Read();
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int k = 0; k < 72; ++k) EXPECT_EQ(got[i * 72 + k], values_[ids[i] * 72 + k]);
    }
  }
}

TEST_P(MatmulBackendsTest, EmbedScalesTheTablesRows) {
  for (const WeightDType dtype : kPlainDTypes) {
    const std::unique_ptr<Weight> table = Pack(50, 72, dtype);
    const std::vector<uint32_t> ids = {49, 0, 7, 7, 31};
    const std::vector<float> before = RandomFloats(ids.size() * 72, 5);
    auto device_ids = Upload(ids);
    for (const bool accumulate : {false, true}) {
      auto out = Upload(before);
      backend().Embed({.ids = device_ids.data(),
                       .m = static_cast<int>(ids.size()),
                       .table = table.get(),
                       .out = out.data(),
                       .accumulate = accumulate,
                       .scale = 12.0f});
      const std::vector<float> got = out.Read();
      for (size_t i = 0; i < got.size(); ++i) {
        const double scaled = 12.0 * values_[ids[i / 72] * 72 + i % 72];
        EXPECT_NEAR(got[i], scaled + (accumulate ? before[i] : 0), 1e-6 * (1 + std::abs(scaled)));
      }
    }
  }
}

// A randomly generated weight is bit-identical to a stored one with the same values, whether the
// backend generates it itself or not.
TEST_P(MatmulBackendsTest, DrawnWeightsAreTheirStreams) {
  constexpr int kRows = 133, kCols = 40;
  const NormalStream normals = {0x1234567890abcdefu, 0.02f};
  std::vector<float> floats(kRows * kCols);
  std::vector<uint16_t> halves(floats.size());
  std::vector<uint32_t> ids(kRows);
  for (size_t i = 0; i < floats.size(); ++i) {
    floats[i] = NormalAt(normals.key, i) * normals.stddev;
    halves[i] = FloatToBF16(floats[i]);
  }
  for (int i = 0; i < kRows; ++i) ids[i] = i;
  auto device_ids = Upload(ids);
  const auto rows_of = [&](const WeightPart& part, WeightDType dtype) {
    const auto table = backend().PackWeight(std::span(&part, 1), dtype);
    EXPECT_TRUE(table.ok()) << table.status();
    auto out = Output(floats.size());
    backend().Embed(
        {.ids = device_ids.data(), .m = kRows, .table = table->get(), .out = out.data()});
    return out.Read();
  };
  for (const WeightDType dtype : kPlainDTypes) {
    EXPECT_EQ(rows_of({DType::kF32, nullptr, kRows, kCols, normals}, dtype),
              rows_of({DType::kF32, floats.data(), kRows, kCols, std::nullopt}, dtype));
    EXPECT_EQ(rows_of({DType::kBF16, nullptr, kRows, kCols, normals}, dtype),
              rows_of({DType::kBF16, halves.data(), kRows, kCols, std::nullopt}, dtype));
  }
}

TEST_P(MatmulBackendsTest, PartsThatDoNotFitAreRefused) {
  const float data[8] = {};
  const auto error_of = [&](std::vector<WeightPart> parts) {
    return std::string(backend().PackWeight(parts, WeightDType::kFloat32).status().message());
  };
  const auto says = [](const char* text) { return testing::HasSubstr(text); };
  EXPECT_THAT(error_of({}), says("at least one part"));
  EXPECT_THAT(error_of({{DType::kF32, nullptr, 2, 4, {}}}), says("2 x 4 without data"));
  EXPECT_THAT(error_of({{DType::kF32, data, 0, 4, {}}}), says("0 x 4"));
  EXPECT_THAT(error_of({{DType::kF32, data, 1, 4, {}}, {DType::kF32, data, 1, 8, {}}}),
              says("4 and 8 columns"));
  EXPECT_THAT(error_of({{DType::kQ8_0, data, 1, 4, {}}}), says("multiple of 32"));
  EXPECT_THAT(error_of({{DType::kF16, nullptr, 1, 4, NormalStream{}}}),
              says("only as f32 or bf16"));
}

HYDRANT_FOR_EACH_BACKEND(MatmulBackendsTest);

}  // namespace
}  // namespace hydrant
