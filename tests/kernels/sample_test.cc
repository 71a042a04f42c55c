#include "kernels/ops/sample.h"

#include <algorithm>
#include <cfloat>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "kernels/ops/sample_weight.h"
#include "kernels/random.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

struct Needs {
  bool drawn = true, top_k = true, top_p = true;
};

std::vector<uint32_t> RunOn(Backend& backend, const std::vector<float>& logits,
                            const std::vector<SamplingRow>& rows,
                            std::optional<int> vocab = std::nullopt, const Needs& needs = {}) {
  const int stride = static_cast<int>(logits.size() / rows.size());
  DeviceArray<float> logits_device(backend, logits);
  std::vector<uint8_t> bytes(rows.size() * sizeof(SamplingRow));
  std::copy_n(reinterpret_cast<const uint8_t*>(rows.data()), bytes.size(), bytes.begin());
  DeviceArray<uint8_t> rows_device(backend, bytes);
  DeviceArray<uint32_t> tokens(backend, std::vector<uint32_t>(rows.size(), 123456789));
  backend.Sample({.logits = logits_device.data(),
                  .num_rows = static_cast<int>(rows.size()),
                  .vocab = vocab.value_or(stride),
                  .row_stride = vocab.has_value() ? stride : 0,
                  .rows = reinterpret_cast<const SamplingRow*>(rows_device.data()),
                  .tokens = tokens.data(),
                  .any_drawn = needs.drawn,
                  .any_top_k = needs.top_k,
                  .any_top_p = needs.top_p});
  return tokens.Read();
}

class SampleTest : public BackendTest {
 protected:
  std::vector<uint32_t> Run(const std::vector<float>& logits,
                            const std::vector<SamplingRow>& rows) {
    return RunOn(backend(), logits, rows);
  }
  uint32_t Greedy(const std::vector<float>& logits) { return Run(logits, {{.temperature = 0}})[0]; }

  // `count` draws from the same logits, at positions 0, 1, ...
  std::vector<uint32_t> Draws(const std::vector<float>& logits, SamplingRow row, int count) {
    std::vector<float> repeated;
    std::vector<SamplingRow> rows;
    for (int i = 0; i < count; ++i) {
      repeated.insert(repeated.end(), logits.begin(), logits.end());
      row.position = i;
      rows.push_back(row);
    }
    return Run(repeated, rows);
  }
};

// The contract's distribution, by sorting all tokens, with the standard library's exp.
std::vector<double> Distribution(const std::vector<float>& logits, const SamplingRow& row) {
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](uint32_t i) { return std::isnan(logits[i]) || logits[i] == -INFINITY; });
  std::stable_sort(ids.begin(), ids.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  if (row.top_k > 0 && ids.size() > static_cast<size_t>(row.top_k)) ids.resize(row.top_k);
  auto p = [&](uint32_t i) {
    return std::exp((static_cast<double>(logits[i]) - logits[ids[0]]) / row.temperature);
  };
  while (p(ids.back()) < row.min_p) ids.pop_back();
  double total = 0.0, sum = 0.0;
  for (uint32_t i : ids) total += p(i);
  size_t count = 0;
  if (row.top_p >= 1.0f) count = ids.size();
  while (count < ids.size() && (count == 0 || sum < row.top_p * total)) sum += p(ids[count++]);
  std::vector<double> distribution(logits.size(), 0.0);
  total = 0.0;
  for (size_t i = 0; i < count; ++i) total += p(ids[i]);
  for (size_t i = 0; i < count; ++i) distribution[ids[i]] = p(ids[i]) / total;
  return distribution;
}

// Settings of every kind; the fractions are chosen so that no sum meets a threshold exactly.
std::vector<SamplingRow> Settings() {
  return {{.temperature = 1.0f},
          {.temperature = 0.3f},
          {.temperature = 2.5f},
          {.temperature = 0.8f, .top_k = 1},
          {.temperature = 0.8f, .top_k = 5},
          {.temperature = 0.8f, .top_k = 40},
          {.temperature = 0.8f, .top_k = 100000},
          {.temperature = 1.0f, .top_p = 0.9371f},
          {.temperature = 1.0f, .top_p = 0.5113f},
          {.temperature = 1.7f, .top_p = 0.9991f},
          {.temperature = 1.0f, .top_p = 1e-6f},
          {.temperature = 1.0f, .min_p = 0.0513f},
          {.temperature = 1.0f, .min_p = 1.0f},
          {.temperature = 0.9f, .top_p = 0.9117f, .min_p = 0.0231f},
          {.temperature = 0.9f, .top_p = 0.8117f, .top_k = 20},
          {.temperature = 1.3f, .top_p = 0.7117f, .min_p = 0.0131f, .top_k = 30}};
}

