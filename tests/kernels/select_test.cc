#include "kernels/ops/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <set>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

class SelectTest : public BackendTest {
 protected:
  // scores: [heads][n]. Returns the kept positions of each head.
  std::vector<std::vector<int32_t>> Run(const std::vector<std::vector<float>>& scores, int sinks,
                                        int recent, const std::vector<int32_t>& keep) {
    const int heads = static_cast<int>(scores.size()), n = static_cast<int>(scores[0].size());
    const int64_t score_stride = n + 5, kept_stride = n + 3;
    std::vector<float> flat(heads * score_stride, INFINITY);  // the padding would win
    for (int h = 0; h < heads; ++h) {
      std::copy(scores[h].begin(), scores[h].end(), flat.begin() + h * score_stride);
    }
    auto scores_device = Upload(flat);
    auto keep_device = Upload(keep);
    auto kept = Upload(std::vector<int32_t>(heads * kept_stride, -7));
    backend().Select({.scores = scores_device.data(),
                      .score_stride = score_stride,
                      .num_kv_heads = heads,
                      .n = n,
                      .sinks = sinks,
                      .recent = recent,
                      .keep = keep_device.data(),
                      .kept = kept.data(),
                      .kept_stride = kept_stride});
    const std::vector<int32_t> out = kept.Read();
    std::vector<std::vector<int32_t>> result;
    for (int h = 0; h < heads; ++h) {
      const auto begin = out.begin() + h * kept_stride;
      result.emplace_back(begin, begin + keep[h]);
      EXPECT_EQ(std::count(begin + keep[h], begin + kept_stride, -7), kept_stride - keep[h])
          << "written past keep, head " << h;
    }
    return result;
  }
};

// Selection with a budget shared by the heads of a layer.
class SelectOfLayerTest : public BackendTest {
 protected:
  std::vector<std::vector<int32_t>> Run(const std::vector<std::vector<float>>& scores, int sinks,
                                        int recent, int total) {
    const int heads = static_cast<int>(scores.size()), n = static_cast<int>(scores[0].size());
    const int64_t score_stride = n + 5, kept_stride = n + 3;
    std::vector<float> flat(heads * score_stride, INFINITY);  // the padding would win
    for (int h = 0; h < heads; ++h)
      std::copy(scores[h].begin(), scores[h].end(), flat.begin() + h * score_stride);
    auto scores_device = Upload(flat);
    auto counts = Upload(std::vector<int32_t>(heads, -7));
    auto kept = Upload(std::vector<int32_t>(heads * kept_stride, -7));
    backend().Select({.scores = scores_device.data(),
                      .score_stride = score_stride,
                      .num_kv_heads = heads,
                      .n = n,
                      .sinks = sinks,
                      .recent = recent,
                      .kept = kept.data(),
                      .kept_stride = kept_stride,
                      .counts = counts.data(),
                      .total = total});
    const std::vector<int32_t> out = kept.Read(), count = counts.Read();
    std::vector<std::vector<int32_t>> result;
    for (int h = 0; h < heads; ++h) {
      const auto begin = out.begin() + h * kept_stride;
      if (count[h] < 0 || count[h] > n) {
        ADD_FAILURE() << "head " << h << " counts " << count[h];
        return {};
      }
      result.emplace_back(begin, begin + count[h]);
      EXPECT_EQ(std::count(begin + count[h], begin + kept_stride, -7), kept_stride - count[h])
          << "written past the count, head " << h;
    }
    return result;
  }
};

