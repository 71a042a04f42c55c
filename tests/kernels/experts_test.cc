// RouteExperts, ExpertMatmul and CombineExperts of every backend against sorted lists and plain
// products in double.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/quantize.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr uint64_t kSeed = 41001;

struct Routing {
  std::vector<int32_t> chosen;
  std::vector<float> weights;
  std::vector<int32_t> offsets, sources, places;
};

class ExpertsTest : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    std::cout << "seed " << kSeed << std::endl;
  }

  Routing Route(const std::vector<float>& logits, int rows, int experts, int per_row,
                ExpertWeights kind) {
    const size_t choices = static_cast<size_t>(rows) * per_row;
    auto in = Upload(logits);
    auto weights = Output(choices);
    const std::vector<int32_t> poison(choices, -1);
    auto chosen = Upload(poison), sources = Upload(poison), places = Upload(poison);
    auto offsets = Upload(std::vector<int32_t>(experts + 1, -1));
    backend().RouteExperts({.logits = in.data(),
                            .rows = rows,
                            .experts = experts,
                            .per_row = per_row,
                            .kind = kind,
                            .chosen = chosen.data(),
                            .weights = weights.data(),
                            .offsets = offsets.data(),
                            .sources = sources.data(),
                            .places = places.data()});
    return {chosen.Read(), weights.Read(), offsets.Read(), sources.Read(), places.Read()};
  }

  // Checks a routing against its definition.
  void CheckRouting(const std::vector<float>& logits, int rows, int experts, int per_row,
                    ExpertWeights kind) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << per_row << " of " << experts
                                    << " experts, kind " << static_cast<int>(kind));
    const Routing got = Route(logits, rows, experts, per_row, kind);
    std::vector<int32_t> chosen;
    std::vector<double> weights, tolerance;
    std::vector<std::vector<int>> choices(experts);  // rows that chose each expert, ascending
    for (int row = 0; row < rows; ++row) {
      const float* own = logits.data() + static_cast<size_t>(row) * experts;
      std::vector<int> order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return own[a] > own[b]; });
      double sum = 0.0;
      const int summed = kind == ExpertWeights::kOfAll ? experts : per_row;
      for (int c = 0; c < summed; ++c) sum += std::exp(static_cast<double>(own[order[c]]));
      for (int c = 0; c < per_row; ++c) {
        choices[order[c]].push_back(static_cast<int>(chosen.size()));
        chosen.push_back(order[c]);
        weights.push_back(std::exp(static_cast<double>(own[order[c]])) / sum);
        tolerance.push_back(2e-6 * weights.back() + 1e-12);
      }
    }
    EXPECT_EQ(got.chosen, chosen);
    ExpectNear(got.weights, weights, tolerance, "weights");
    std::vector<int32_t> offsets = {0}, sources, places(chosen.size());
    for (const std::vector<int>& own : choices) {
      for (const int choice : own) {
        places[choice] = static_cast<int32_t>(sources.size());
        sources.push_back(choice / per_row);
      }
      offsets.push_back(static_cast<int32_t>(sources.size()));
    }
    EXPECT_EQ(got.offsets, offsets);
    EXPECT_EQ(got.sources, sources);
    EXPECT_EQ(got.places, places);
  }
};

constexpr ExpertWeights kKinds[] = {ExpertWeights::kOfChosen, ExpertWeights::kOfAll};

TEST_P(ExpertsTest, RoutesByLogit) {
  const struct {
    int experts, per_row;
  } sizes[] = {{1, 1}, {2, 1}, {4, 4}, {8, 2}, {33, 5}, {40, 8}, {128, 8}, {32, 32}, {1024, 10}};
  for (const auto& [experts, per_row] : sizes) {
    for (const int rows : {0, 1, 2, 7, 33}) {
      const size_t count = static_cast<size_t>(rows) * experts;
      for (const ExpertWeights kind : kKinds)
        CheckRouting(RandomFloats(count, kSeed + experts, 2.0f), rows, experts, per_row, kind);
    }
  }
}

TEST_P(ExpertsTest, OfEqualLogitsTheLowerExpertIsFirst) {
  for (const ExpertWeights kind : kKinds) {
    CheckRouting(std::vector<float>(5 * 40, 0.25f), 5, 40, 8, kind);
    // Few distinct values, many ties; zeros of both signs are equal.
    std::vector<float> logits = RandomFloats(60 * 37, kSeed, 1.5f);
    for (float& logit : logits) logit = std::round(logit);
    CheckRouting(logits, 60, 37, 6, kind);
  }
}

