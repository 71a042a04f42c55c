// Tests norms and gates fused into Matmul (Backend::FusesProducts()) against double arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/random_rows.h"

namespace hydrant {
namespace {

constexpr uint32_t kSeed = 20261128;
constexpr DType kTypes[] = {DType::kBF16, DType::kQ8_0, DType::kQ4_K};
constexpr double kBF16Error = 1.0 / 256;  // per rounding

struct Matrix {
  std::unique_ptr<Weight> weight;
  int rows = 0, cols = 0;
  std::vector<float> values;

  double Sum(int row, const float* x) const {
    double sum = 0.0;
    for (int k = 0; k < cols; ++k)
      sum += double{x[k]} * values[static_cast<size_t>(row) * cols + k];
    return sum;
  }
  // For fp32 sums of quants with 128 added; a block's largest quant is at least 3.
  double Tolerance(int row, const float* x) const {
    double largest = 0.0, sum_x = 0.0, size = 0.0;
    for (int k = 0; k < cols; ++k) {
      const double w = std::abs(double{values[static_cast<size_t>(row) * cols + k]});
      largest = std::max(largest, w);
      sum_x += std::abs(x[k]);
      size += w * std::abs(x[k]);
    }
    return kFloatEpsilon * ((cols + 8) * size + 16 * (128.0 / 3) * largest * sum_x);
  }
};

class FusedProductsTest : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    std::cout << "seed " << kSeed << "\n";
  }

  Matrix Make(DType dtype, int rows, int cols) {
    Matrix matrix;
    matrix.rows = rows;
    matrix.cols = cols;
    const std::vector<uint8_t> bytes = RandomRows(dtype, rows, cols, random_);
    matrix.values.resize(static_cast<size_t>(rows) * cols);
    DequantizeRow(dtype, bytes.data(), int64_t{rows} * cols, matrix.values.data());
    const WeightPart part = {dtype, bytes.data(), rows, cols};
    auto weight = backend().PackWeight({&part, 1}, WeightDType::kStored);
    EXPECT_TRUE(weight.ok()) << weight.status();
    matrix.weight = *std::move(weight);
    return matrix;
  }

  // Whether this backend fuses this product.
  bool Fuses(const Matrix& matrix, int m) { return backend().FusesProducts(*matrix.weight, m); }

  struct Rows {
    std::vector<float> values;  // exact in bf16
    std::vector<uint16_t> bits;
  };
  Rows MakeRows(int m, int cols) {
    Rows rows = {RandomFloats(static_cast<size_t>(m) * cols, random_()), {}};
    for (float& value : rows.values) {
      rows.bits.push_back(FloatToBF16(value));
      value = BF16ToFloat(rows.bits.back());
    }
    return rows;
  }
  // Sums of squares that give each row a different norm.
  static std::vector<double> MakeSquares(int m, int cols) {
    const int parts = SplitNorm::Parts(cols);
    std::vector<double> squares(static_cast<size_t>(m) * parts);
    for (size_t i = 0; i < squares.size(); ++i)
      squares[i] = 40.0 + static_cast<double>(i * 37 % 101);
    return squares;
  }
  static double Divisor(const std::vector<double>& squares, int row, int cols, float eps) {
    const int parts = SplitNorm::Parts(cols);
    double sum = 0.0;
    for (int i = 0; i < parts; ++i) sum += squares[static_cast<size_t>(row) * parts + i];
    return std::sqrt(sum / cols + double{eps});
  }

  void CheckNorms(const Matrix& matrix, int m);
  void CheckRotation(DType dtype, const struct RotatedCase& c);

  std::mt19937 random_{kSeed};
};

#define HYDRANT_SKIP_UNLESS_FUSED(matrix, m) \
  if (!Fuses(matrix, m)) GTEST_SKIP() << "this backend runs them apart"