// Drops one unprotected entry of the layer at a time: the lowest score, ties to the lower position,
// then to the higher head.
std::vector<std::vector<int32_t>> DropOneByOne(const std::vector<std::vector<float>>& scores,
                                               int sinks, int recent, int total) {
  struct Entry {
    float score;
    int32_t position;
    int minus_head;
    auto operator<=>(const Entry&) const = default;
  };
  const int heads = static_cast<int>(scores.size()), n = static_cast<int>(scores[0].size());
  std::set<Entry> open;
  std::vector<std::set<int32_t>> live(heads);
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < n; ++i) {
      live[h].insert(i);
      if (i < sinks || i >= n - recent) continue;
      open.insert({std::isnan(scores[h][i]) ? -INFINITY : scores[h][i], i, -h});
    }
  }
  int count = heads * n;
  for (auto lowest = open.begin(); count > total; ++lowest) {
    live[-lowest->minus_head].erase(lowest->position);
    --count;
  }
  std::vector<std::vector<int32_t>> kept;
  kept.reserve(live.size());
  for (const std::set<int32_t>& head : live) kept.emplace_back(head.begin(), head.end());
  return kept;
}

TEST_P(SelectOfLayerTest, EqualsDroppingOneByOne) {
  const uint64_t seed = 23;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const int n = 1 + static_cast<int>(engine() % (trial % 10 == 0 ? 600 : 60));
    const int heads = 1 + static_cast<int>(engine() % 5);
    const int sinks = static_cast<int>(engine() % 6), recent = static_cast<int>(engine() % 12);
    const int open = std::max(0, n - sinks - recent);
    const int least = heads * (n - open);
    const int total = least + static_cast<int>(engine() % (heads * n - least + 1));
    std::vector<std::vector<float>> scores(heads);
    for (int h = 0; h < heads; ++h) {
      // Heads of different levels, so that some keep little; few distinct values, so that
      // there are many ties.
      const float lift = trial % 2 == 0 ? static_cast<float>(h) : 0.0f;
      for (int i = 0; i < n; ++i) {
        const uint64_t kind = engine() % 40;
        scores[h].push_back(kind == 0   ? kNan
                            : kind == 1 ? -INFINITY
                            : kind == 2 ? INFINITY
                            : kind == 3 ? -0.0f
                                        : static_cast<float>(engine() % 4) - 2.0f + lift);
      }
    }
    ASSERT_EQ(Run(scores, sinks, recent, total), DropOneByOne(scores, sinks, recent, total))
        << "trial " << trial << " n " << n << " heads " << heads << " sinks " << sinks << " recent "
        << recent << " total " << total;
  }
}

// Scores that differ only in their last bits, over several blocks of every head and
// positions of two digits.
// Attention weights of a few heads, each row summing to 1: some heads concentrated, some flat.
std::vector<std::vector<float>> AttentionOfHeads(int heads, int n, std::mt19937_64* engine) {
  std::vector<std::vector<float>> weights(heads, std::vector<float>(n));
  for (std::vector<float>& row : weights) {
    const double sharpness = 1 + static_cast<double>((*engine)() % 6);
    std::exponential_distribution<double> draw(1.0);
    double sum = 0;
    for (float& weight : row)
      sum += weight = static_cast<float>(std::pow(draw(*engine), sharpness));
    for (float& weight : row) weight = static_cast<float>(weight / sum);
  }
  return weights;
}

double WeightOf(const std::vector<std::vector<float>>& weights,
                const std::vector<std::vector<int32_t>>& kept) {
  double sum = 0;
  for (size_t h = 0; h < weights.size(); ++h) {
    for (const int32_t i : kept[h]) sum += weights[h][i];
  }
  return sum;
}

