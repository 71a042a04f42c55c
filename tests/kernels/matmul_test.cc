// The cpu backend's Matmul, Embed and PackWeight against a double-precision loop over
// scalar-dequantized weights (kernels/dequantize.h, itself tested against the gguf package's
// values). Outputs start as NaN and lie between guards.
#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/matmul/matmul_kernels.h"
#include "kernels/cpu/matmul/matmul_weight.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/quantize.h"
#include "tests/kernels/random_rows.h"

namespace hydrant::cpu {
namespace {

constexpr uint32_t kSeed = 20240917;
constexpr DType kAllDTypes[] = {
    DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ4_0,  DType::kQ4_1,   DType::kQ5_0,
    DType::kQ5_1, DType::kQ8_0,   DType::kQ4_K,   DType::kQ5_K,  DType::kQ6_K,   DType::kQ2_K,
    DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kF8_E4M3};
constexpr WeightDType kAllWeightDTypes[] = {WeightDType::kFloat32, WeightDType::kBFloat16,
                                            WeightDType::kStored};
constexpr WeightDType kQuantising[] = {WeightDType::kQ8_0, WeightDType::kQ4_0, WeightDType::kFp8};

std::string NameOf(WeightDType dtype) {
  switch (dtype) {
    case WeightDType::kFloat32:
      return "float32";
    case WeightDType::kBFloat16:
      return "bfloat16";
    case WeightDType::kStored:
      return "stored";
    case WeightDType::kQ8_0:
      return "q8_0";
    case WeightDType::kQ4_0:
      return "q4_0";
    case WeightDType::kFp8:
      return "fp8";
  }
  return "?";
}

// A stacked weight in file format and as floats.
struct TestWeight {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<WeightPart> parts;
  int rows = 0;
  int cols = 0;
  std::vector<float> values;  // [rows, cols], dequantised

