// ReviseScores of every backend against plain loops over heads as lists, bit for bit; memory
// outside the step's rows must not change.
#include "kernels/ops/revise_scores.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "tests/kernels/backend_test.h"
#include "tests/kernels/paged_pool.h"

namespace hydrant {
namespace {

constexpr int kLayers = 2, kLayer = 1;
constexpr int32_t kUntouched = -9;

// A sequence before the operation: its rule and, for each head, its length and cap.
struct Row {
  DecodeRule rule = {};
  int32_t position = 0;  // of the newest token, which is an entry of every head
  std::vector<int32_t> lengths = {};
  std::vector<int32_t> caps = {};
};

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

class ReviseScoresTest : public BackendTest {
 protected:
  // Slot i belongs to rows[i]; past a head's length and in pages of no sequence, scores would win
  // if they were read.
  void Make(const std::vector<Row>& rows, int block_size, uint64_t seed) {
    std::mt19937_64 random(seed);
    rows_ = rows;
    heads_ = static_cast<int>(rows[0].lengths.size());
    int32_t longest = 0;
    for (const Row& row : rows)
      longest = std::max(longest, *std::max_element(row.lengths.begin(), row.lengths.end()));
    pool_ = PagedPool({.num_slots = static_cast<int>(rows.size()),
                       .num_layers = kLayers,
                       .num_kv_heads = heads_,
                       .width = (longest + block_size - 1) / block_size + 1,
                       .block_size = block_size},
                      random());
    pool_.positions.assign(pool_.NumPlaces(), INT_MAX);
    pool_.scores.assign(pool_.NumPlaces(), -INFINITY);
    pool_.log_weights = RandomFloats(2 * pool_.NumPlaces(), seed + 1);
    pool_.lengths.assign(pool_.lengths.size(), kUntouched);
    pool_.caps = pool_.victims = pool_.lengths;
    for (size_t slot = 0; slot < rows.size(); ++slot) Fill(slot, random);
  }

  void Fill(size_t slot, std::mt19937_64& random) {
    const Row& row = rows_[slot];
    pool_.rules[slot] = row.rule;
    std::vector<int32_t> order;
    for (int h = 0; h < heads_; ++h) {
      pool_.lengths[List(slot, h)] = row.lengths[h];
      pool_.caps[List(slot, h)] = row.caps[h];
      // The newest entry, and random earlier ones; the same for all heads if they
      // share their scores.
      if (h == 0 || row.rule.revision != Revision::kLayerMean) {
        std::vector<int32_t> others(row.position);
        std::iota(others.begin(), others.end(), 0);
        std::shuffle(others.begin(), others.end(), random);
        order.assign(others.begin(), others.begin() + row.lengths[h] - 1);
        order.push_back(row.position);
        std::shuffle(order.begin(), order.end(), random);
      }
      for (int32_t e = 0; e < row.lengths[h]; ++e) {
        const size_t place = Place(slot, h, e);
        pool_.positions[place] = order[e];
        pool_.scores[State(place)] = Weight(row.lengths[h], random);
        pool_.log_weights[2 * State(place)] = static_cast<float>(random() % 50);
      }
    }
  }

  // Weights of every size, including some at the mean and on both sides of its margin.
  static float Weight(int32_t length, std::mt19937_64& random) {
    const float mean = 1.0f / static_cast<float>(length);
    switch (random() % 8) {
      case 0:
        return mean;
      case 1:
        return mean * (1.0f - 1.0f / 512);
      case 2:
        return mean * (1.0f - 1.0f / 2048);
      case 3:
        return 0.0f;
      default:
        return 2.0f * mean * static_cast<float>(random() % 1000) / 1000.0f;
    }
  }

  size_t List(size_t slot, int head) const {
    return pool_.Head(static_cast<int>(slot), kLayer, head);
  }
  size_t Place(size_t slot, int head, int32_t entry) const {
    return pool_.Place(static_cast<int>(slot), kLayer, head, entry);
  }
  size_t State(size_t place) const { return pool_.State(place); }