// Ada-KV, theorem 3.3: of all divisions of a layer's budget among its heads, and of all choices of
// entries within them, ours has the least bound of the loss, 2 h C - 2 C * (weight that is kept).
// All sets of `total` entries of the layer are tried.
TEST_P(SelectOfLayerTest, NoOtherDivisionHasALowerBound) {
  const uint64_t seed = 27;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  int uneven = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int heads = 2 + static_cast<int>(engine() % 2), n = 4 + static_cast<int>(engine() % 2);
    const int total = 1 + static_cast<int>(engine() % (heads * n));
    const auto weights = AttentionOfHeads(heads, n, &engine);
    const auto kept = Run(weights, 0, 0, total);
    double best = 0;
    for (uint32_t set = 0; set < 1u << heads * n; ++set) {
      if (std::popcount(set) != total) continue;
      double sum = 0;
      for (int i = 0; i < heads * n; ++i) {
        if ((set >> i & 1) != 0) sum += weights[i / n][i % n];
      }
      best = std::max(best, sum);
    }
    EXPECT_NEAR(WeightOf(weights, kept), best, 1e-12) << "trial " << trial;
    uneven += kept[0].size() != kept[1].size();
  }
  EXPECT_GT(uneven, 20);
}

TEST_P(SelectOfLayerTest, LongPrompt) {
  const int n = 5003, heads = 3;
  std::vector<std::vector<float>> scores;
  for (int h = 0; h < heads; ++h) {
    scores.push_back(RandomFloats(n, 31 + h, 1e-4f));
    for (float& score : scores[h]) score += 100.0f;
  }
  for (const int total : {3 * 68, 3 * 68 + 1, 3300, 3 * n - 1, 3 * n})
    EXPECT_EQ(Run(scores, 4, 64, total), DropOneByOne(scores, 4, 64, total)) << total;
}

// All scores equal: the newest positions are kept, the last place goes to the lower heads.
TEST_P(SelectOfLayerTest, EqualScoresGoToNewPositionsThenLowHeads) {
  const std::vector<std::vector<float>> scores(4, std::vector<float>(10, 0.5f));
  const auto kept = Run(scores, 1, 2, 4 * 3 + 6);
  EXPECT_EQ(kept[0], (std::vector<int32_t>{0, 6, 7, 8, 9}));
  EXPECT_EQ(kept[1], kept[0]);
  EXPECT_EQ(kept[2], (std::vector<int32_t>{0, 7, 8, 9}));
  EXPECT_EQ(kept[3], kept[2]);
}