  void Add(DType dtype, int part_rows, std::mt19937& random) {
    bytes.push_back(RandomRows(dtype, part_rows, cols, random));
    parts.push_back({dtype, bytes.back().data(), part_rows, cols});
    values.resize(static_cast<size_t>(rows + part_rows) * cols);
    DequantizeRow(dtype, bytes.back().data(), static_cast<int64_t>(part_rows) * cols,
                  values.data() + static_cast<size_t>(rows) * cols);
    rows += part_rows;
  }
};

TestWeight MakeWeight(DType dtype, int rows, int cols, std::mt19937& random) {
  TestWeight weight;
  weight.cols = cols;
  weight.Add(dtype, rows, random);
  return weight;
}

std::unique_ptr<Weight> Pack(const TestWeight& weight, WeightDType dtype, ThreadPool& pool) {
  absl::StatusOr<std::unique_ptr<Weight>> packed = PackWeight(weight.parts, dtype, false, pool);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return packed.ok() ? *std::move(packed) : nullptr;
}

std::vector<float> RandomActivations(int m, int cols, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(m) * cols);
  for (float& value : x) {
    value = normal(random);
    if (random() % 200 == 0) value *= 40.0f;  // outliers as in real activations
  }
  return x;
}

// y between guards; initially all NaN.
class Output {
 public:
  Output(int m, int rows)
      : size_(static_cast<size_t>(m) * rows), values_(size_ + 2 * kGuard, kPoison) {}
  float* data() { return values_.data() + kGuard; }
  float operator[](size_t i) const { return values_[kGuard + i]; }
  size_t size() const { return size_; }
  bool GuardsIntact() const {
    const auto poisoned = [](float v) { return std::isnan(v); };
    return std::all_of(values_.begin(), values_.begin() + kGuard, poisoned) &&
           std::all_of(values_.end() - kGuard, values_.end(), poisoned);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  size_t size_;
  std::vector<float> values_;
};

// Whether blocks are multiplied as integers (kBlocks) instead of being widened.
bool MultipliesBlocks(DType dtype) { return BlockElements(dtype) > 1 && dtype != DType::kF8_E4M3; }

// Error bound of an output, relative to sum |x| |w| over the columns, or to sum (largest |x| of the
// block) |w|.
//   fp32 sums in order: each of the `cols` additions errs by 2^-24 of the partial sum.
//   kStored blocks: half a step of 8-bit activations, 1 / (2 * 127) of the block's largest;
//   batch-invariant: of 16-bit ones, 1 / (2 * 32639).
//   (From 96 rows on weights may be rounded, too: ManyRowsTolerance.)
//   (With AMX both are rounded to bf16 from 24 rows on, with a third more error on weights:
//   TakesBf16.)
//   kBFloat16: 2^-8 of x if the units round it (the weights' own rounding is in the reference).
double Tolerance(WeightDType dtype, bool blocks, bool eight_bits, int cols, double sum_abs,
                 double sum_peak) {
  const double fp32 = std::ldexp(1.0, -24) * (cols + 4);
  double bound = fp32 * sum_abs + 1e-30;
  if (dtype == WeightDType::kStored && blocks)
    bound += sum_peak / (2 * (eight_bits ? 127.0 : 32639.0)) + std::ldexp(8.0, -24) * sum_peak;
  if (dtype == WeightDType::kBFloat16 && DetectIsa() >= Isa::kAvx512Bf16)
    bound += std::ldexp(1.0, -8) * sum_abs;
  return bound;
}

bool TakesBf16(int m, bool batch_invariant) {
  return m >= 24 && !batch_invariant && DetectIsa() == Isa::kAmx;
}

bool TakesEightBits(int m, bool batch_invariant) {
  return !batch_invariant && !TakesBf16(m, batch_invariant);
}

bool TakesManyRows(int m, bool batch_invariant) {
  return m >= 96 && TakesEightBits(m, batch_invariant) && HasVnni();
}

// Error bound of a product of many rows: half a step of each operand, and slightly more for the
// weights' integers of 1 / 256. A block's peak may be overestimated. A block's step of x is its
// row's, halved as often as its values allow, at most 16 times.
double ManyRowsTolerance(const float* x, const float* w, int cols) {
  constexpr int kLength = 32;
  double bound = 0, row_peak = 0;
  for (int k = 0; k < cols; ++k) row_peak = std::max(row_peak, std::abs(double{x[k]}));
  if (row_peak == 0) return 0;
  for (int begin = 0; begin < cols; begin += kLength) {
    const int end = std::min(begin + kLength, cols);
    double x_peak = 0, w_peak = 0, x_sum = 0, w_sum = 0;
    for (int k = begin; k < end; ++k) {
      x_peak = std::max(x_peak, std::abs(double{x[k]}));
      w_peak = std::max(w_peak, 1.25 * std::abs(w[k]));
      x_sum += std::abs(x[k]);
      w_sum += std::abs(w[k]);
    }
    const double halvings =
        x_peak > 0 ? std::min(std::floor(std::log2(row_peak / x_peak)), 16.0) : 16.0;
    const double x_step = std::exp2(-halvings) * row_peak / 127, w_step = w_peak / 127;
    bound += 0.51 * x_step * w_sum + 0.6 * w_step * (x_sum + x_step * (end - begin));
  }
  return bound;
}

struct Worst {
  double ratio = 0;  // error / tolerance
  double error = 0;  // error / sum |x| |w|
  int row = -1;
  int col = -1;
};

// Compares every output with the double-precision loop. With many rows of x only some are checked,
// always including the last.
Worst Compare(const TestWeight& weight, WeightDType dtype, const std::vector<float>& x, int m,
              const Output& y, float start, bool batch_invariant = false) {
  Worst worst;
  const bool blocks = MultipliesBlocks(weight.parts[0].dtype);
  const int stride = m <= 8 ? 1 : m / 5;
  for (int i = 0; i < m; i = i == m - 1 ? m : std::min(i + stride, m - 1)) {
    const float* row = x.data() + static_cast<size_t>(i) * weight.cols;
    std::vector<double> peak(weight.cols, 0.0);
    for (int k = 0; k < weight.cols; ++k) {
      peak[k / 32] = std::max(peak[k / 32], std::abs(static_cast<double>(row[k])));
    }
    for (int j = 0; j < weight.rows; ++j) {
      double sum = start, sum_abs = std::abs(start), sum_peak = 0;
      for (int k = 0; k < weight.cols; ++k) {
        float w = weight.values[static_cast<size_t>(j) * weight.cols + k];
        if (dtype == WeightDType::kBFloat16) w = BF16ToFloat(FloatToBF16(w));
        sum += static_cast<double>(row[k]) * w;
        sum_abs += std::abs(static_cast<double>(row[k]) * w);
        sum_peak += peak[k / 32] * std::abs(w);
      }
      // A weight with a minimum is the sum of two products, each possibly larger than the weight.
      const double scale = blocks ? 8.0 : 1.0;
      const double error = std::abs(y[static_cast<size_t>(i) * weight.rows + j] - sum);
      double tolerance = Tolerance(dtype, blocks, TakesEightBits(m, batch_invariant), weight.cols,
                                   scale * sum_abs, sum_peak);
      if (dtype == WeightDType::kStored && blocks && TakesManyRows(m, batch_invariant)) {
        tolerance += ManyRowsTolerance(row, &weight.values[static_cast<size_t>(j) * weight.cols],
                                       weight.cols);
      }
      if (dtype == WeightDType::kStored && blocks && TakesBf16(m, batch_invariant))
        tolerance += std::ldexp(1.0 + 1.31 + 0.02, -8) * sum_abs;
      const double ratio = error / tolerance;
      if (!(ratio <= worst.ratio)) worst = {ratio, error / sum_abs, i, j};
    }
  }
  return worst;
}

struct Case {
  WeightDType weight_dtype;
  DType dtype;
};

class MatmulTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(CheckIsa().ok());
    std::cout << "seed " << kSeed << ", " << IsaName(DetectIsa()) << std::endl;
  }
  int SmallestCols() const { return BlockElements(GetParam().dtype); }

  std::mt19937 random_{kSeed};
  ThreadPool pool_{2};
};

