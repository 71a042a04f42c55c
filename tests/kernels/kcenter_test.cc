// KCenter of every backend against a search over all pairs in double precision.
#include "kernels/ops/kcenter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

struct Keys {
  int heads, head_dim, n;
  std::vector<float> values = {};  // [heads, n, head_dim]

  const float* At(int head, int j) const {
    return &values[(static_cast<size_t>(head) * n + j) * head_dim];
  }
};

Keys RandomKeys(int heads, int head_dim, int n, uint64_t seed) {
  return {heads, head_dim, n, RandomFloats(static_cast<size_t>(heads) * n * head_dim, seed)};
}

// Integer coordinates: distances are exact and often equal.
Keys GridKeys(int heads, int head_dim, int n, uint64_t seed) {
  Keys keys = {heads, head_dim, n};
  std::mt19937_64 engine(seed);
  keys.values.resize(static_cast<size_t>(heads) * n * head_dim);
  for (float& value : keys.values) value = static_cast<float>(engine() % 3);
  return keys;
}

double SquaredDistance(const Keys& keys, int head, int a, int b) {
  double sum = 0.0;
  for (int d = 0; d < keys.head_dim; ++d) {
    const double difference = double{keys.At(head, a)[d]} - keys.At(head, b)[d];
    sum += difference * difference;
  }
  return sum;
}

// The centres in order: each step recomputes every key's nearest centre.
std::vector<int> ChoosePlainly(const Keys& keys, int head, int count) {
  std::vector<int> centres = {0};
  while (static_cast<int>(centres.size()) < count) {
    double farthest = -1.0;
    int next = -1;
    for (int j = 0; j < keys.n; ++j) {
      if (std::find(centres.begin(), centres.end(), j) != centres.end()) continue;
      double nearest = std::numeric_limits<double>::infinity();
      for (const int centre : centres)
        nearest = std::min(nearest, SquaredDistance(keys, head, j, centre));
      if (nearest > farthest) {
        farthest = nearest;
        next = j;
      }
    }
    centres.push_back(next);
  }
  return centres;
}

class KCenterTest : public BackendTest {
 protected:
  // The scores of each head.
  std::vector<std::vector<float>> Run(const Keys& keys, int centres) {
    const int64_t head_stride = static_cast<int64_t>(keys.n) * keys.head_dim + 7;
    const int64_t score_stride = keys.n + 3;
    std::vector<float> k(keys.heads * head_stride, kNan);
    for (int h = 0; h < keys.heads; ++h)
      std::copy_n(keys.At(h, 0), static_cast<size_t>(keys.n) * keys.head_dim,
                  k.begin() + h * head_stride);
    auto k_device = Upload(k);
    auto scores = Output(keys.heads * score_stride);
    backend().KCenter({.k = k_device.data(),
                       .kv_head_stride = head_stride,
                       .num_kv_heads = keys.heads,
                       .head_dim = keys.head_dim,
                       .n = keys.n,
                       .centres = centres,
                       .scores = scores.data(),
                       .score_stride = score_stride});
    const std::vector<float> all = scores.Read();
    std::vector<std::vector<float>> result;
    for (int h = 0; h < keys.heads; ++h) {
      const auto begin = all.begin() + h * score_stride;
      result.emplace_back(begin, begin + keys.n);
      EXPECT_TRUE(
          std::all_of(begin + keys.n, begin + score_stride, [](float x) { return std::isnan(x); }))
          << "written past n, head " << h;
    }
    return result;
  }

  void Check(const Keys& keys, int centres) {
    const auto scores = Run(keys, centres);
    for (int h = 0; h < keys.heads; ++h) {
      std::vector<float> expected(keys.n, 0.0f);
      const std::vector<int> chosen = ChoosePlainly(keys, h, centres);
      for (int i = 0; i < centres; ++i) expected[chosen[i]] = static_cast<float>(keys.n - i);
      ASSERT_EQ(scores[h], expected) << "n " << keys.n << " centres " << centres << " head " << h;
    }
  }
};

TEST_P(KCenterTest, EqualsASearchOverAllPairs) {
  for (const int n : {1, 2, 7, 31, 32, 33, 64, 255, 257}) {
    for (const int centres : {1, 2, n / 3, n}) {
      if (centres < 1 || centres > n || centres > 90) continue;
      const int heads = n % 3 + 1, head_dim = n % 2 == 0 ? 16 : 1 + n % 37;
      ASSERT_NO_FATAL_FAILURE(Check(RandomKeys(heads, head_dim, n, 50 + n), centres));
    }
  }
}

TEST_P(KCenterTest, TiesGoToTheLowerPosition) {
  for (const int n : {9, 70}) {
    ASSERT_NO_FATAL_FAILURE(Check(GridKeys(2, 3, n, 90 + n), n));
    ASSERT_NO_FATAL_FAILURE(Check(GridKeys(1, 5, n, 91 + n), n / 2));
  }
}

// More keys than one block of threads handles in a part.
TEST_P(KCenterTest, LongPrompt) { Check(RandomKeys(1, 8, 8300, 4), 6); }

TEST_P(KCenterTest, ValuesByHand) {
  // 10 is farthest from 0; of the rest 5 lies 5 from both, 6 only 4 from 10; then 1, 6 and 9 all
  // lie 1 from a centre.
  const Keys line = {1, 1, 6, {0, 1, 5, 10, 6, 9}};
  EXPECT_THAT(Run(line, 4)[0], testing::ElementsAre(6, 3, 4, 5, 0, 0));
}

HYDRANT_FOR_EACH_BACKEND(KCenterTest);

}  // namespace
}  // namespace hydrant
