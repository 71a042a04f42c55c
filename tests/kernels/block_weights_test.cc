// Matmul, Embed and ExpertMatmul of every backend with block-quantized weights, against the
// double-precision product of the dequantized values (kernels/dequantize.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "tests/kernels/product_test.h"
#include "tests/kernels/random_rows.h"

namespace hydrant {
namespace {

constexpr uint32_t kSeed = 20261128;
constexpr DType kBlockTypes[] = {DType::kQ4_0,  DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1,
                                 DType::kQ8_0,  DType::kQ4_K,   DType::kQ5_K,   DType::kQ6_K,
                                 DType::kQ2_K,  DType::kQ3_K,   DType::kIQ4_NL, DType::kIQ4_XS,
                                 DType::kMXFP4, DType::kF8_E4M3};

// Parts in file format, and their values.
struct Matrix {
  int cols = 0, rows = 0;
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<WeightPart> parts;
  std::vector<float> values;  // [rows, cols]

  void Add(DType dtype, int part_rows, std::mt19937& random) {
    bytes.push_back(RandomRows(dtype, part_rows, cols, random));
    parts.push_back({dtype, bytes.back().data(), part_rows, cols});
    values.resize(static_cast<size_t>(rows + part_rows) * cols);
    DequantizeRow(dtype, bytes.back().data(), int64_t{part_rows} * cols,
                  values.data() + static_cast<size_t>(rows) * cols);
    rows += part_rows;
  }
};

class BlockWeightsTest : public ProductTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    std::cout << "seed " << kSeed << "\n";
  }

  Matrix Random(DType dtype, int rows, int cols) {
    Matrix matrix;
    matrix.cols = cols;
    matrix.Add(dtype, rows, random_);
    return matrix;
  }

  std::unique_ptr<Weight> Pack(const Matrix& matrix, WeightDType dtype = WeightDType::kStored) {
    auto weight = backend().PackWeight(matrix.parts, dtype);
    EXPECT_TRUE(weight.ok()) << weight.status();
    return *std::move(weight);
  }

  // Values exact in bf16, with outliers as in real activations.
  std::vector<float> Activations(int m, int cols) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(m) * cols, random_());
    for (float& value : x)
      value = BF16ToFloat(FloatToBF16(random_() % 200 == 0 ? value * 40.0f : value));
    return x;
  }

  // Error bound of a row of y: fp32 summation (on a GPU of quants with 128 added; a block's largest
  // quant is at least 3), and on a host the rounding of x to 16-bit integers.
  double Tolerance(const float* w, const float* x, int cols, double size) const {
    double largest_w = 0, sum_x = 0, largest_x = 0;
    for (int k = 0; k < cols; ++k) {
      largest_w = std::max(largest_w, std::abs(double{w[k]}));
      largest_x = std::max(largest_x, std::abs(double{x[k]}));
      sum_x += std::abs(x[k]);
    }
    const double rounded = GetParam() == "cpu" ? largest_x / 65536 * largest_w * cols : 0;
    return kFloatEpsilon * ((cols + 4) * size + 16 * (128.0 / 3) * largest_w * sum_x) + rounded +
           1e-30;
  }

  void ExpectProduct(const Matrix& matrix, const std::vector<float>& x, int m, float start,
                     const std::vector<float>& bias, const std::vector<float>& y,
                     const std::string& what) {
    ProductTest::ExpectProduct(x, m, matrix.values, matrix.rows, matrix.cols, start, bias, y, what,
                               [&](const float* w, const float* row, double size) {
                                 return Tolerance(w, row, matrix.cols, size);
                               });
  }

  void CheckProduct(const Matrix& matrix, const Weight& weight, int m, float start, bool with_bias,
                    const std::string& what) {
    const std::vector<float> x = Activations(m, matrix.cols);
    const std::vector<float> bias =
        with_bias ? RandomFloats(matrix.rows, random_()) : std::vector<float>();
    ExpectProduct(matrix, x, m, start, bias, Run(weight, x, m, start, bias), what);
  }

  std::mt19937 random_{kSeed};
};

int LeastColumns(DType dtype) { return BlockElements(dtype); }

// Rows: less than a panel, one panel, more than a block; columns: less than a tile, one, several.
TEST_P(BlockWeightsTest, EqualsTheDoubleProduct) {
  for (const DType dtype : kBlockTypes) {
    const int least = LeastColumns(dtype);
    for (const int cols : {least, 5 * least, least < 128 ? 768 : 3 * least}) {
      for (const int rows : {1, 45, 160}) {
        const Matrix matrix = Random(dtype, rows, cols);
        const std::unique_ptr<Weight> weight = Pack(matrix);
        for (const int m : {1, 11})
          CheckProduct(matrix, *weight, m, m == 1 ? kNan : 0.75f, rows == 45,
                       std::string(DTypeName(dtype)));
      }
    }
  }
}