TEST_P(MatmulTest, EqualsTheDoubleLoop) {
  const auto [weight_dtype, dtype] = GetParam();
  std::vector<int> all_cols = {SmallestCols(), 3 * SmallestCols(), 576};
  if (SmallestCols() == 1) all_cols = {1, 2, 31, 33, 77, 576};
  if (SmallestCols() >= 128) all_cols = {SmallestCols(), 768};
  Worst worst;
  for (int cols : all_cols) {
    for (int rows : {1, 15, 16, 17, 50, 97}) {
      const TestWeight weight = MakeWeight(dtype, rows, cols, random_);
      const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
      ASSERT_NE(packed, nullptr);
      ASSERT_EQ(packed->rows(), rows);
      ASSERT_EQ(packed->cols(), cols);
      for (int m : {1, 2, 3, 5, 8, 16, 17, 18, 35, 64, 100, 257}) {
        const std::vector<float> x = RandomActivations(m, cols, random_);
        const bool invariant = random_() % 2 == 0;
        Output y(m, rows);
        Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = false},
               invariant, pool_);
        const Worst here = Compare(weight, weight_dtype, x, m, y, 0.0f, invariant);
        ASSERT_LE(here.ratio, 1.0)
            << m << " x " << cols << " x " << rows << ": worst at row " << here.row << ", column "
            << here.col << ", error " << here.error << " of sum |x||w|";
        ASSERT_TRUE(y.GuardsIntact()) << m << " x " << cols << " x " << rows;
        if (here.error > worst.error) worst = here;
      }
    }
  }
  std::cout << "worst error " << worst.error << " of sum |x||w|, " << worst.ratio
            << " of the tolerance" << std::endl;
}

TEST_P(MatmulTest, Accumulates) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(64, SmallestCols());
  const TestWeight weight = MakeWeight(dtype, 37, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  for (int m : {1, 7, 20, 70}) {
    const std::vector<float> x = RandomActivations(m, cols, random_);
    Output y(m, weight.rows);
    std::fill(y.data(), y.data() + y.size(), 0.75f);
    Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = true},
           false, pool_);
    const Worst worst = Compare(weight, weight_dtype, x, m, y, 0.75f);
    EXPECT_LE(worst.ratio, 1.0) << m << " rows, worst at " << worst.row << ", " << worst.col;
    EXPECT_TRUE(y.GuardsIntact());
  }
}

// Enough rows that each thread takes its own, and enough columns that sums are made in pieces, with
// a partial last panel.
TEST_P(MatmulTest, ManyRowsOfManyColumns) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = (1312 + SmallestCols() - 1) / SmallestCols() * SmallestCols();
  const TestWeight weight = MakeWeight(dtype, 70, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  ThreadPool three(3);
  for (int m : {290, 701}) {
    const bool accumulate = m == 290;
    const float start = accumulate ? 0.75f : 0.0f;
    const std::vector<float> x = RandomActivations(m, cols, random_);
    Output two_threads(m, weight.rows), three_threads(m, weight.rows);
    for (Output* y : {&two_threads, &three_threads}) {
      if (accumulate) std::fill(y->data(), y->data() + y->size(), start);
      Matmul(
          {.x = x.data(), .m = m, .weight = packed.get(), .y = y->data(), .accumulate = accumulate},
          false, y == &two_threads ? pool_ : three);
      EXPECT_TRUE(y->GuardsIntact());
    }
    const Worst worst = Compare(weight, weight_dtype, x, m, two_threads, start);
    EXPECT_LE(worst.ratio, 1.0) << m << " rows, worst at " << worst.row << ", " << worst.col;
    EXPECT_EQ(
        std::memcmp(two_threads.data(), three_threads.data(), two_threads.size() * sizeof(float)),
        0);
  }
}

// A row has the same bits alone, in any batch, at any place, with any number of threads.
TEST_P(MatmulTest, RowsDoNotDependOnTheBatchOrTheThreads) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(576 / SmallestCols(), 1) * SmallestCols();
  const TestWeight weight = MakeWeight(dtype, 83, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  constexpr int kLimit = 100;
  const std::vector<float> x = RandomActivations(kLimit, cols, random_);
  std::vector<float> alone(static_cast<size_t>(kLimit) * weight.rows);
  ThreadPool single(1);
  for (int i = 0; i < kLimit; ++i) {
    Matmul({.x = x.data() + static_cast<size_t>(i) * cols,
            .m = 1,
            .weight = packed.get(),
            .y = alone.data() + static_cast<size_t>(i) * weight.rows,
            .accumulate = false},
           true, single);
  }
  ThreadPool three(3);
  for (int m : {2, 3, 5, 6, 7, 8, 9, 13, 16, 23, 33, 100}) {
    for (int first : {0, std::min(kLimit - m, 11)}) {
      Output y(m, weight.rows);
      Matmul({.x = x.data() + static_cast<size_t>(first) * cols,
              .m = m,
              .weight = packed.get(),
              .y = y.data(),
              .accumulate = false},
             true, m % 2 ? pool_ : three);
      ASSERT_EQ(std::memcmp(y.data(), alone.data() + static_cast<size_t>(first) * weight.rows,
                            y.size() * sizeof(float)),
                0)
          << "rows " << first << " to " << first + m;
    }
  }
}