// x is divided by its root mean square, the product is added to y, and y gives
// the next norm's rows.
void FusedProductsTest::CheckNorms(const Matrix& matrix, int m) {
  constexpr float kEps = 1e-3f;
  const int rows = matrix.rows, cols = matrix.cols, parts = SplitNorm::Parts(rows);
  SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(cols) + " x " + std::to_string(rows));
  const Rows x = MakeRows(m, cols);
  const std::vector<double> squares = MakeSquares(m, cols);
  const std::vector<float> norm = RandomFloats(rows, random_()), bias = RandomFloats(rows, 5);
  const std::vector<float> before = RandomFloats(static_cast<size_t>(m) * rows, random_());
  auto device_x = Upload(x.bits);
  auto device_squares = Upload(squares);
  auto device_norm = Upload(norm), device_bias = Upload(bias), y = Upload(before);
  auto next = Upload(std::vector<uint16_t>(y.size(), 0x7FC0));
  auto next_squares = Upload(std::vector<double>(static_cast<size_t>(m) * parts, -1.0));
  backend().Matmul(
      {.x = device_x.data(),
       .x_dtype = DType::kBF16,
       .m = m,
       .weight = matrix.weight.get(),
       .y = y.data(),
       .accumulate = true,
       .bias = device_bias.data(),
       .x_norm = SplitNorm{.eps = kEps, .squares = device_squares.data()},
       .y_norm = SplitNorm{
           .weight = device_norm.data(), .rows = next.data(), .squares = next_squares.data()}});
  std::vector<double> expected, tolerance;
  for (int i = 0; i < m; ++i) {
    const double divisor = Divisor(squares, i, cols, kEps);
    const float* const row = &x.values[static_cast<size_t>(i) * cols];
    for (int j = 0; j < rows; ++j) {
      const double sum = matrix.Sum(j, row) / divisor;
      expected.push_back(sum + before[i * rows + j] + bias[j]);
      tolerance.push_back(matrix.Tolerance(j, row) / divisor +
                          8 * kFloatEpsilon * (std::abs(sum) + 4));
    }
  }
  const std::vector<float> got = y.Read();
  ExpectNear(got, expected, tolerance, "y");
  // The next norm's rows and sums of squares follow from y.
  const std::vector<uint16_t> got_next = next.Read();
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got_next[i], FloatToBF16(got[i] * norm[i % rows])) << "at " << i;
  const std::vector<double> got_squares = next_squares.Read();
  for (int i = 0; i < m; ++i) {
    for (int part = 0; part < parts; ++part) {
      double sum = 0.0;
      for (int j = part * 128; j < std::min(rows, part * 128 + 128); ++j)
        sum += double{got[i * rows + j]} * got[i * rows + j];
      ASSERT_NEAR(got_squares[i * parts + part], sum, 1e-12 * sum);
    }
  }
}

TEST_P(FusedProductsTest, NormsInTwoHalves) {
  for (const DType dtype : kTypes) {
    SCOPED_TRACE(DTypeName(dtype));
    for (const auto& [rows, cols] : {std::pair{64, 256}, {192, 768}}) {
      const Matrix matrix = Make(dtype, rows, cols);
      HYDRANT_SKIP_UNLESS_FUSED(matrix, 1);
      for (const int m : {1, 9, 20, 64}) CheckNorms(matrix, m);
    }
  }
}

// Row groups summed by several blocks; the last block computes the squares.
TEST_P(FusedProductsTest, NormsOfSeveralBlocks) {
  const Matrix matrix = Make(DType::kQ4_K, 320, 2816);
  HYDRANT_SKIP_UNLESS_FUSED(matrix, 1);
  for (int repeat = 0; repeat < 2; ++repeat) CheckNorms(matrix, 9);  // counters were reset
}

double Active(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
}

TEST_P(FusedProductsTest, Gates) {
  for (const DType dtype : kTypes) {
    for (const auto& [rows, cols, most] :
         {std::tuple{64, 256, 64}, {192, 512, 20}, {320, 1536, 1}}) {
      const Matrix matrix = Make(dtype, rows, cols);
      HYDRANT_SKIP_UNLESS_FUSED(matrix, 1);
      const int n = rows / 2;
      for (const int m : {1, 8, 20, 64}) {
        if (m > most) continue;
        const Activation activation = m == 8 ? Activation::kGeluTanh : Activation::kSilu;
        const Rows x = MakeRows(m, cols);
        const std::vector<double> squares = MakeSquares(m, cols);
        auto device_x = Upload(x.bits);
        auto device_squares = Upload(squares);
        auto y = Upload(std::vector<uint16_t>(static_cast<size_t>(m) * n, 0x7FC0));
        backend().Matmul({.x = device_x.data(),
                          .x_dtype = DType::kBF16,
                          .m = m,
                          .weight = matrix.weight.get(),
                          .y_bf16 = y.data(),
                          .x_norm = SplitNorm{.eps = 0.0f, .squares = device_squares.data()},
                          .gate = activation});
        std::vector<double> expected, tolerance;
        for (int i = 0; i < m; ++i) {
          const double divisor = Divisor(squares, i, cols, 0.0f);
          const float* const row = &x.values[static_cast<size_t>(i) * cols];
          for (int j = 0; j < n; ++j) {
            const double gate = matrix.Sum(j, row) / divisor, up = matrix.Sum(j + n, row) / divisor;
            expected.push_back(Active(activation, gate) * up);
            // Both functions have slopes of at most 1.2.
            const double of_sums = 1.2 * std::abs(up) * matrix.Tolerance(j, row) / divisor +
                                   std::abs(gate) * matrix.Tolerance(j + n, row) / divisor;
            tolerance.push_back(kBF16Error * std::abs(expected.back()) + 1.1 * of_sums +
                                1e-6 * std::abs(gate * up));
          }
        }
        std::vector<float> got;
        for (const uint16_t bits : y.Read()) got.push_back(BF16ToFloat(bits));
        ExpectNear(got, expected, tolerance,
                   std::string(DTypeName(dtype)) + " " + std::to_string(m) + " x " +
                       std::to_string(cols) + " x " + std::to_string(rows));
      }
    }
  }
}