TEST_P(SelectOfLayerTest, EmptyHeadsAndOneHead) {
  const std::vector<std::vector<float>> scores = {{9, 8, 7, 6}, {1, 4, 3, 2}};
  const auto kept = Run(scores, 0, 0, 4);
  EXPECT_EQ(kept[0].size(), 4u);
  EXPECT_TRUE(kept[1].empty());
  EXPECT_EQ(Run({{3, 1, 2}}, 0, 0, 2)[0], (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(Run({{3, 1, 2}}, 2, 2, 3)[0], (std::vector<int32_t>{0, 1, 2}));
}

// Evicts one entry at a time in the victim rule's order: the lowest score, then the lower position.
std::vector<int32_t> EvictOneByOne(const std::vector<float>& scores, int sinks, int recent,
                                   int keep) {
  const int n = static_cast<int>(scores.size());
  std::vector<int32_t> live(n);
  for (int i = 0; i < n; ++i) live[i] = i;
  while (static_cast<int>(live.size()) > keep) {
    auto victim = live.end();
    for (auto it = live.begin(); it != live.end(); ++it) {
      if (*it < sinks || *it >= n - recent) continue;
      auto value = [&](int32_t i) { return std::isnan(scores[i]) ? -INFINITY : scores[i]; };
      if (victim == live.end() || value(*it) < value(*victim)) victim = it;
    }
    live.erase(victim);
  }
  return live;
}

TEST_P(SelectTest, EqualsEvictingOneByOne) {
  const uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const int n = 1 + static_cast<int>(engine() % 70), heads = 1 + static_cast<int>(engine() % 4);
    const int sinks = static_cast<int>(engine() % 6), recent = static_cast<int>(engine() % 20);
    const int least = std::min(n, sinks + recent);
    std::vector<std::vector<float>> scores(heads);
    std::vector<int32_t> keep;
    for (auto& head : scores) {
      // Few distinct values, hence ties, and occasionally a special value.
      for (int i = 0; i < n; ++i) {
        const uint64_t kind = engine() % 40;
        head.push_back(kind == 0   ? kNan
                       : kind == 1 ? -INFINITY
                       : kind == 2 ? INFINITY
                       : kind == 3 ? -0.0f
                                   : static_cast<float>(engine() % 5) - 2.0f);
      }
      keep.push_back(least + static_cast<int>(engine() % (n - least + 1)));
    }
    const auto kept = Run(scores, sinks, recent, keep);
    for (int h = 0; h < heads; ++h) {
      EXPECT_EQ(kept[h], EvictOneByOne(scores[h], sinks, recent, keep[h]))
          << "trial " << trial << " head " << h << " n " << n << " sinks " << sinks << " recent "
          << recent;
    }
  }
}

// Ada-KV, theorem 3.2: with the numbers of entries given head by head, no other sets of entries have
// a lower bound of the loss.
TEST_P(SelectTest, NoOtherSetsHaveALowerBound) {
  const uint64_t seed = 28;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 engine(seed);
  for (int trial = 0; trial < 60; ++trial) {
    const int heads = 1 + static_cast<int>(engine() % 3), n = 2 + static_cast<int>(engine() % 9);
    const auto weights = AttentionOfHeads(heads, n, &engine);
    std::vector<int32_t> keep(heads);
    for (int32_t& count : keep) count = static_cast<int32_t>(engine() % (n + 1));
    const auto kept = Run(weights, 0, 0, keep);
    double best = 0;
    for (int h = 0; h < heads; ++h) {
      double best_of_head = 0;
      for (uint32_t set = 0; set < 1u << n; ++set) {
        if (std::popcount(set) != keep[h]) continue;
        double sum = 0;
        for (int i = 0; i < n; ++i) sum += (set >> i & 1) != 0 ? weights[h][i] : 0.0;
        best_of_head = std::max(best_of_head, sum);
      }
      best += best_of_head;
    }
    EXPECT_NEAR(WeightOf(weights, kept), best, 1e-12) << "trial " << trial;
  }
}

TEST_P(SelectTest, LongPrompt) {
  const int n = 5003;
  const std::vector<float> scores = RandomFloats(n, 17);
  const auto kept = Run({scores}, 4, 64, {1000})[0];
  ASSERT_TRUE(std::is_sorted(kept.begin(), kept.end()));
  const std::set<int32_t> set(kept.begin(), kept.end());
  ASSERT_EQ(set.size(), 1000u);
  float lowest_kept = INFINITY, highest_dropped = -INFINITY;
  for (int i = 0; i < n; ++i) {
    if (i < 4 || i >= n - 64) {
      EXPECT_TRUE(set.count(i)) << i;
    } else if (set.count(i)) {
      lowest_kept = std::min(lowest_kept, scores[i]);
    } else {
      highest_dropped = std::max(highest_dropped, scores[i]);
    }
  }
  EXPECT_GE(lowest_kept, highest_dropped);
}

TEST_P(SelectTest, EverythingProtectedOrKept) {
  const std::vector<std::vector<float>> scores = {{3, 1, 2}};
  const std::vector<int32_t> all = {0, 1, 2};
  EXPECT_EQ(Run(scores, 5, 5, {3})[0], all);
  EXPECT_EQ(Run(scores, 0, 3, {3})[0], all);
  EXPECT_EQ(Run(scores, 3, 0, {3})[0], all);
  EXPECT_EQ(Run(scores, 0, 0, {3})[0], all);
  EXPECT_TRUE(Run(scores, 0, 0, {0})[0].empty());
  EXPECT_EQ(Run({{9}}, 0, 0, {1})[0], std::vector<int32_t>{0});
}

HYDRANT_FOR_EACH_BACKEND(SelectTest);
HYDRANT_FOR_EACH_BACKEND(SelectOfLayerTest);

}  // namespace
}  // namespace hydrant