// Logits past the vocabulary, higher than all others or NaN, are not read.
TEST_P(SampleTest, RowsMayBeWiderThanTheVocabulary) {
  for (const int vocab : {1, 17, 300}) {
    const std::vector<SamplingRow> rows = Settings();
    std::vector<float> narrow, wide;
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::vector<float> logits = RandomFloats(vocab, 100 + static_cast<int>(row));
      narrow.insert(narrow.end(), logits.begin(), logits.end());
      wide.insert(wide.end(), logits.begin(), logits.end());
      wide.insert(wide.end(), 9, row % 2 == 0 ? 1000.0f : NAN);
    }
    EXPECT_EQ(RunOn(backend(), wide, rows, vocab), Run(narrow, rows)) << vocab;
  }
}

TEST_P(SampleTest, GreedyTakesTheHighest) {
  EXPECT_EQ(Greedy({1, 3, 2}), 1u);
  EXPECT_EQ(Greedy({-5}), 0u);
  EXPECT_EQ(Greedy({-FLT_MAX, -INFINITY}), 0u);
  for (int n : {1, 2, 7, 8, 9, 15, 16, 17, 33, 1000}) {
    for (int at : {0, n / 2, n - 1}) {
      std::vector<float> logits = RandomFloats(n, 3 + n);
      logits[at] = 100.0f;
      EXPECT_EQ(Greedy(logits), static_cast<uint32_t>(at)) << n;
    }
  }
}

TEST_P(SampleTest, GreedyTiesGoToTheLowerId) {
  for (int n : {2, 9, 16, 17, 50}) EXPECT_EQ(Greedy(std::vector<float>(n, -2.5f)), 0u) << n;
  std::vector<float> logits(50, 0.0f);
  logits[41] = logits[23] = logits[38] = 1.0f;
  EXPECT_EQ(Greedy(logits), 23u);
  EXPECT_EQ(Greedy({-0.0f, 0.0f}), 0u);
}

TEST_P(SampleTest, NanAndInfinities) {
  for (float temperature : {0.0f, 1.0f}) {
    auto sample = [&](const std::vector<float>& logits) {
      return Run(logits, {{.temperature = temperature}})[0];
    };
    EXPECT_EQ(sample({kNan, 1.0f, kNan}), 1u);
    EXPECT_EQ(sample({-INFINITY, -INFINITY, -3e38f}), 2u);
    EXPECT_EQ(sample({1.0f, INFINITY, 2.0f}), 1u);
    for (int n : {1, 5, 16, 40}) {
      EXPECT_EQ(sample(std::vector<float>(n, kNan)), UINT32_MAX);
      EXPECT_EQ(sample(std::vector<float>(n, -INFINITY)), UINT32_MAX);
      EXPECT_EQ(sample(std::vector<float>(n, INFINITY)), UINT32_MAX);
      std::vector<float> mixed(n, kNan);
      mixed[n / 2] = INFINITY;
      EXPECT_EQ(sample(mixed), UINT32_MAX) << n;
      mixed[0] = -7.0f;  // the only finite value, unless n is 1
      EXPECT_EQ(sample(mixed), n == 1 ? 0u : static_cast<uint32_t>(n / 2));
    }
  }
}

// The draw must be the inverse of the cumulative distribution, in id order, at the
// row's random number.
TEST_P(SampleTest, DrawsByTheExactDistribution) {
  for (const SamplingRow& setting : Settings()) {
    for (int vocab : {1, 2, 13, 64, 331}) {
      const std::vector<float> logits = RandomFloats(vocab, 50 + vocab, 2.0f);
      const std::vector<double> distribution = Distribution(logits, setting);
      SamplingRow row = setting;
      row.seed = 99 + vocab;
      const std::vector<uint32_t> tokens = Draws(logits, row, 200);
      for (int position = 0; position < 200; ++position) {
        const double u = std::ldexp(static_cast<double>(RandomBits(row.seed, position)), -64);
        const uint32_t token = tokens[position];
        ASSERT_LT(token, distribution.size());
        ASSERT_GT(distribution[token], 0.0) << "a token that is cut off";
        const double below =
            std::accumulate(distribution.begin(), distribution.begin() + token, 0.0);
        EXPECT_GE(u, below - 1e-9) << "vocab " << vocab;
        EXPECT_LE(u, below + distribution[token] + 1e-9) << "vocab " << vocab;
      }
    }
  }
}