  // Runs the backend's step for the rows in `slots`; below 0: padding.
  void Run(const std::vector<int32_t>& slots) {
    std::vector<int32_t> step_positions;
    step_positions.reserve(slots.size());
    for (const int32_t slot : slots)
      step_positions.push_back(slot < 0 ? 1 << 30 : rows_[slot].position);
    DevicePool pool(backend(), pool_);
    auto device_slots = Upload(slots), device_positions = Upload(step_positions);
    ReviseScoresArgs args;
    args.num_rows = static_cast<int>(slots.size());
    args.slots = device_slots.data();
    args.positions = device_positions.data();
    args.layer = kLayer;
    args.pages = pool.Pages();
    args.tables = pool.Tables();
    backend().ReviseScores(args);
    pool.ReadBack(&pool_);
  }

  float ExpectedScore(size_t slot, int head, int32_t entry) const {
    const Row& row = rows_[slot];
    const size_t place = Place(slot, head, entry);
    switch (row.rule.revision) {
      case Revision::kNone:
        break;
      case Revision::kLayerMean: {
        double sum = 0;
        for (int h = 0; h < heads_; ++h) sum += pool_.scores[State(Place(slot, h, entry))];
        return static_cast<float>(sum / heads_);
      }
      case Revision::kRandom:
        return RandomScore(row.rule.seed, kLayer, head, row.position + 1, pool_.positions[place]);
      case Revision::kBelowMean:
        return -ExpectedCount(slot, head, entry);
    }
    return pool_.scores[State(place)];
  }
  float ExpectedCount(size_t slot, int head, int32_t entry) const {
    const Row& row = rows_[slot];
    const size_t place = Place(slot, head, entry);
    const int32_t length = row.lengths[head];
    if (length <= row.caps[head] - row.rule.history) return 0.0f;
    const bool first = length == row.caps[head] - row.rule.history + 1;
    const float before = first || pool_.positions[place] == row.position
                             ? 0.0f
                             : pool_.log_weights[2 * State(place)];
    return before + (pool_.scores[State(place)] * static_cast<float>(length) < 1.0f - 1.0f / 65536
                         ? 1.0f
                         : 0.0f);
  }
  int32_t ExpectedVictim(size_t slot, int head) const {
    const Row& row = rows_[slot];
    if (row.rule.revision == Revision::kNone || row.lengths[head] != row.caps[head])
      return kUntouched;
    std::vector<std::tuple<float, int32_t, int32_t>> open;
    for (int32_t e = 0; e < row.lengths[head]; ++e) {
      const int32_t position = pool_.positions[Place(slot, head, e)];
      if (position < row.rule.sinks || position > row.position + 1 - row.rule.recent) continue;
      open.emplace_back(ExpectedScore(slot, head, e), position, e);
    }
    return open.empty() ? 0 : std::get<2>(*std::min_element(open.begin(), open.end()));
  }

  // Runs the step and compares all memory.
  void RunAndCompare(const std::vector<int32_t>& slots) {
    PagedPool expected = pool_;
    for (const int32_t slot : slots) {
      if (slot < 0) continue;
      for (int h = 0; h < heads_; ++h) {
        for (int32_t e = 0; e < rows_[slot].lengths[h]; ++e) {
          const size_t state = State(Place(slot, h, e));
          expected.scores[state] = ExpectedScore(slot, h, e);
          if (rows_[slot].rule.revision == Revision::kBelowMean)
            expected.log_weights[2 * state] = ExpectedCount(slot, h, e);
        }
        expected.victims[List(slot, h)] = ExpectedVictim(slot, h);
      }
    }
    Run(slots);
    EXPECT_EQ(Bits(pool_.scores), Bits(expected.scores));
    EXPECT_EQ(Bits(pool_.log_weights), Bits(expected.log_weights));
    EXPECT_EQ(pool_.victims, expected.victims);
    EXPECT_EQ(pool_.positions, expected.positions);
    EXPECT_EQ(pool_.lengths, expected.lengths);
    EXPECT_EQ(pool_.caps, expected.caps);
    EXPECT_EQ(pool_.keys, expected.keys);
    EXPECT_EQ(pool_.values, expected.values);
  }