TEST_P(BlockWeightsTest, AnyNumberOfRows) {
  for (const DType dtype : kBlockTypes) {
    const Matrix matrix = Random(dtype, 70, 512);
    const std::unique_ptr<Weight> weight = Pack(matrix);
    for (const int m : {8, 9, 16, 17, 32, 33, 64, 65})
      CheckProduct(matrix, *weight, m, kNan, false, std::string(DTypeName(dtype)));
  }
  const Matrix matrix = Random(DType::kQ4_K, 33, 256);
  const std::unique_ptr<Weight> weight = Pack(matrix);
  for (int m = 0; m <= 65; ++m) CheckProduct(matrix, *weight, m, 0.5f, true, "q4_k");
}

// Several GPU blocks add to one sum; with three row groups by two tiles some blocks begin at a
// group, though the tiles do not divide equally.
TEST_P(BlockWeightsTest, SumsOfSeveralBlocks) {
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}) {
    const int two_tiles = BlockElements(dtype) == 256 ? 512 : 256;
    for (const auto& [rows, cols] : {std::pair{130, 2560}, {130, 4096 + 256}, {300, two_tiles}}) {
      const Matrix matrix = Random(dtype, rows, cols);
      const std::unique_ptr<Weight> weight = Pack(matrix);
      for (const int m : {1, 20})
        for (int repeat = 0; repeat < 2; ++repeat)  // the first run restored the counters
          CheckProduct(matrix, *weight, m, 0.25f, true, std::string(DTypeName(dtype)));
    }
  }
}

// For many rows a GPU unpacks the weight to bf16, unless batch-invariant.
TEST_P(BlockWeightsTest, ManyRows) {
  for (const DType dtype : kBlockTypes) {
    Matrix matrix = Random(dtype, 37, 256);
    const std::unique_ptr<Weight> weight = Pack(matrix);
    if (GetParam() == "cuda" && std::getenv("HYDRANT_TEST_FAST") != nullptr)
      for (float& value : matrix.values) value = BF16ToFloat(FloatToBF16(value));
    if (GetParam() == "cpu" && std::getenv("HYDRANT_TEST_FAST") != nullptr) continue;
    CheckProduct(matrix, *weight, 257, 0.5f, true, std::string(DTypeName(dtype)));
  }
}

TEST_P(BlockWeightsTest, RowsDoNotDependOnTheBatch) {
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}) {
    const Matrix matrix = Random(dtype, 40, 1280);
    const std::unique_ptr<Weight> weight = Pack(matrix);
    constexpr int kRows = 300;
    const std::vector<float> x = Activations(kRows, matrix.cols);
    const std::vector<float> all = Run(*weight, x, kRows, kNan, {});
    for (const int rows : {1, 9, 40}) {
      for (const int first : {0, 63, 64, kRows - rows}) {
        const std::vector<float> some = Run(
            *weight, {x.begin() + first * matrix.cols, x.begin() + (first + rows) * matrix.cols},
            rows, kNan, {});
        EXPECT_EQ(std::memcmp(some.data(), &all[first * 40], some.size() * sizeof(float)), 0)
            << DTypeName(dtype) << ", rows " << first << " to " << first + rows - 1;
      }
    }
  }
}

// As in files with mixed types, where queries and values differ in type; also with floats.
TEST_P(BlockWeightsTest, PartsOfSeveralTypes) {
  Matrix matrix;
  matrix.cols = 512;
  for (const auto& [dtype, rows] :
       {std::pair{DType::kQ4_K, 40}, {DType::kQ4_K, 9}, {DType::kQ6_K, 33}, {DType::kQ4_K, 128}})
    matrix.Add(dtype, rows, random_);
  const std::unique_ptr<Weight> weight = Pack(matrix);
  for (const int m : {1, 33}) CheckProduct(matrix, *weight, m, 0.5f, true, "blocks");
  matrix.Add(DType::kBF16, 20, random_);
  const std::unique_ptr<Weight> with_floats = Pack(matrix);
  for (const int m : {1, 33}) CheckProduct(matrix, *with_floats, m, kNan, false, "with bf16");
}

// Rows given in 16 bits, also with a float weight (a router).
TEST_P(BlockWeightsTest, RowsInTheWantedDType) {
  const Matrix matrix = Random(DType::kQ5_K, 50, 768);
  const std::unique_ptr<Weight> weight = Pack(matrix);
  const DType wanted = backend().ActivationDType(
      backend().PackedDType(DType::kQ5_K, WeightDType::kStored, matrix.cols));
  if (wanted == DType::kF32) return;
  const Matrix floats = Random(DType::kF32, 50, 768);
  const std::unique_ptr<Weight> weight_of_floats = Pack(floats);
  for (const Weight* w : {weight.get(), weight_of_floats.get()}) {
    const std::vector<float> x = Activations(5, matrix.cols);
    std::vector<uint16_t> halves(x.size());
    std::transform(x.begin(), x.end(), halves.begin(), FloatToBF16);
    auto device_x = Upload(halves);
    auto y = Output(5 * 50);
    backend().Matmul({.x = device_x.data(), .x_dtype = wanted, .m = 5, .weight = w, .y = y.data()});
    ExpectSame(y.Read(), Run(*w, x, 5, kNan, {}), "in bf16");
  }
}