TEST_P(ExpertsTest, OneExpertMayHaveAllRows) {
  std::vector<float> logits = RandomFloats(50 * 16, kSeed);
  for (int row = 0; row < 50; ++row) logits[row * 16 + 11] = 20.0f;
  for (const ExpertWeights kind : kKinds) {
    CheckRouting(logits, 50, 16, 1, kind);
    CheckRouting(logits, 50, 16, 4, kind);
  }
}

// A fault in one row stays in that row and is visible.
TEST_P(ExpertsTest, NanSpoilsTheWeightsOfItsRow) {
  std::vector<float> logits = RandomFloats(3 * 40, kSeed);
  logits[40 + 35] = kNan;
  for (const ExpertWeights kind : kKinds) {
    const Routing got = Route(logits, 3, 40, 4, kind);
    EXPECT_EQ(got.chosen[4], 35);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(got.weights[i]), i / 4 == 1) << i;
    EXPECT_EQ(got.offsets.back(), 12);
  }
}

// Experts' matrices in one weight, and its values.
struct ExpertWeight {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<WeightPart> parts;
  std::vector<float> values;  // [experts * n, cols], dequantised
  std::unique_ptr<Weight> packed;
};

std::vector<uint8_t> RandomRows(DType dtype, int rows, int cols, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<uint8_t> bytes(BytesOf(dtype, static_cast<size_t>(rows) * cols));
  if (dtype == DType::kMXFP4) {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (size_t block = 0; block < bytes.size(); block += 17)
      bytes[block] = static_cast<uint8_t>(118 + random() % 8);
    return bytes;
  }
  std::vector<float> values(static_cast<size_t>(rows) * cols);
  for (float& value : values) value = normal(random);
  if (dtype == DType::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else if (dtype == DType::kBF16) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = FloatToBF16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
    }
  } else {
    const size_t row_bytes = BytesOf(dtype, cols);
    for (int i = 0; i < rows; ++i)
      QuantizeRow(dtype, values.data() + static_cast<size_t>(i) * cols, cols,
                  &bytes[i * row_bytes]);
  }
  return bytes;
}

struct Product {
  int experts, n, cols;
  WeightDType kept;
  std::vector<DType> stored;  // of an expert's parts, which divide its rows
};

class ExpertMatmulTest : public ExpertsTest {
 protected:
  ExpertWeight Pack(const Product& p) {
    std::mt19937 random(kSeed + p.experts);
    ExpertWeight weight;
    const int rows = p.n / static_cast<int>(p.stored.size());
    for (int e = 0; e < p.experts; ++e) {
      for (const DType dtype : p.stored)
        weight.bytes.push_back(RandomRows(dtype, rows, p.cols, random));
    }
    for (size_t i = 0; i < weight.bytes.size(); ++i) {
      const DType dtype = p.stored[i % p.stored.size()];
      weight.parts.push_back({dtype, weight.bytes[i].data(), rows, p.cols});
      std::vector<float> values(static_cast<size_t>(rows) * p.cols);
      DequantizeRow(dtype, weight.bytes[i].data(), static_cast<int64_t>(values.size()),
                    values.data());
      weight.values.insert(weight.values.end(), values.begin(), values.end());
    }
    if (p.kept == WeightDType::kBFloat16 || IsUnpacked(p))
      for (float& value : weight.values) value = BF16ToFloat(FloatToBF16(value));
    auto packed = backend().PackWeight(weight.parts, p.kept);
    EXPECT_TRUE(packed.ok()) << packed.status();
    weight.packed = *std::move(packed);
    return weight;
  }

  // A GPU unpacks quantized experts if their matrices have several types or are not a
  // multiple of tiles.
  bool IsUnpacked(const Product& p) const {
    const auto is_block = [](DType dtype) { return BlockElements(dtype) > 1; };
    const bool blocks = std::any_of(p.stored.begin(), p.stored.end(), is_block);
    const bool one_type = std::count(p.stored.begin(), p.stored.end(), p.stored[0]) ==
                          static_cast<int64_t>(p.stored.size());
    return GetParam() == "cuda" && p.kept == WeightDType::kStored && blocks &&
           (!one_type || p.n % 32 != 0);
  }