// The same for rows multiplied in 8 bits: up to the start of many-row products.
TEST_P(MatmulTest, RowsInEightBitsDoNotDependOnTheBatch) {
  const auto [weight_dtype, dtype] = GetParam();
  for (const int wanted : {96, 576, 1280}) {
    const int cols = std::max(wanted / SmallestCols(), 1) * SmallestCols();
    const TestWeight weight = MakeWeight(dtype, 83, cols, random_);
    const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
    constexpr int kLimit = 23;
    const std::vector<float> x = RandomActivations(kLimit, cols, random_);
    const auto multiply = [&](int first, int m, ThreadPool& pool) {
      Output y(m, weight.rows);
      Matmul({.x = x.data() + static_cast<size_t>(first) * cols,
              .m = m,
              .weight = packed.get(),
              .y = y.data()},
             false, pool);
      return std::vector<float>(y.data(), y.data() + y.size());
    };
    std::vector<float> alone;
    for (int i = 0; i < kLimit; ++i) {
      const std::vector<float> row = multiply(i, 1, pool_);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    ThreadPool three(3);
    for (const int m : {2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16, 17, 20, 23}) {
      const std::vector<float> rows = multiply(0, m, m % 2 ? pool_ : three);
      ASSERT_EQ(std::memcmp(rows.data(), alone.data(), rows.size() * sizeof(float)), 0)
          << m << " rows of " << cols << " columns";
    }
  }
}

// The same for many rows, where whole tiles are rounded together and remaining rows alone.
TEST_P(MatmulTest, ManyRowsDoNotDependOnTheirPlace) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(96 / SmallestCols(), 1) * SmallestCols();
  const TestWeight weight = MakeWeight(dtype, 40, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  constexpr int kMany = 112, kFirst = 5, kPart = 101;
  const std::vector<float> x = RandomActivations(kMany, cols, random_);
  Output whole(kMany, weight.rows), part(kPart, weight.rows);
  Matmul({.x = x.data(), .m = kMany, .weight = packed.get(), .y = whole.data()}, false, pool_);
  Matmul(
      {.x = x.data() + size_t{kFirst} * cols, .m = kPart, .weight = packed.get(), .y = part.data()},
      false, pool_);
  EXPECT_EQ(std::memcmp(part.data(), whole.data() + size_t{kFirst} * weight.rows,
                        part.size() * sizeof(float)),
            0);
}

// Blocks of a row that are zero or far smaller than others: in activations, and in weights.
TEST_P(MatmulTest, BlocksOfVeryDifferentMagnitudes) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(512 / SmallestCols(), 1) * SmallestCols();
  TestWeight weight = MakeWeight(dtype, 40, cols, random_);
  if (MultipliesBlocks(dtype)) {
    // The first row is all zero; in the second every other block of the file is zero.
    const size_t bytes = TraitsOf(dtype).block_bytes;
    const size_t row_bytes = weight.bytes[0].size() / weight.rows;
    std::fill_n(weight.bytes[0].begin(), row_bytes, 0);
    for (size_t at = 0; at < row_bytes; at += 2 * bytes)
      std::fill_n(weight.bytes[0].begin() + static_cast<ptrdiff_t>(row_bytes + at), bytes, 0);
    DequantizeRow(dtype, weight.bytes[0].data(), static_cast<int64_t>(weight.rows) * cols,
                  weight.values.data());
  }
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  for (const int m : {4, 40, 100}) {
    std::vector<float> x = RandomActivations(m, cols, random_);
    constexpr float kFactors[] = {1.0f, 0.0f, 1e-3f, 0x1p-16f, 1e-9f, 1e3f, 1e-30f};
    for (size_t i = 0; i < x.size(); ++i) x[i] *= kFactors[i / 32 % std::size(kFactors)];
    Output y(m, weight.rows);
    Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data()}, false, pool_);
    const Worst worst = Compare(weight, weight_dtype, x, m, y, 0.0f);
    EXPECT_LE(worst.ratio, 1.0) << m << " rows: " << worst.row << ", " << worst.col;
  }
}

// Rounding does not bias the outputs: on average they neither grow nor shrink.
TEST_P(MatmulTest, RoundingIsUnbiased) {
  const auto [weight_dtype, dtype] = GetParam();
  constexpr int kRows = 192, kM = 32, kCols = 768;
  const TestWeight weight = MakeWeight(dtype, kRows, kCols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  ASSERT_NE(packed, nullptr);
  std::vector<float> x(static_cast<size_t>(kM) * kCols);
  for (float& value : x) value = random_() % 2 == 0 ? 1.0f : -1.0f;
  Output y(kM, kRows);
  Matmul({.x = x.data(), .m = kM, .weight = packed.get(), .y = y.data()}, false, pool_);
  double product = 0, square = 0;
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kRows; ++j) {
      double sum = 0;
      for (int k = 0; k < kCols; ++k)
        sum += double{x[static_cast<size_t>(i) * kCols + k]} *
               weight.values[static_cast<size_t>(j) * kCols + k];
      product += sum * y[static_cast<size_t>(i) * kRows + j];
      square += sum * sum;
    }
  }
  EXPECT_NEAR(product / square, 1.0, 3e-4);
}

