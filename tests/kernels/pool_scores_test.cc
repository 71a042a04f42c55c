// PoolScores of every backend against explicit windows, and against values computed by hand.
#include "kernels/ops/pool_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

class PoolScoresTest : public BackendTest {
 protected:
  // scores: [heads][n], equal lengths. Returns the pooled scores.
  std::vector<std::vector<float>> Run(const std::vector<std::vector<float>>& scores, int kernel,
                                      Pooling pooling) {
    const int heads = static_cast<int>(scores.size()), n = static_cast<int>(scores[0].size());
    const int64_t score_stride = n + 5, out_stride = n + 3;
    // Scores past n would win, and make every mean NaN, if they were read.
    std::vector<float> flat;
    for (const std::vector<float>& head : scores) {
      flat.insert(flat.end(), head.begin(), head.end());
      flat.insert(flat.end(), {INFINITY, -INFINITY, INFINITY, -INFINITY, INFINITY});
    }
    auto scores_device = Upload(flat);
    auto out = Output(heads * out_stride);
    backend().PoolScores({.scores = scores_device.data(),
                          .score_stride = score_stride,
                          .num_kv_heads = heads,
                          .n = n,
                          .kernel = kernel,
                          .pooling = pooling,
                          .out = out.data(),
                          .out_stride = out_stride});
    const std::vector<float> pooled = out.Read();
    std::vector<std::vector<float>> result;
    for (int h = 0; h < heads; ++h) {
      const auto begin = pooled.begin() + h * out_stride;
      result.emplace_back(begin, begin + n);
      EXPECT_TRUE(std::all_of(begin + n, begin + out_stride, [](float x) { return std::isnan(x); }))
          << "written past n, head " << h;
    }
    return result;
  }
};

float PoolPlainly(const std::vector<float>& scores, int j, int kernel, Pooling pooling) {
  std::vector<float> window;
  for (int i = 0; i < static_cast<int>(scores.size()); ++i)
    if (std::abs(i - j) <= kernel / 2) window.push_back(scores[i]);
  if (pooling == Pooling::kMax) return *std::max_element(window.begin(), window.end());
  double sum = 0.0;
  for (const float score : window) sum += score;
  return static_cast<float>(sum / kernel);
}

TEST_P(PoolScoresTest, EqualsWindowsWrittenOut) {
  for (const Pooling pooling : {Pooling::kMax, Pooling::kMean}) {
    for (const int kernel : {1, 3, 5, 7, 31}) {
      for (const int n : {1, 2, 3, 6, 7, 8, 255, 256, 257, 1023, 1024, 1025, 2100}) {
        const int heads = n % 3 + 1;
        std::vector<std::vector<float>> scores;
        scores.reserve(heads);
        for (int h = 0; h < heads; ++h) scores.push_back(RandomFloats(n, 100 * n + h));
        const auto pooled = Run(scores, kernel, pooling);
        for (int h = 0; h < heads; ++h) {
          for (int j = 0; j < n; ++j) {
            ASSERT_EQ(pooled[h][j], PoolPlainly(scores[h], j, kernel, pooling))
                << "n " << n << " kernel " << kernel << " head " << h << " position " << j;
          }
        }
      }
    }
  }
}

// The results of torch.nn.functional.max_pool1d and avg_pool1d with padding kernel
// // 2 and stride 1.
TEST_P(PoolScoresTest, ValuesByHand) {
  const std::vector<std::vector<float>> scores = {{6, 0, 3, 9, 0, 0, -3}};
  EXPECT_THAT(Run(scores, 3, Pooling::kMax)[0], testing::ElementsAre(6, 6, 9, 9, 9, 0, 0));
  EXPECT_THAT(Run(scores, 3, Pooling::kMean)[0], testing::ElementsAre(2, 3, 4, 4, 3, -1, -1));
  EXPECT_THAT(Run({{7, 14}}, 7, Pooling::kMean)[0], testing::ElementsAre(3, 3));
}

TEST_P(PoolScoresTest, NegativeAndNanMaxima) {
  const auto pooled = Run({{-5, -2, -7, -9, kNan, kNan, kNan, -1}}, 3, Pooling::kMax)[0];
  EXPECT_THAT(pooled, testing::ElementsAre(-2, -2, -2, -7, -9, -INFINITY, -1, -1));
}

HYDRANT_FOR_EACH_BACKEND(PoolScoresTest);

}  // namespace
}  // namespace hydrant