  // With bf16 weights some units round x: x exact in bf16 leaves only the rounding of sums.
  static std::vector<float> Rows(int rows, int cols, uint64_t seed) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(rows) * cols, seed);
    for (float& value : x) value = BF16ToFloat(FloatToBF16(value));
    return x;
  }

  // Without sources the rows of x are places.
  std::vector<float> Run(Backend& on, const Product& p, const Weight& weight,
                         const std::vector<float>& x, const std::vector<int32_t>& offsets,
                         const std::vector<int32_t>& sources, const std::vector<float>& bias) {
    const int places = offsets.back();
    DeviceArray<float> device_x(on, x), device_bias(on, bias);
    DeviceArray<int32_t> device_offsets(on, offsets), device_sources(on, sources);
    DeviceArray<float> y(on, std::vector<float>(static_cast<size_t>(places) * p.n, kNan));
    on.ExpertMatmul({.x = device_x.data(),
                     .rows = static_cast<int>(x.size()) / p.cols,
                     .sources = sources.empty() ? nullptr : device_sources.data(),
                     .offsets = device_offsets.data(),
                     .places = places,
                     .experts = p.experts,
                     .weight = &weight,
                     .y = y.data(),
                     .bias = bias.empty() ? nullptr : device_bias.data()});
    return y.Read();
  }

  void CheckProduct(const Product& p, const ExpertWeight& weight, const std::vector<float>& x,
                    const std::vector<int32_t>& offsets, const std::vector<int32_t>& sources,
                    const std::vector<float>& bias) {
    const std::vector<float> y = Run(backend(), p, *weight.packed, x, offsets, sources, bias);
    std::vector<double> expected(y.size()), tolerance(y.size());
    for (int e = 0; e < p.experts; ++e) {
      for (int place = offsets[e]; place < offsets[e + 1]; ++place) {
        const int source = sources.empty() ? place : sources[place];
        const float* row = x.data() + static_cast<size_t>(source) * p.cols;
        const float peak = *std::max_element(
            row, row + p.cols, [](float a, float b) { return std::abs(a) < std::abs(b); });
        for (int j = 0; j < p.n; ++j) {
          const size_t output = static_cast<size_t>(e) * p.n + j;
          const float* w = weight.values.data() + output * p.cols;
          double sum = bias.empty() ? 0.0 : bias[output], size = std::abs(sum), sum_abs = 0.0;
          for (int k = 0; k < p.cols; ++k) {
            sum += static_cast<double>(row[k]) * w[k];
            size += std::abs(static_cast<double>(row[k]) * w[k]);
            sum_abs += std::abs(w[k]);
          }
          const size_t at = static_cast<size_t>(place) * p.n + j;
          expected[at] = sum;
          // Rounding of sums; for block-quantized weights also the cpu backend's 16-bit
          // activations, and bf16 terms.
          tolerance[at] = kFloatEpsilon * (p.cols + 4) * size + 1e-30;
          if (p.kept == WeightDType::kStored && BlockElements(p.stored[0]) > 1)
            tolerance[at] += sum_abs * std::abs(peak) / 60000 + size / 30000;
        }
      }
    }
    ExpectNear(y, expected, tolerance, "y");
  }

  // Offsets of experts with the given numbers of places, and random rows for the places.
  static void Spread(const std::vector<int>& counts, int rows, std::vector<int32_t>* offsets,
                     std::vector<int32_t>* sources) {
    std::mt19937 random(kSeed);
    *offsets = {0};
    sources->clear();
    for (const int count : counts) {
      for (int i = 0; i < count; ++i) sources->push_back(static_cast<int32_t>(random() % rows));
      std::sort(sources->end() - count, sources->end());
      offsets->push_back(static_cast<int32_t>(sources->size()));
    }
  }
};

const std::vector<Product>& Products() {
  static const auto& products = *new std::vector<Product>{
      {5, 48, 64, WeightDType::kFloat32, {DType::kF32}},
      {5, 32, 200, WeightDType::kStored, {DType::kF32, DType::kBF16}},
      {5, 16, 77, WeightDType::kBFloat16, {DType::kF32}},
      {5, 96, 136, WeightDType::kBFloat16, {DType::kBF16, DType::kF32}},
      {5, 48, 128, WeightDType::kStored, {DType::kQ8_0}},
      {5, 96, 64, WeightDType::kStored, {DType::kQ4_0, DType::kQ8_0}},
      {5, 32, 96, WeightDType::kStored, {DType::kMXFP4}},
      {1, 16, 32, WeightDType::kStored, {DType::kQ8_0}},
  };
  return products;
}

