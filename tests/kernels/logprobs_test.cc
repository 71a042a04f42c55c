// Logprobs of every backend against softmax and sorting in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class LogprobsTest : public BackendTest {
 protected:
  std::vector<TokenLogprobs> Run(const std::vector<float>& logits, int row_stride, int vocab,
                                 const std::vector<uint32_t>& tokens) {
    auto device_logits = Upload(logits);
    auto device_tokens = Upload(tokens);
    std::vector<TokenLogprobs> out(tokens.size());
    auto device_out = Upload(std::vector<uint8_t>(out.size() * sizeof(TokenLogprobs), 0xAB));
    backend().Logprobs({.logits = device_logits.data(),
                        .num_rows = static_cast<int>(tokens.size()),
                        .vocab = vocab,
                        .row_stride = row_stride,
                        .tokens = device_tokens.data(),
                        .out = reinterpret_cast<TokenLogprobs*>(device_out.data())});
    const std::vector<uint8_t> bytes = device_out.Read();
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

double Meant(float logit) {
  return std::isnan(logit) ? -INFINITY : std::min<double>(logit, FLT_MAX);
}

void ExpectRow(const float* logits, int vocab, uint32_t token, const TokenLogprobs& got) {
  std::vector<int> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return Meant(logits[a]) > Meant(logits[b]); });
  const double highest = Meant(logits[order[0]]);
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(Meant(logits[i]) - highest);
  const auto expect_logprob = [&](float got_logprob, int id) {
    const double expected = Meant(logits[id]) - highest - std::log(sum);
    if (std::isinf(expected)) {
      EXPECT_EQ(got_logprob, -kInfinity) << id;
    } else {
      EXPECT_NEAR(got_logprob, expected, 2e-6 * (1 + std::abs(expected))) << id;
    }
  };
  for (int i = 0; i < kTopLogprobs; ++i) {
    if (i < vocab) {
      EXPECT_EQ(got.top_tokens[i], static_cast<uint32_t>(order[i])) << i;
      expect_logprob(got.top_logprobs[i], order[i]);
    } else {
      EXPECT_EQ(got.top_tokens[i], UINT32_MAX) << i;
      EXPECT_EQ(got.top_logprobs[i], -kInfinity) << i;
    }
  }
  EXPECT_EQ(got.token, token);
  expect_logprob(got.logprob, static_cast<int>(token));
  const auto place = std::find(order.begin(), order.end(), static_cast<int>(token));
  EXPECT_EQ(got.rank, place - order.begin() + 1);
}

TEST_P(LogprobsTest, IsSoftmaxAndSorting) {
  for (const int vocab : {1, 2, 19, 20, 21, 100, 1024, 3001}) {
    SCOPED_TRACE(testing::Message() << "vocab " << vocab);
    constexpr int kRows = 5;
    const int stride = vocab + 3;
    std::vector<float> logits = RandomFloats(static_cast<size_t>(kRows) * stride, vocab, 8.0f);
    for (int row = 0; row < kRows; ++row) {  // logits past the vocabulary do not count
      for (int i = vocab; i < stride; ++i) logits[row * stride + i] = 1000.0f;
    }
    const std::vector<uint32_t> tokens = {0, static_cast<uint32_t>(vocab) - 1,
                                          static_cast<uint32_t>(vocab) / 2,
                                          static_cast<uint32_t>(vocab) / 3, 0};
    const auto got = Run(logits, stride, vocab, tokens);
    for (int row = 0; row < kRows; ++row)
      ExpectRow(logits.data() + static_cast<size_t>(row) * stride, vocab, tokens[row], got[row]);
  }
}

TEST_P(LogprobsTest, TiesGoToTheLowerId) {
  constexpr int kVocab = 200;
  std::vector<float> logits(kVocab, 1.0f);
  logits[150] = 2.0f;
  for (const uint32_t token : {0u, 7u, 149u, 150u, 151u, 199u})
    ExpectRow(logits.data(), kVocab, token, Run(logits, 0, kVocab, {token})[0]);
}

TEST_P(LogprobsTest, NanIsLeast) {
  constexpr int kVocab = 70;
  std::vector<float> logits(kVocab, -kInfinity);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  logits[5] = 1.0f;
  logits[40] = 3.0f;
  for (const uint32_t token : {0u, 3u, 4u, 5u, 6u, 40u, 69u})
    ExpectRow(logits.data(), kVocab, token, Run(logits, 0, kVocab, {token})[0]);
}

TEST_P(LogprobsTest, InfinityIsTheLargestNumber) {
  std::vector<float> logits = {1.0f, FLT_MAX, kInfinity, 0.0f};
  for (const uint32_t token : {0u, 1u, 2u})
    ExpectRow(logits.data(), 4, token, Run(logits, 0, 4, {token})[0]);
}

TEST_P(LogprobsTest, NothingFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const TokenLogprobs& got :
       Run({nan, -kInfinity, nan, -kInfinity, -kInfinity, nan}, 0, 3, {1, 2})) {
    EXPECT_TRUE(std::isnan(got.logprob));
    EXPECT_EQ(got.rank, 0);
    EXPECT_EQ(got.top_tokens[0], UINT32_MAX);
    EXPECT_EQ(got.top_logprobs[0], -kInfinity);
  }
}

TEST_P(LogprobsTest, ATokenThatIsNone) {
  const TokenLogprobs got = Run({1.0f, 2.0f}, 0, 2, {UINT32_MAX})[0];
  EXPECT_TRUE(std::isnan(got.logprob));
  EXPECT_EQ(got.rank, 0);
  EXPECT_EQ(got.top_tokens[0], 1u);
}

// An fp32 sum would lose these terms.
TEST_P(LogprobsTest, LargeVocabulary) {
  constexpr int kVocab = 150'001;
  const std::vector<float> logits = RandomFloats(kVocab, 3, 1.0f);
  ExpectRow(logits.data(), kVocab, 77'777, Run(logits, 0, kVocab, {77'777})[0]);
}

// A row gives the same bits at every place of a batch and at any alignment; its top tokens are
// spread over the parts of a device's split, or all in one part.
TEST_P(LogprobsTest, ARowsNumbersDoNotDependOnItsPlace) {
  constexpr int kVocab = 13'001, kRows = 5;
  for (const bool together : {false, true}) {
    std::vector<float> row = RandomFloats(kVocab, together ? 8 : 9, 2.0f);
    if (together) {
      for (int i = 0; i < 30; ++i) {
        const int third = i / 3;  // three tokens of each value
        row[9'000 + 7 * i] = 20.0f + static_cast<float>(third);
      }
    }
    std::vector<float> batch;
    for (int i = 0; i < kRows; ++i) batch.insert(batch.end(), row.begin(), row.end());
    const auto got = Run(batch, 0, kVocab, std::vector<uint32_t>(kRows, 12'345));
    ExpectRow(row.data(), kVocab, 12'345, got[0]);
    for (const TokenLogprobs& other : got)
      EXPECT_EQ(std::memcmp(&other, got.data(), sizeof(other)), 0);
  }
}

HYDRANT_FOR_EACH_BACKEND(LogprobsTest);

}  // namespace
}  // namespace hydrant