TEST_P(SampleTest, FrequenciesPassChiSquared) {
  const std::vector<float> logits = RandomFloats(12, 8, 1.0f);
  const int draws = 20000;
  for (const SamplingRow& setting : Settings()) {
    SamplingRow row = setting;
    row.seed = 4242;
    const std::vector<double> distribution = Distribution(logits, row);
    std::vector<int> counts(logits.size(), 0);
    for (uint32_t token : Draws(logits, row, draws)) ++counts[token];
    double chi_squared = 0.0;
    int cells = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double expected = distribution[i] * draws;
      if (expected == 0.0) {
        EXPECT_EQ(counts[i], 0);
        continue;
      }
      chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++cells;
    }
    // Mean cells - 1, variance 2 (cells - 1): five standard deviations, plus a
    // margin for few cells.
    const double freedom = cells - 1;
    EXPECT_LE(chi_squared, freedom + 5 * std::sqrt(2 * freedom) + 8) << "cells " << cells;
  }
}

TEST_P(SampleTest, TopPKeepsTheSmallestSetOnExactSums) {
  // Four equal candidates: two of them weigh exactly one half, and the lower ids rank first.
  std::set<uint32_t> drawn;
  for (uint32_t token : Draws({1, 1, 1, 1}, {.top_p = 0.5f}, 200)) drawn.insert(token);
  EXPECT_EQ(drawn, (std::set<uint32_t>{0, 1}));
  drawn.clear();
  for (uint32_t token : Draws({1, 1, 1, 1}, {.top_p = 0.51f}, 300)) drawn.insert(token);
  EXPECT_EQ(drawn, (std::set<uint32_t>{0, 1, 2}));
}

TEST_P(SampleTest, TopKTiesKeepTheLowerIds) {
  std::vector<float> logits(40, 0.0f);
  logits[30] = 1.0f;
  std::set<uint32_t> drawn;
  for (uint32_t token : Draws(logits, {.top_k = 4}, 500)) drawn.insert(token);
  EXPECT_EQ(drawn, (std::set<uint32_t>{0, 1, 2, 30}));
}

TEST_P(SampleTest, ExtremeTemperatures) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.999f, -FLT_MAX, FLT_MAX / 2};
  for (uint32_t token : Draws(logits, {.temperature = 1e-38f}, 20)) EXPECT_EQ(token, 4u);
  std::set<uint32_t> drawn;
  for (uint32_t token : Draws({1, 2, 3}, {.temperature = 1e30f}, 200)) drawn.insert(token);
  EXPECT_EQ(drawn.size(), 3u);
}

TEST_P(SampleTest, MaskedTokensAreNeverDrawn) {
  std::vector<float> logits(100, -INFINITY);
  logits[7] = -50.0f;
  logits[93] = -50.0f;
  for (const SamplingRow& row : {SamplingRow{.temperature = 100.0f}, SamplingRow{.top_k = 50},
                                 SamplingRow{.top_p = 0.99f}, SamplingRow{.min_p = 0.01f}}) {
    for (uint32_t token : Draws(logits, row, 100)) EXPECT_TRUE(token == 7 || token == 93) << token;
  }
}

// Model-like logits: a few high ones over a wide floor, on the vocabulary of a real tokenizer.
std::vector<float> ModelLogits(int vocab, uint64_t seed) {
  std::vector<float> logits = RandomFloats(vocab, seed, 2.0f);
  std::mt19937_64 engine(seed);
  for (int i = 0; i < 30; ++i) logits[engine() % vocab] += static_cast<float>(i) * 0.4f;
  for (int i = 0; i < 200; ++i) logits[engine() % vocab] = logits[engine() % vocab];  // ties
  return logits;
}