TEST_P(ExpertMatmulTest, EqualsTheDoubleProduct) {
  const std::vector<std::vector<int>> all_counts = {
      {0, 1, 0, 5, 2}, {1, 1, 1, 1, 1}, {17, 0, 40, 3, 6}, {0, 0, 100, 0, 0}, {0, 0, 0, 0, 0}};
  constexpr int kRows = 30;
  for (const Product& p : Products()) {
    const ExpertWeight weight = Pack(p);
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(p.experts) * p.n, kSeed);
    for (std::vector<int> counts : all_counts) {
      SCOPED_TRACE(testing::Message() << "n " << p.n << " cols " << p.cols << " first count "
                                      << counts[0] << " stored " << DTypeName(p.stored[0]));
      counts.resize(p.experts);
      std::vector<int32_t> offsets, sources;
      Spread(counts, kRows, &offsets, &sources);
      const std::vector<float> x = Rows(kRows, p.cols, kSeed + 1);
      CheckProduct(p, weight, x, offsets, sources, {});
      CheckProduct(p, weight, x, offsets, sources, bias);
      CheckProduct(p, weight, Rows(offsets.back(), p.cols, kSeed + 2), offsets, {}, bias);
    }
  }
}

// The fixture's backends are batch-invariant.
TEST_P(ExpertMatmulTest, RowsDoNotDependOnTheOthers) {
  for (const Product& p : Products()) {
    if (p.experts == 1) continue;
    const ExpertWeight weight = Pack(p);
    std::vector<int32_t> offsets, sources;
    Spread({3, 0, 70, 1, 9}, 40, &offsets, &sources);
    const std::vector<float> x = Rows(40, p.cols, kSeed + 3);
    const std::vector<float> all = Run(backend(), p, *weight.packed, x, offsets, sources, {});
    for (const int place : {0, 2, 3, 18, 19, 72, 73, 82}) {
      std::vector<int32_t> alone(p.experts + 1);
      for (int e = 0; e <= p.experts; ++e) alone[e] = offsets[e] > place ? 1 : 0;
      const std::vector<float> y =
          Run(backend(), p, *weight.packed, x, alone, {sources[place]}, {});
      EXPECT_EQ(std::memcmp(y.data(), &all[static_cast<size_t>(place) * p.n], p.n * sizeof(float)),
                0)
          << "place " << place << " of n " << p.n << " cols " << p.cols;
    }
  }
}

TEST_P(ExpertMatmulTest, ThreadsDoNotMatter) {
  if (GetParam() != "cpu") GTEST_SKIP() << "threads are the cpu backend's";
  for (const Product& p : Products()) {
    const ExpertWeight weight = Pack(p);
    std::vector<int32_t> offsets, sources;
    std::vector<int> counts = {3, 0, 120, 1, 9};
    counts.resize(p.experts);
    Spread(counts, 40, &offsets, &sources);
    const std::vector<float> x = Rows(40, p.cols, kSeed + 4);
    const std::vector<float> two = Run(backend(), p, *weight.packed, x, offsets, sources, {});
    for (const int threads : {1, 5}) {
      const std::unique_ptr<Backend> other = MakeBackend("cpu", threads);
      EXPECT_EQ(Run(*other, p, *weight.packed, x, offsets, sources, {}), two) << threads;
    }
  }
}

TEST_P(ExpertsTest, CombinesInTheOrderOfChoices) {
  for (const int per_row : {1, 2, 8}) {
    for (const int n : {1, 63, 64, 65, 300}) {
      for (const int rows : {0, 1, 5, 40}) {
        const int places = rows * per_row;
        std::vector<int32_t> order(places);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(kSeed));
        const std::vector<float> y = RandomFloats(static_cast<size_t>(places) * n, kSeed + n);
        const std::vector<float> weights = RandomFloats(places, kSeed + per_row);
        const std::vector<float> before = RandomFloats(static_cast<size_t>(rows) * n, kSeed + 7);
        auto device_y = Upload(y), device_weights = Upload(weights), out = Upload(before);
        auto device_places = Upload(order);
        backend().CombineExperts({.y = device_y.data(),
                                  .weights = device_weights.data(),
                                  .places = device_places.data(),
                                  .rows = rows,
                                  .per_row = per_row,
                                  .n = n,
                                  .out = out.data()});
        std::vector<double> expected(before.begin(), before.end()), tolerance(before.size());
        for (size_t i = 0; i < before.size(); ++i) {
          double size = std::abs(before[i]);
          for (int c = 0; c < per_row; ++c) {
            const size_t choice = i / n * per_row + c;
            const double term = static_cast<double>(weights[choice]) * y[order[choice] * n + i % n];
            expected[i] += term;
            size += std::abs(term);
          }
          tolerance[i] = kFloatEpsilon * (per_row + 3) * size;
        }
        ExpectNear(out.Read(), expected, tolerance,
                   "n " + std::to_string(n) + " k " + std::to_string(per_row));
      }
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(ExpertsTest);
HYDRANT_FOR_EACH_BACKEND(ExpertMatmulTest);

}  // namespace
}  // namespace hydrant