TEST_P(BlockWeightsTest, EmbedGivesTheTablesRows) {
  for (const DType dtype : kBlockTypes) {
    const int cols = 3 * LeastColumns(dtype);
    const Matrix matrix = Random(dtype, 77, cols);
    const std::unique_ptr<Weight> table = Pack(matrix);
    const std::vector<uint32_t> ids = {76, 0, 7, 7, 31, 32, 63, 64, 17, 9};
    auto device_ids = Upload(ids);
    for (const bool accumulate : {false, true}) {
      auto out = Upload(std::vector<float>(ids.size() * cols, accumulate ? 0.0f : kNan));
      backend().Embed({.ids = device_ids.data(),
                       .m = static_cast<int>(ids.size()),
                       .table = table.get(),
                       .out = out.data(),
                       .accumulate = accumulate,
                       .scale = 2.0f});
      const std::vector<float> got = out.Read();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], 2.0f * matrix.values[ids[i / cols] * cols + i % cols])
            << DTypeName(dtype) << " " << i;
    }
  }
}

TEST_P(BlockWeightsTest, TakeTheBytesOfTheFile) {
  for (const DType dtype : kBlockTypes) {
    const Matrix matrix = Random(dtype, 64, 512);
    const size_t bytes = BytesOf(dtype, size_t{64} * 512);
    if (GetParam() != "cpu") {
      EXPECT_EQ(backend().PackedDType(dtype, WeightDType::kStored, 512), dtype);
    }
    if (GetParam() == "cuda") {
      EXPECT_EQ(Pack(matrix)->bytes(), bytes) << DTypeName(dtype);
    }
  }
}

// Experts of `n` rows; the last one has no places, the first more than a tile of places.
class BlockExperts {
 public:
  static constexpr int kExperts = 4;
  static constexpr int kPlaces[kExperts] = {70, 3, 9, 0};
  static int Offset(int expert) { return std::accumulate(kPlaces, kPlaces + expert, 0); }
};

TEST_P(BlockWeightsTest, ExpertsEqualTheDoubleProduct) {
  constexpr int kCols = 256, kRows = 30, kExperts = BlockExperts::kExperts;
  const int places = BlockExperts::Offset(kExperts);
  for (const DType dtype : kBlockTypes) {
    for (const int n : {32, 160, 48}) {  // 48: not a multiple of a panel
      Matrix matrix;
      matrix.cols = kCols;
      for (int e = 0; e < kExperts; ++e) matrix.Add(dtype, n, random_);
      const std::unique_ptr<Weight> weight = Pack(matrix);
      const std::vector<float> x = Activations(kRows, kCols);
      const std::vector<float> bias = RandomFloats(static_cast<size_t>(kExperts) * n, random_());
      std::vector<int32_t> offsets(kExperts + 1), sources(places);
      for (int e = 0; e <= kExperts; ++e) offsets[e] = BlockExperts::Offset(e);
      for (int32_t& source : sources) source = static_cast<int32_t>(random_() % kRows);
      auto device_x = Upload(x), device_bias = Upload(bias);
      auto device_offsets = Upload(offsets), device_sources = Upload(sources);
      auto y = Output(static_cast<size_t>(places) * n);
      backend().ExpertMatmul({.x = device_x.data(),
                              .rows = kRows,
                              .sources = device_sources.data(),
                              .offsets = device_offsets.data(),
                              .places = places,
                              .experts = kExperts,
                              .weight = weight.get(),
                              .y = y.data(),
                              .bias = device_bias.data()});
      const std::vector<float> got = y.Read();
      for (int e = 0; e < kExperts; ++e) {
        Matrix own;
        own.cols = kCols;
        own.rows = n;
        own.values.assign(matrix.values.begin() + static_cast<int64_t>(e) * n * kCols,
                          matrix.values.begin() + static_cast<int64_t>(e + 1) * n * kCols);
        if (GetParam() == "cuda" && n % 32 != 0)  // unpacked to bf16
          for (float& value : own.values) value = BF16ToFloat(FloatToBF16(value));
        std::vector<float> own_x;
        for (int p = offsets[e]; p < offsets[e + 1]; ++p)
          own_x.insert(own_x.end(), x.begin() + sources[p] * kCols,
                       x.begin() + (sources[p] + 1) * kCols);
        ExpectProduct(own, own_x, BlockExperts::kPlaces[e], kNan,
                      {bias.begin() + e * n, bias.begin() + (e + 1) * n},
                      {got.begin() + offsets[e] * n, got.begin() + offsets[e + 1] * n},
                      std::string(DTypeName(dtype)) + ", " + std::to_string(n) + " rows, expert " +
                          std::to_string(e));
      }
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(BlockWeightsTest);

}  // namespace
}  // namespace hydrant