struct RotatedCase {
  int num_heads, num_kv_heads, head_dim, rotary_dim;
  bool interleaved;
  int cols, m;
  DType kv_precision = DType::kF32;

  int heads() const { return num_heads + 2 * num_kv_heads; }
  int rows() const { return heads() * head_dim; }
};

// x is divided by its root mean square and projected; queries and keys are rotated, and all three
// are stored, keys and values with gaps between their rows.
void FusedProductsTest::CheckRotation(DType dtype, const RotatedCase& c) {
  constexpr float kEps = 1e-3f, kQueryScale = 1.25f;
  constexpr int kPositions = 40;
  const Matrix matrix = Make(dtype, c.rows(), c.cols);
  ASSERT_TRUE(Fuses(matrix, c.m));
  const Rows x = MakeRows(c.m, c.cols);
  const std::vector<double> squares = MakeSquares(c.m, c.cols);
  const std::vector<float> bias = RandomFloats(c.rows(), random_());
  const int half = c.rotary_dim / 2, row_stride = c.head_dim + 3,
            head_stride = row_stride * (c.m + 2);
  std::vector<int32_t> positions(c.m);
  for (int i = 0; i < c.m; ++i) positions[i] = (i * 7 + 3) % kPositions;
  std::vector<float> cosines, sines;
  for (int i = 0; i < kPositions * half; ++i) {
    const int position = i / half;
    const double angle = position * std::pow(10000.0, -static_cast<double>(i % half) / half);
    cosines.push_back(static_cast<float>(std::cos(angle)));
    sines.push_back(static_cast<float>(std::sin(angle)));
  }
  auto device_x = Upload(x.bits);
  auto device_squares = Upload(squares);
  auto device_bias = Upload(bias), cos = Upload(cosines), sin = Upload(sines);
  auto device_positions = Upload(positions);
  const std::vector<float> untouched(static_cast<size_t>(c.num_kv_heads) * head_stride, -77.0f);
  auto q = Output(static_cast<size_t>(c.m) * c.num_heads * c.head_dim);
  auto k = Upload(untouched), v = Upload(untouched);
  backend().Matmul({.x = device_x.data(),
                    .x_dtype = DType::kBF16,
                    .m = c.m,
                    .weight = matrix.weight.get(),
                    .bias = device_bias.data(),
                    .x_norm = SplitNorm{.eps = kEps, .squares = device_squares.data()},
                    .rope = RopeSplitArgs{.positions = device_positions.data(),
                                          .cos = cos.data(),
                                          .sin = sin.data(),
                                          .m = c.m,
                                          .num_heads = c.num_heads,
                                          .num_kv_heads = c.num_kv_heads,
                                          .head_dim = c.head_dim,
                                          .rotary_dim = c.rotary_dim,
                                          .interleaved = c.interleaved,
                                          .query_scale = kQueryScale,
                                          .q = q.data(),
                                          .k = k.data(),
                                          .v = v.data(),
                                          .kv_row_stride = row_stride,
                                          .kv_head_stride = head_stride,
                                          .kv_precision = c.kv_precision}});
  std::vector<float> queries = q.Read(), keys = k.Read(), values = v.Read();
  const double rounding = c.kv_precision == DType::kF32 ? 0.0 : kBF16Error;
  for (int i = 0; i < c.m; ++i) {
    const double divisor = Divisor(squares, i, c.cols, kEps);
    const float* const row = &x.values[static_cast<size_t>(i) * c.cols];
    for (int head = 0; head < c.heads(); ++head) {
      const bool query = head < c.num_heads, value = head >= c.num_heads + c.num_kv_heads;
      const int kv_head = (head - c.num_heads) % c.num_kv_heads;
      float* const got = query ? &queries[(i * c.num_heads + head) * c.head_dim]
                               : &(value ? values : keys)[kv_head * head_stride + i * row_stride];
      const auto sum = [&](int element) {
        const int j = head * c.head_dim + element;
        return matrix.Sum(j, row) / divisor + bias[j];
      };
      const auto tolerance = [&](int element) {
        const int j = head * c.head_dim + element;
        return matrix.Tolerance(j, row) / divisor +
               8 * kFloatEpsilon * (std::abs(sum(element)) + 4);
      };
      for (int e = 0; e < c.head_dim; ++e) {
        double expected = sum(e), most = tolerance(e);
        if (!value && e < c.rotary_dim) {
          const int pair = c.interleaved ? e / 2 : e % half;
          const bool first = c.interleaved ? e % 2 == 0 : e < half;
          const int other = c.interleaved ? (first ? e + 1 : e - 1) : first ? e + half : e - half;
          const double scale = query ? kQueryScale : 1.0;
          const double angle = positions[i] * std::pow(10000.0, -static_cast<double>(pair) / half);
          expected =
              scale * (sum(e) * std::cos(angle) - (first ? 1 : -1) * sum(other) * std::sin(angle));
          most = scale * (most + tolerance(other));
        }
        if (!query) most += rounding * std::abs(expected);
        ASSERT_NEAR(got[e], expected, most)
            << DTypeName(dtype) << " row " << i << " head " << head << " element " << e;
        if (!query) got[e] = -77.0f;
      }
    }
  }
  EXPECT_EQ(keys, untouched) << "something beside the keys was written";
  EXPECT_EQ(values, untouched);
}