// Enough values for several threads to round, in too few rows to divide by rows: the same bits as
// in smaller products.
TEST_P(MatmulTest, FewRowsMayBeRoundedByManyThreads) {
  const auto [weight_dtype, dtype] = GetParam();
  constexpr int kCols = 1536, kRows = 20, kPart = 10;  // a part is rounded by one thread
  const TestWeight weight = MakeWeight(dtype, 40, kCols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  const std::vector<float> x = RandomActivations(kRows, kCols, random_);
  ThreadPool three(3);
  for (const bool batch_invariant : {false, true}) {
    Output whole(kRows, weight.rows), parts(kRows, weight.rows);
    Matmul({.x = x.data(), .m = kRows, .weight = packed.get(), .y = whole.data()}, batch_invariant,
           three);
    for (int first = 0; first < kRows; first += kPart) {
      Matmul({.x = x.data() + static_cast<size_t>(first) * kCols,
              .m = kPart,
              .weight = packed.get(),
              .y = parts.data() + static_cast<size_t>(first) * weight.rows},
             batch_invariant, pool_);
    }
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
        << "batch_invariant " << batch_invariant;
  }
}

TEST_P(MatmulTest, EmbedIsExact) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(3 * SmallestCols(), SmallestCols() == 1 ? 45 : 96);
  const TestWeight weight = MakeWeight(dtype, 53, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  const std::vector<uint32_t> ids = {52, 0, 15, 16, 17, 31, 52, 7, 48, 47, 3};
  std::vector<float> out(ids.size() * cols, std::numeric_limits<float>::quiet_NaN());
  Embed({.ids = ids.data(),
         .m = static_cast<int>(ids.size()),
         .table = packed.get(),
         .out = out.data()},
        pool_);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (int k = 0; k < cols; ++k) {
      float want = weight.values[static_cast<size_t>(ids[i]) * cols + k];
      if (weight_dtype == WeightDType::kBFloat16) want = BF16ToFloat(FloatToBF16(want));
      ASSERT_EQ(out[i * cols + k], want) << "id " << ids[i] << ", column " << k;
    }
  }
}

// A fault in one row stays in that row and is visible. (With enough rows for each kernel.)
TEST_P(MatmulTest, NonFiniteActivationsSpoilTheirRowOnly) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(64, SmallestCols());
  const TestWeight weight = MakeWeight(dtype, 20, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  for (int m : {3, 19, 40, 100}) {
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = RandomActivations(m, cols, random_);
      x[cols + 5] = bad;
      Output y(m, weight.rows);
      Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = false},
             false, pool_);
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < weight.rows; ++j) {
          if (i == 1 && weight.values[static_cast<size_t>(j) * cols + 5] == 0.0f) continue;
          ASSERT_EQ(std::isfinite(y[static_cast<size_t>(i) * weight.rows + j]), i != 1)
              << i << ", " << j;
        }
      }
    }
  }
}

TEST_P(MatmulTest, ZeroAndTinyActivations) {
  const auto [weight_dtype, dtype] = GetParam();
  const int cols = std::max(64, SmallestCols());
  const TestWeight weight = MakeWeight(dtype, 20, cols, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  for (int m : {9, 40, 100}) {
    for (float value : {0.0f, 1e-38f, 1e-44f}) {
      const std::vector<float> x(m * static_cast<size_t>(cols), value);
      Output y(m, weight.rows);
      Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = false},
             false, pool_);
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_LE(std::abs(y[i]), 1e-30f * cols) << i << " of x = " << value;
    }
  }
}

// Keeps the scales and fills all quants with `fill`.
void FillQuants(DType dtype, uint8_t fill, TestWeight* weight) {
  std::vector<uint8_t>& bytes = weight->bytes[0];
  for (size_t block = 0; block < bytes.size(); block += TraitsOf(dtype).block_bytes) {
    std::vector<int> kept;
    if (dtype == DType::kMXFP4) kept = {0};
    for (const int offset : ScaleOffsets(dtype)) kept.insert(kept.end(), {offset, offset + 1});
    for (int i = 0; i < static_cast<int>(TraitsOf(dtype).block_bytes); ++i) {
      if (std::find(kept.begin(), kept.end(), i) == kept.end()) bytes[block + i] = fill;
    }
  }
  DequantizeRow(dtype, bytes.data(), static_cast<int64_t>(weight->rows) * weight->cols,
                weight->values.data());
}