TEST_P(SampleTest, LargeVocabularyAgreesWithTheReference) {
  const auto reference = MakeBackend("reference");
  for (int vocab : {49152, 50257}) {
    std::vector<float> logits;
    std::vector<SamplingRow> rows = Settings();
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float> row = ModelLogits(vocab, 600 + i);
      logits.insert(logits.end(), row.begin(), row.end());
      rows[i].seed = i;
    }
    // Rounded logits: thousands of ties at every cut.
    for (size_t i = logits.size() / 2; i < logits.size(); ++i) {
      logits[i] = std::round(logits[i] * 4) / 4;
    }
    for (int position = 0; position < 2; ++position) {
      for (SamplingRow& row : rows) row.position = position;
      EXPECT_EQ(Run(logits, rows), RunOn(*reference, logits, rows)) << "vocab " << vocab;
    }
  }
}

// Any length, spread and temperature, with ties, NaN and infinities.
TEST_P(SampleTest, DrawnRowsAgreeWithTheReference) {
  const auto reference = MakeBackend("reference");
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    std::mt19937_64 random(seed);
    const auto one_of = [&](std::initializer_list<float> values) {
      return values.begin()[random() % values.size()];
    };
    const int vocab = static_cast<int>(one_of({1, 2, 7, 16, 33, 257, 1500}));
    std::vector<float> logits =
        RandomFloats(vocab, static_cast<unsigned>(seed), one_of({1e-6f, 0.1f, 3.0f, 80.0f, 1e37f}));
    const uint64_t rare = random() % 3 == 0 ? 5 : 1'000'000;
    for (float& logit : logits) {
      if (random() % 2 == 0) logit = std::round(logit);
      if (random() % rare == 0) logit = one_of({NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0.0f});
    }
    const SamplingRow row = {.temperature = one_of({1e-38f, 0.01f, 0.7f, 1.0f, 20.0f, 1e30f}),
                             .top_p = one_of({1e-6f, 0.3f, 0.9f, 0.999f, 1.0f}),
                             .min_p = one_of({0.0f, 0.0f, 0.0f, 1e-5f, 0.2f, 1.0f}),
                             .top_k = static_cast<int32_t>(one_of({0, 0, 0, 1, 20, 300})),
                             .seed = seed};
    EXPECT_EQ(Run(logits, {row}), RunOn(*reference, logits, {row})) << "seed " << seed;
  }
}

// Rows split over several blocks, at any alignment: cuts and draws fall into any part, ties cross
// part borders, and candidates are few, or in one part only.
TEST_P(SampleTest, PartsOfLongRowsJoin) {
  const auto reference = MakeBackend("reference");
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<SamplingRow> rows = Settings();
    if (seed % 3 == 0) rows.resize(1 + random() % 3);
    const int vocab = static_cast<int>(4090 + random() % 17000);
    const int stride = vocab + static_cast<int>(random() % 6);
    std::vector<float> logits =
        RandomFloats(rows.size() * stride, static_cast<unsigned>(seed), 4.0f);
    for (float& logit : logits) {
      if (random() % 2 == 0) logit = std::round(logit);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].seed = random();
      float* row = logits.data() + i * stride;
      const int kind = static_cast<int>(random() % 4);
      const int from = static_cast<int>(random() % vocab);
      if (kind == 1) std::fill(row, row + from, -INFINITY);
      if (kind == 2) std::fill(row + from, row + vocab, NAN);
      if (kind == 3) std::fill(row, row + vocab, 1.5f);
    }
    EXPECT_EQ(RunOn(backend(), logits, rows, vocab), RunOn(*reference, logits, rows, vocab))
        << "seed " << seed;
  }
}

// A device skips passes that no row needs.
TEST_P(SampleTest, UnusedOptionsMayBeLeftOut) {
  const auto reference = MakeBackend("reference");
  constexpr int kVocab = 5000;
  for (int asked = 0; asked < 8; ++asked) {
    const bool draws = (asked & 1) != 0, top_k = (asked & 2) != 0, top_p = (asked & 4) != 0;
    const SamplingRow row = {.temperature = draws ? 0.9f : 0.0f,
                             .top_p = top_p ? 0.7f : 1.0f,
                             .top_k = top_k ? 40 : 0,
                             .seed = 77};
    const std::vector<SamplingRow> rows = {row, {.temperature = 0}, row};
    const std::vector<float> logits = RandomFloats(3 * kVocab, 40 + asked, 2.0f);
    const Needs needs = {.drawn = draws, .top_k = top_k, .top_p = top_p};
    EXPECT_EQ(RunOn(backend(), logits, rows, std::nullopt, needs), RunOn(*reference, logits, rows))
        << asked;
  }
}