TEST_P(FusedProductsTest, Rotates) {
  HYDRANT_SKIP_UNLESS_FUSED(Make(DType::kBF16, 64, 256), 1);
  for (const DType dtype : kTypes) {
    for (const RotatedCase& c :
         {RotatedCase{2, 1, 32, 32, false, 256, 1},
          RotatedCase{3, 1, 64, 64, false, 512, 20, DType::kBF16},
          RotatedCase{1, 1, 128, 32, true, 256, 9}, RotatedCase{8, 4, 16, 12, false, 768, 64},
          RotatedCase{2, 1, 64, 0, false, 256, 3}}) {
      SCOPED_TRACE("heads of " + std::to_string(c.head_dim));
      CheckRotation(dtype, c);
      if (HasFatalFailure()) return;
    }
  }
}

// With both halves of a norm and a gate: a row has the same bits alone and in a batch.
TEST_P(FusedProductsTest, RowsDoNotDependOnTheBatch) {
  constexpr int kRows = 60, kOutputs = 192, kCols = 768;
  for (const DType dtype : kTypes) {
    const Matrix matrix = Make(dtype, kOutputs, kCols);
    HYDRANT_SKIP_UNLESS_FUSED(matrix, kRows);
    const Rows x = MakeRows(kRows, kCols);
    const std::vector<double> squares = MakeSquares(kRows, kCols);
    const int parts = SplitNorm::Parts(kCols), next_parts = SplitNorm::Parts(kOutputs);
    auto device_x = Upload(x.bits);
    auto device_squares = Upload(squares);
    auto norm = Upload(RandomFloats(kOutputs, 3));
    struct Results {
      std::vector<float> y;
      std::vector<uint16_t> next, gated;
      std::vector<double> squares;
    };
    const auto run = [&](int first, int m) {
      auto y = Output(static_cast<size_t>(m) * kOutputs);
      auto next = Upload(std::vector<uint16_t>(y.size()));
      auto gated = Upload(std::vector<uint16_t>(y.size() / 2));
      auto next_squares = Upload(std::vector<double>(static_cast<size_t>(m) * next_parts));
      MatmulArgs args = {
          .x = device_x.data() + first * kCols,
          .x_dtype = DType::kBF16,
          .m = m,
          .weight = matrix.weight.get(),
          .y = y.data(),
          .x_norm = SplitNorm{.squares = device_squares.data() + first * parts},
          .y_norm = SplitNorm{
              .weight = norm.data(), .rows = next.data(), .squares = next_squares.data()}};
      backend().Matmul(args);
      args.y = nullptr;
      args.y_norm.reset();
      args.y_bf16 = gated.data();
      args.gate = Activation::kSilu;
      backend().Matmul(args);
      return Results{y.Read(), next.Read(), gated.Read(), next_squares.Read()};
    };
    const Results all = run(0, kRows);
    const auto same = [&](const auto& some, const auto& of_all, int first, int width) {
      return std::memcmp(some.data(), &of_all[first * width], some.size() * sizeof(some[0])) == 0;
    };
    for (const int m : {1, 13, 30}) {
      for (const int first : {0, kRows - m}) {
        const Results some = run(first, m);
        EXPECT_TRUE(same(some.y, all.y, first, kOutputs)) << DTypeName(dtype) << " " << m;
        EXPECT_TRUE(same(some.next, all.next, first, kOutputs)) << DTypeName(dtype) << " " << m;
        EXPECT_TRUE(same(some.gated, all.gated, first, kOutputs / 2)) << DTypeName(dtype);
        EXPECT_TRUE(same(some.squares, all.squares, first, next_parts)) << DTypeName(dtype);
      }
    }
  }
}