// Sums of the largest bytes of both sides do not saturate registers, which would be a large error.
TEST_P(MatmulTest, TheLargestBytesDoNotSaturate) {
  const auto [weight_dtype, dtype] = GetParam();
  if (!MultipliesBlocks(dtype)) GTEST_SKIP() << "no blocks";
  const int cols = std::max(64, SmallestCols());
  TestWeight weight = MakeWeight(dtype, 20, cols, random_);
  constexpr uint8_t kFills[] = {0x00, 0x7f, 0x80, 0xff};
  std::vector<double> peaks(weight.rows);
  for (const uint8_t fill : kFills) {
    FillQuants(dtype, fill, &weight);
    for (size_t i = 0; i < weight.values.size(); ++i)
      peaks[i / cols] = std::max(peaks[i / cols], std::abs(double{weight.values[i]}));
  }
  for (const uint8_t fill : kFills) {
    FillQuants(dtype, fill, &weight);
    const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
    for (const int m : {4, 16, 100}) {
      for (const float value : {-1.0f, 1.0f}) {
        const std::vector<float> x(static_cast<size_t>(m) * cols, value);
        Output y(m, weight.rows);
        Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = false},
               false, pool_);
        for (int j = 0; j < weight.rows; ++j) {
          const auto row = weight.values.begin() + static_cast<ptrdiff_t>(j) * cols;
          const double sum = value * std::accumulate(row, row + cols, 0.0);
          EXPECT_NEAR(y[static_cast<size_t>(m - 1) * weight.rows + j], sum, 0.01 * cols * peaks[j])
              << "bytes " << int{fill} << ", " << m << " rows of " << value;
        }
      }
    }
  }
}

// The base block kernels (AVX2, NEON), run directly over all panels and rows.
std::vector<float> BaseBlocks(const PackedWeight& weight, const std::vector<float>& x, int m) {
  const int cols = weight.cols();
  const size_t blocks =
      static_cast<size_t>((m + kTileRows - 1) / kTileRows) * (cols / kBlock) * kTileRows;
  std::vector<uint8_t> quants(blocks * 64);
  std::vector<float> scales(blocks), sums(blocks), y(static_cast<size_t>(m) * weight.rows());
  std::vector<int32_t> half_sums(blocks * 2);
  std::vector<float> scaled_half_sums(blocks * 2);
  const Segment& segment = weight.segments().front();
  PanelArgs args{};
  args.dtype = segment.dtype;
  args.panels = segment.panels.get();
  args.panel_bytes = segment.panel_bytes;
  args.rows = segment.rows;
  args.cols = cols;
  args.end_panel = segment.NumPanels();
  args.quantized = {quants.data(), scales.data(), sums.data(), half_sums.data(),
                    scaled_half_sums.data()};
  args.end_row = m;
  args.y = y.data();
  args.y_stride = weight.rows();
  MatmulKernelsBase().quantize(x.data(), cols, {0, m, 0, cols / kBlock}, args.quantized);
  MatmulKernelsBase().blocks(args);
  return y;
}

// kStored blocks give the same sums, bit for bit, with every instruction set.
TEST_P(MatmulTest, BlocksHaveTheBitsOfTheBase) {
  const auto [weight_dtype, dtype] = GetParam();
  if (weight_dtype != WeightDType::kStored || !MultipliesBlocks(dtype)) return;
  const TestWeight weight = MakeWeight(dtype, 61, 768, random_);
  const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool_);
  for (int m : {1, 3, 6, 8, 14, 16, 37}) {
    const std::vector<float> x = RandomActivations(m, weight.cols, random_);
    Output y(m, weight.rows);
    Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = false},
           true, pool_);
    const std::vector<float> want = BaseBlocks(static_cast<const PackedWeight&>(*packed), x, m);
    EXPECT_EQ(std::memcmp(y.data(), want.data(), y.size() * sizeof(float)), 0) << m << " rows";
  }
}

// Quantizing while packing gives the same bits as packing those blocks.
TEST_P(MatmulTest, QuantisedRowsAreTheirBlocks) {
  const auto [weight_dtype, dtype] = GetParam();
  if (weight_dtype != WeightDType::kStored) return;
  const int cols = std::max(128, SmallestCols());
  const TestWeight weight = MakeWeight(dtype, 37, cols, random_);
  for (const WeightDType quantising : kQuantising) {
    const DType kept = KeptDType(dtype, quantising, cols);
    std::vector<uint8_t> blocks = weight.bytes[0];
    if (kept != dtype) {
      blocks.resize(BytesOf(kept, weight.values.size()));
      QuantizeRow(kept, weight.values.data(), static_cast<int64_t>(weight.values.size()),
                  blocks.data());
    }
    const WeightPart part = {kept, blocks.data(), 37, cols};
    const auto want = PackWeight({&part, 1}, WeightDType::kStored, false, pool_);
    const std::unique_ptr<Weight> got = Pack(weight, quantising, pool_);
    ASSERT_TRUE(want.ok());
    EXPECT_EQ(got->bytes(), (*want)->bytes());
    const auto& panels = static_cast<const PackedWeight&>(*got).segments()[0];
    const auto& wanted = static_cast<const PackedWeight&>(**want).segments()[0];
    EXPECT_EQ(panels.dtype, kept);
    EXPECT_EQ(std::memcmp(panels.panels.get(), wanted.panels.get(), got->bytes()), 0);
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (WeightDType weight_dtype : kAllWeightDTypes) {
    for (DType dtype : kAllDTypes) cases.push_back({weight_dtype, dtype});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Weights, MatmulTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  return NameOf(info.param.weight_dtype) + "_" + std::string(DTypeName(info.param.dtype));
});

// Values exact in bf16 are multiplied without rounding.
TEST(MatmulBf16, ExactNumbersStayExact) {
  constexpr int kRows = 48, kM = 40, kCols = 96, kBlocks = kRows * kCols / 32;
  if (!TakesBf16(kM, false)) GTEST_SKIP() << "this machine rounds otherwise";
  std::mt19937 random(kSeed);
  std::vector<uint8_t> bytes(BytesOf(DType::kQ8_0, kRows * kCols));
  std::vector<float> w(kRows * kCols);
  for (int block = 0; block < kBlocks; ++block) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random() % 4) - 2);
    const uint16_t half = FloatToF16(scale);
    std::memcpy(&bytes[block * 34], &half, sizeof(half));
    for (int i = 0; i < 32; ++i) {
      const auto quant = static_cast<int8_t>(random());
      std::memcpy(&bytes[block * 34 + 2 + i], &quant, 1);
      w[block * 32 + i] = scale * static_cast<float>(quant);
    }
  }
  ThreadPool pool(2);
  const WeightPart part = {DType::kQ8_0, bytes.data(), kRows, kCols};
  const auto packed = PackWeight({&part, 1}, WeightDType::kStored, false, pool);
  ASSERT_TRUE(packed.ok());
  std::vector<float> x(kM * kCols);
  for (float& value : x) value = static_cast<float>(static_cast<int>(random() % 129) - 64);
  Output y(kM, kRows);
  Matmul({.x = x.data(), .m = kM, .weight = packed->get(), .y = y.data()}, false, pool);
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kRows; ++j) {
      double sum = 0;
      for (int k = 0; k < kCols; ++k) sum += double{x[i * kCols + k]} * w[j * kCols + k];
      ASSERT_EQ(y[i * kRows + j], sum) << i << ", " << j;
    }
  }
}