TEST_P(SampleTest, FlatLargeDistribution) {
  const auto reference = MakeBackend("reference");
  const std::vector<float> flat(50000, 0.25f);
  for (SamplingRow row : Settings()) {
    row.seed = 3;
    EXPECT_EQ(Run(flat, {row}), RunOn(*reference, flat, {row}));
  }
}

TEST_P(SampleTest, RowsDoNotDependOnTheBatchOrThreads) {
  const int vocab = 3001;
  const std::vector<SamplingRow> rows = Settings();
  std::vector<float> logits;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float> row = ModelLogits(vocab, 700 + i);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const std::vector<uint32_t> batch = Run(logits, rows);
  EXPECT_EQ(RunOn(*MakeBackend(GetParam(), 1), logits, rows), batch);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float> alone(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
    EXPECT_EQ(Run(alone, {rows[i]})[0], batch[i]) << i;
  }
}

TEST_P(SampleTest, SeedAndPositionDecideTheDraw) {
  const std::vector<float> flat(1000, 0.0f);
  const std::vector<uint32_t> first = Draws(flat, {.seed = 1}, 50);
  EXPECT_EQ(Draws(flat, {.seed = 1}, 50), first);
  EXPECT_NE(Draws(flat, {.seed = 2}, 50), first);
  EXPECT_GT(std::set<uint32_t>(first.begin(), first.end()).size(), 40u);
}

HYDRANT_FOR_EACH_BACKEND(SampleTest);

TEST(SampleWeightTest, IsExpInFixedPoint) {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> uniform(-40.0, 0.0);
  for (int i = 0; i < 100000; ++i) {
    const double x = i == 0 ? 0.0 : uniform(engine);
    const long double expected = std::ldexp(std::exp(static_cast<long double>(x)), kWeightBits);
    // Half a rounding unit, the series' truncation (7e-15) and double rounding errors.
    ASSERT_NEAR(static_cast<double>(SampleWeight(x)), static_cast<double>(expected),
                0.5 + static_cast<double>(expected) * 1e-14)
        << x;
  }
  EXPECT_EQ(SampleWeight(0.0), kHighestWeight);
  for (double x : {-40.0, -64.0, -1e300, -HUGE_VAL, std::nan("")}) {
    EXPECT_EQ(SampleWeight(x), 0u) << x;
  }
}

TEST(RandomBitsTest, BitsAreBalancedAndIndependentOfNeighbours) {
  // Over 2^14 (seed, position) pairs: each bit is set half of the time, and flips half of the time
  // between neighbouring positions and between neighbouring seeds.
  const int pairs = 1 << 14;
  const double tolerance = 5 * std::sqrt(pairs * 0.25);
  int set[64] = {}, by_position[64] = {}, by_seed[64] = {};
  for (int i = 0; i < pairs; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i % 128);
    const int position = i / 128;
    const uint64_t bits = RandomBits(seed, position);
    const uint64_t position_change = bits ^ RandomBits(seed, position + 1);
    const uint64_t seed_change = bits ^ RandomBits(seed + 1, position);
    for (int b = 0; b < 64; ++b) {
      set[b] += static_cast<int>(bits >> b & 1);
      by_position[b] += static_cast<int>(position_change >> b & 1);
      by_seed[b] += static_cast<int>(seed_change >> b & 1);
    }
  }
  for (int b = 0; b < 64; ++b) {
    EXPECT_NEAR(set[b], pairs / 2.0, tolerance) << b;
    EXPECT_NEAR(by_position[b], pairs / 2.0, tolerance) << b;
    EXPECT_NEAR(by_seed[b], pairs / 2.0, tolerance) << b;
  }
}

TEST(RandomBitsTest, RandomBelowCoversItsRange) {
  EXPECT_EQ(RandomBelow(0, 10), 0u);
  EXPECT_EQ(RandomBelow(UINT64_MAX, 10), 9u);
  EXPECT_EQ(RandomBelow(UINT64_MAX, 1), 0u);
  EXPECT_EQ(RandomBelow(uint64_t{1} << 63, uint64_t{1} << 62), uint64_t{1} << 61);
}

}  // namespace
}  // namespace hydrant