// The products of a feed-forward in sequence, each reading the previous one's output: the same
// result as with a host wait after each.
TEST_P(FusedProductsTest, ChainsOfProducts) {
  constexpr int kRows = 9, kWidth = 320, kInner = 1408;
  const Matrix out = Make(DType::kQ8_0, kWidth, 512),
               gate_up = Make(DType::kQ8_0, 2 * kInner, kWidth),
               down = Make(DType::kQ8_0, kWidth, kInner);
  HYDRANT_SKIP_UNLESS_FUSED(out, kRows);
  const Rows x = MakeRows(kRows, 512);
  const std::vector<float> before = RandomFloats(size_t{kRows} * kWidth, 9);
  auto device_x = Upload(x.bits);
  auto norm = Upload(RandomFloats(kWidth, 3));
  const auto run = [&](bool waits) {
    auto hidden = Upload(before);
    auto normed = Upload(std::vector<uint16_t>(hidden.size()));
    auto gated = Upload(std::vector<uint16_t>(size_t{kRows} * kInner));
    auto squares = Upload(std::vector<double>(size_t{kRows} * SplitNorm::Parts(kWidth)));
    const SplitNorm half = {
        .weight = norm.data(), .rows = normed.data(), .squares = squares.data()};
    const auto multiply = [&](const MatmulArgs& args) {
      backend().Matmul(args);
      if (!waits) return;
      EXPECT_TRUE(backend().Synchronize().ok());
    };
    for (int repeat = 0; repeat < 2; ++repeat) {
      multiply({.x = device_x.data(),
                .x_dtype = DType::kBF16,
                .m = kRows,
                .weight = out.weight.get(),
                .y = hidden.data(),
                .accumulate = true,
                .y_norm = half});
      multiply({.x = normed.data(),
                .x_dtype = DType::kBF16,
                .m = kRows,
                .weight = gate_up.weight.get(),
                .y_bf16 = gated.data(),
                .x_norm = half,
                .gate = Activation::kSilu});
      multiply({.x = gated.data(),
                .x_dtype = DType::kBF16,
                .m = kRows,
                .weight = down.weight.get(),
                .y = hidden.data(),
                .accumulate = true});
    }
    EXPECT_TRUE(backend().Synchronize().ok()) << backend().Synchronize();
    return hidden.Read();
  };
  EXPECT_EQ(run(false), run(true));
}

// Without any fusion a product of few rows uses the same kernel.
TEST_P(FusedProductsTest, PlainProductsInBF16) {
  for (const int rows : {64, 320}) {
    const Matrix matrix = Make(DType::kBF16, rows, 776);
    HYDRANT_SKIP_UNLESS_FUSED(matrix, 1);
    for (const int m : {1, 33}) {
      const Rows x = MakeRows(m, matrix.cols);
      auto device_x = Upload(x.bits);
      auto y = Upload(std::vector<uint16_t>(static_cast<size_t>(m) * rows, 0x7FC0));
      backend().Matmul({.x = device_x.data(),
                        .x_dtype = DType::kBF16,
                        .m = m,
                        .weight = matrix.weight.get(),
                        .y_bf16 = y.data()});
      std::vector<double> expected, tolerance;
      for (int i = 0; i < m; ++i) {
        const float* const row = &x.values[static_cast<size_t>(i) * matrix.cols];
        for (int j = 0; j < rows; ++j) {
          expected.push_back(matrix.Sum(j, row));
          tolerance.push_back(kBF16Error * std::abs(expected.back()) +
                              1.1 * matrix.Tolerance(j, row));
        }
      }
      std::vector<float> got;
      for (const uint16_t bits : y.Read()) got.push_back(BF16ToFloat(bits));
      ExpectNear(got, expected, tolerance, std::to_string(m) + " rows");
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(FusedProductsTest);

}  // namespace
}  // namespace hydrant