TEST(MatmulStacked, PartsOfDifferentTypesKeepTheirOrder) {
  std::mt19937 random(kSeed);
  ThreadPool pool(2);
  TestWeight weight;
  weight.cols = 512;
  const std::pair<DType, int> parts[] = {
      {DType::kQ4_K, 40}, {DType::kQ4_K, 13}, {DType::kQ6_K, 21},    {DType::kF32, 5},
      {DType::kQ8_0, 33}, {DType::kQ4_1, 1},  {DType::kF8_E4M3, 17}, {DType::kQ2_K, 3}};
  for (const auto& [dtype, rows] : parts) weight.Add(dtype, rows, random);
  for (WeightDType weight_dtype : kAllWeightDTypes) {
    const std::unique_ptr<Weight> packed = Pack(weight, weight_dtype, pool);
    ASSERT_NE(packed, nullptr);
    for (int m : {1, 9, 40}) {
      const std::vector<float> x = RandomActivations(m, weight.cols, random);
      Output y(m, weight.rows);
      Matmul({.x = x.data(), .m = m, .weight = packed.get(), .y = y.data(), .accumulate = false},
             false, pool);
      const Worst worst = Compare(weight, weight_dtype, x, m, y, 0.0f);
      EXPECT_LE(worst.ratio, 1.0) << NameOf(weight_dtype) << ", " << m << " rows, worst at "
                                  << worst.row << ", " << worst.col;
      EXPECT_TRUE(y.GuardsIntact());
    }
  }
}

TEST(MatmulMemory, StoredTakesTheFilesSize) {
  std::mt19937 random(kSeed);
  ThreadPool pool(1);
  for (DType dtype : kAllDTypes) {
    const TestWeight weight = MakeWeight(dtype, 64, 1024, random);
    const std::unique_ptr<Weight> packed = Pack(weight, WeightDType::kStored, pool);
    const double ratio =
        static_cast<double>(packed->bytes()) / static_cast<double>(weight.bytes[0].size());
    EXPECT_GE(ratio, 1.0) << DTypeName(dtype);
    EXPECT_LE(ratio, 1.04) << DTypeName(dtype);
  }
}

TEST(MatmulMemory, ThePartsMayBeFreedAfterPacking) {
  std::mt19937 random(kSeed);
  ThreadPool pool(2);
  const TestWeight weight = MakeWeight(DType::kQ4_1, 48, 96, random);
  auto copy = std::make_unique<std::vector<uint8_t>>(weight.bytes[0]);
  const WeightPart part = {DType::kQ4_1, copy->data(), 48, 96};
  absl::StatusOr<std::unique_ptr<Weight>> packed =
      PackWeight({&part, 1}, WeightDType::kStored, false, pool);
  ASSERT_TRUE(packed.ok());
  copy.reset();
  const std::vector<float> x = RandomActivations(2, 96, random);
  Output y(2, 48);
  Matmul({.x = x.data(), .m = 2, .weight = packed->get(), .y = y.data(), .accumulate = false},
         false, pool);
  EXPECT_LE(Compare(weight, WeightDType::kStored, x, 2, y, 0.0f).ratio, 1.0);
}

// Makes the rows of a weight by copying.
class CopyingMaker final : public RowMaker {
 public:
  CopyingMaker(const std::vector<uint8_t>& bytes, size_t row_bytes)
      : bytes_(bytes), row_bytes_(row_bytes) {}
  void Make(int64_t row, uint8_t* out) const override {
    std::memcpy(out, &bytes_[row * row_bytes_], row_bytes_);
  }