  std::vector<Row> rows_;
  int heads_ = 0;
  PagedPool pool_;
};

// One row with `length` entries in each head, at or below a cap.
Row Alike(const DecodeRule& rule, int heads, int32_t length, int32_t cap) {
  return {rule, length + 30, std::vector<int32_t>(heads, length), std::vector<int32_t>(heads, cap)};
}

TEST_P(ReviseScoresTest, EveryRevisionAgainstPlainLoops) {
  uint64_t seed = 5;
  for (const int heads : {1, 2, 5}) {
    for (const int32_t length : {1, 2, 15, 16, 17, 255, 256, 257, 300}) {
      SCOPED_TRACE(testing::Message()
                   << heads << " heads, " << length << " entries, seed " << ++seed);
      std::vector<Row> rows;
      for (const Revision revision :
           {Revision::kNone, Revision::kLayerMean, Revision::kRandom, Revision::kBelowMean}) {
        for (const int32_t below_cap : {0, 1}) {
          DecodeRule rule = {.decay = 0.0f, .scored = true, .revision = revision, .seed = seed};
          rule.sinks = static_cast<int32_t>(seed % 3);
          rule.recent = static_cast<int32_t>(seed % 4);
          rule.history = length / 2;
          rows.push_back(Alike(rule, heads, length, length + below_cap));
        }
      }
      Make(rows, 16, seed);
      RunAndCompare({6, 3, -1, 0, 2, 7, 4, -1});  // not 1 and 5
    }
  }
}

TEST_P(ReviseScoresTest, HeadsOfDifferentLengths) {
  std::vector<Row> rows;
  for (const Revision revision : {Revision::kRandom, Revision::kBelowMean}) {
    const DecodeRule rule = {.scored = true, .recent = 3, .revision = revision, .history = 9};
    rows.push_back({rule, 90, {1, 40, 17, 33}, {1, 41, 17, 36}});
  }
  Make(rows, 4, 77);
  RunAndCompare({1, 0});
}

// From far below the cap to the cap: the number of queries that weighed each entry below the mean,
// over the last `history` steps. Then 5 entries are evicted, and counting restarts.
TEST_P(ReviseScoresTest, CountsTheLastStepsBeforeTheCap) {
  constexpr int32_t kCap = 20, kHistory = 5, kFirst = 9;
  const uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const DecodeRule rule = {
      .decay = 0.0f, .scored = true, .revision = Revision::kBelowMean, .history = kHistory};
  Make({Alike(rule, 1, kCap, kCap)}, 16, seed);
  std::vector<std::set<int>> below(kCap);  // for each entry: the steps in which it was below
  int step = 0;
  for (int32_t length = kFirst; step < 30; ++step, ++length) {
    if (length > kCap) {
      length = kCap - 5 + 1;
      for (std::set<int>& steps : below) steps.clear();
    }
    rows_[0].lengths[0] = pool_.lengths[List(0, 0)] = length;
    for (int32_t e = 0; e < length; ++e) {
      const size_t place = Place(0, 0, e);
      if (e == length - 1) pool_.positions[place] = ++rows_[0].position;
      pool_.scores[State(place)] =
          static_cast<float>(random() % 2) * 1.9f / static_cast<float>(length);
      if (e == length - 1) below[e].clear();
      if (pool_.scores[State(place)] == 0.0f) below[e].insert(step);
    }
    Run({0});
    const int next_drop = step + kCap - length + 1;
    for (int32_t e = 0; e < length; ++e) {
      const auto counted = std::count_if(below[e].begin(), below[e].end(),
                                         [&](int at) { return at >= next_drop - kHistory; });
      ASSERT_EQ(pool_.scores[State(Place(0, 0, e))], -static_cast<float>(counted))
          << "step " << step << " entry " << e;
    }
  }
}

// A weight that rounding has put below the mean counts as the mean; one that is
// slightly lower counts.
TEST_P(ReviseScoresTest, TheMeanItselfIsNotBelowTheMean) {
  constexpr int32_t kEntries = 49;
  const DecodeRule rule = {
      .decay = 0.0f, .scored = true, .revision = Revision::kBelowMean, .history = 1};
  Make({Alike(rule, 1, kEntries, kEntries)}, 16, 4);
  const float mean = 1.0f / kEntries;
  for (int32_t e = 0; e < kEntries; ++e) {
    pool_.scores[State(Place(0, 0, e))] = e % 3 == 0   ? mean
                                          : e % 3 == 1 ? mean * (1.0f - 4e-7f)
                                                       : mean * (1.0f - 1.0f / 4096);
  }
  Run({0});
  for (int32_t e = 0; e < kEntries; ++e)
    EXPECT_EQ(pool_.scores[State(Place(0, 0, e))], e % 3 == 2 ? -1.0f : 0.0f) << "entry " << e;
}

TEST_P(ReviseScoresTest, EqualScoresAndNanAndNothingOpen) {
  const DecodeRule rule = {.scored = true, .sinks = 1, .revision = Revision::kLayerMean};
  DecodeRule closed = rule;
  closed.recent = 100;
  Make({Alike(rule, 2, 18, 18), Alike(rule, 2, 18, 18), Alike(closed, 2, 18, 18)}, 16, 3);
  for (int32_t e = 0; e < 18; ++e) {
    for (int h = 0; h < 2; ++h) {
      pool_.scores[State(Place(0, h, e))] = e % 2 == h ? 0.25f : 0.75f;
      pool_.scores[State(Place(1, h, e))] = e == 17 && h == 1 ? kNan : 0.0f;
    }
  }
  // The lowest position that is not a sink.
  int32_t lowest = -1;
  for (int32_t e = 0; e < 18; ++e) {
    const int32_t at = pool_.positions[Place(0, 0, e)];
    if (at >= 1 && (lowest < 0 || at < pool_.positions[Place(0, 0, lowest)])) lowest = e;
  }
  pool_.positions[Place(1, 0, 17)] = pool_.positions[Place(1, 1, 17)] = 35;
  Run({0, 1, 2});
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(pool_.victims[List(0, h)], lowest);
    EXPECT_EQ(pool_.victims[List(1, h)], 17) << "NaN counts as -infinity";
    EXPECT_EQ(pool_.victims[List(2, h)], 0);
  }
}

// Every entry is equally likely to be the victim: chi-squared over many seeds, 99.9 % quantile of 7
// degrees of freedom.
TEST_P(ReviseScoresTest, RandomVictimsAreUniform) {
  constexpr int kRows = 240, kEntries = 8;
  std::vector<Row> rows;
  std::vector<int32_t> slots;
  for (int i = 0; i < kRows; ++i) {
    const DecodeRule rule = {
        .scored = true, .revision = Revision::kRandom, .seed = static_cast<uint64_t>(i)};
    rows.push_back(Alike(rule, 1, kEntries, kEntries));
    slots.push_back(i);
  }
  Make(rows, 16, 8);
  Run(slots);
  std::vector<int> counts(kEntries, 0);
  for (int i = 0; i < kRows; ++i) ++counts[pool_.victims[List(i, 0)]];
  double chi_squared = 0;
  for (const int count : counts) {
    const double expected = static_cast<double>(kRows) / kEntries;
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_squared, 24.32);
}

HYDRANT_FOR_EACH_BACKEND(ReviseScoresTest);

TEST(RandomScore, DiffersByEachOfItsArguments) {
  std::set<float> seen;
  for (const uint64_t seed : {0, 1}) {
    for (const int layer : {0, 1}) {
      for (const int head : {0, 1}) {
        for (const int next : {7, 8}) {
          for (const int position : {5, 6}) {
            const float score = RandomScore(seed, layer, head, next, position);
            EXPECT_GE(score, 0.0f);
            EXPECT_LT(score, 1.0f);
            seen.insert(score);
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 32u);
}

}  // namespace
}  // namespace hydrant