 private:
  const std::vector<uint8_t>& bytes_;
  const size_t row_bytes_;
};

TEST(MatmulMadeRows, AreTheRowsThatAreStored) {
  std::mt19937 random(kSeed);
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kQ5_0, DType::kF8_E4M3}) {
    const TestWeight weight = MakeWeight(dtype, 50, 256, random);
    const CopyingMaker maker(weight.bytes[0], BytesOf(dtype, 256));
    const WeightPart parts[] = {
        {.dtype = dtype, .rows = 19, .cols = 256, .maker = &maker},
        {.dtype = dtype, .rows = 31, .cols = 256, .maker = &maker, .first_made = 19}};
    for (WeightDType weight_dtype :
         {WeightDType::kStored, WeightDType::kBFloat16, WeightDType::kQ4_0}) {
      const std::unique_ptr<Weight> stored = Pack(weight, weight_dtype, pool);
      const auto made = PackWeight(parts, weight_dtype, false, pool);
      ASSERT_TRUE(made.ok()) << made.status();
      ASSERT_EQ((*made)->bytes(), stored->bytes());
      const auto bytes_of = [](const Weight& w) {
        return static_cast<const PackedWeight&>(w).segments()[0].panels.get();
      };
      EXPECT_EQ(std::memcmp(bytes_of(**made), bytes_of(*stored), stored->bytes()), 0);
    }
  }
}

// Every type, including non-finite scales of block types.
TEST(MatmulErrors, NonFiniteValuesAreNamed) {
  std::mt19937 random(kSeed);
  ThreadPool pool(2);
  const auto message = [&](const TestWeight& weight, WeightDType weight_dtype) {
    WeightPart part = weight.parts[0];
    part.name = "blk.0.up";
    const auto packed = PackWeight({&part, 1}, weight_dtype, false, pool);
    EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument)
        << DTypeName(part.dtype) << ", " << NameOf(weight_dtype);
    return std::string(packed.status().message());
  };
  for (DType dtype : kAllDTypes) {
    TestWeight weight = MakeWeight(dtype, 40, 512, random);
    const int block = 256 / BlockElements(dtype);
    uint8_t* bytes = weight.bytes[0].data() + BytesOf(dtype, 21 * 512) +
                     static_cast<size_t>(block) * TraitsOf(dtype).block_bytes;
    const std::vector<int> offsets = ScaleOffsets(dtype);
    if (dtype == DType::kMXFP4) {
      bytes[0] = 255;
      std::fill(bytes + 1, bytes + 17, uint8_t{0x77});
    } else if (dtype == DType::kF8_E4M3) {
      bytes[4] = 0xff;
    } else if (dtype == DType::kF32) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes, &nan, sizeof(nan));
    } else {
      const uint16_t infinity = dtype == DType::kBF16 ? 0x7f80 : 0xfc00;
      std::memcpy(bytes + (offsets.empty() ? 0 : offsets.back()), &infinity, 2);
    }
    for (WeightDType weight_dtype :
         {WeightDType::kStored, WeightDType::kFloat32, WeightDType::kBFloat16, WeightDType::kQ4_0})
      EXPECT_THAT(
          message(weight, weight_dtype),
          testing::ContainsRegex("tensor 'blk.0.up': the value in row 21, column 2[5-9][0-9] is "
                                 ".*(nan|inf) as .*; weights must be finite"));
  }
}

TEST(MatmulErrors, BadPartsAreNamed) {
  ThreadPool pool(1);
  std::vector<uint8_t> bytes(4096);
  const auto message = [&](std::vector<WeightPart> parts) {
    const absl::StatusOr<std::unique_ptr<Weight>> packed =
        PackWeight(parts, WeightDType::kStored, false, pool);
    EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(packed.status().message());
  };
  EXPECT_THAT(message({}), testing::HasSubstr("at least one part"));
  EXPECT_THAT(message({{DType::kF32, bytes.data(), 0, 8}}), testing::HasSubstr("0 x 8"));
  EXPECT_THAT(message({{DType::kF32, nullptr, 2, 8}}), testing::HasSubstr("without data"));
  EXPECT_THAT(message({{DType::kQ4_1, bytes.data(), 2, 48}}), testing::HasSubstr("multiple of 32"));
  EXPECT_THAT(message({{DType::kF32, bytes.data(), 2, 8}, {DType::kF32, bytes.data(), 2, 9}}),
              testing::HasSubstr("8 and 9"));
}

TEST(Matmul, NoRowsDoNothing) {
  std::mt19937 random(kSeed);
  ThreadPool pool(2);
  const TestWeight weight = MakeWeight(DType::kQ8_0, 16, 32, random);
  const std::unique_ptr<Weight> packed = Pack(weight, WeightDType::kStored, pool);
  Matmul({.x = nullptr, .m = 0, .weight = packed.get(), .y = nullptr, .accumulate = false}, false,
         pool);
  Embed({.ids = nullptr, .m = 0, .table = packed.get(), .out = nullptr}, pool);
}

}  // namespace
}  // namespace hydrant::cpu
