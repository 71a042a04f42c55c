// BiasLogits and MaskLogits of every backend against plain loops over sets of tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

using EditLogitsTest = BackendTest;

TEST_P(EditLogitsTest, AddsBiases) {
  constexpr int kRows = 3, kVocab = 97;
  const std::vector<float> logits = RandomFloats(kRows * kVocab, 7, 4.0f);
  const std::vector<int32_t> rows = {0, 2, 2, 2};
  const std::vector<uint32_t> tokens = {0, 96, 31, 32};
  const std::vector<float> added = {1.5f, -100.0f, 100.0f, 0.25f};
  std::vector<float> expected = logits;
  std::vector<TokenBias> biases;
  for (size_t i = 0; i < rows.size(); ++i) {
    biases.push_back({tokens[i], added[i]});
    expected[rows[i] * kVocab + tokens[i]] += added[i];
  }
  auto device_logits = Upload(logits);
  auto device_rows = Upload(rows);
  auto device_biases = Upload(biases);
  backend().BiasLogits({.logits = device_logits.data(),
                        .vocab = kVocab,
                        .num_biases = static_cast<int>(rows.size()),
                        .rows = device_rows.data(),
                        .biases = device_biases.data()});
  EXPECT_EQ(device_logits.Read(), expected);
}

TEST_P(EditLogitsTest, MasksForbiddenTokens) {
  constexpr unsigned kSeed = 20261125;
  std::mt19937 random(kSeed);
  for (const int vocab : {1, 31, 32, 33, 97, 1024, 3001}) {
    SCOPED_TRACE(testing::Message() << "vocab " << vocab << " seed " << kSeed);
    constexpr int kRows = 4;
    const std::vector<int32_t> rows = {3, 1};
    const std::vector<float> logits = RandomFloats(kRows * vocab, vocab, 4.0f);
    std::vector<uint32_t> masks(rows.size() * MaskWords(vocab), 0xA5000000u);
    std::vector<std::set<int>> allowed(kRows);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int token = 0; token < vocab; ++token) {
        uint32_t& word = masks[i * MaskWords(vocab) + token / 32];
        word &= ~(1u << token % 32);
        if (random() % 3 != 0) continue;
        word |= 1u << token % 32;
        allowed[rows[i]].insert(token);
      }
    }
    auto device_logits = Upload(logits);
    auto device_rows = Upload(rows);
    auto device_masks = Upload(masks);
    backend().MaskLogits({.logits = device_logits.data(),
                          .vocab = vocab,
                          .num_masks = static_cast<int>(rows.size()),
                          .rows = device_rows.data(),
                          .masks = device_masks.data()});
    const std::vector<float> got = device_logits.Read();
    for (int row = 0; row < kRows; ++row) {
      const bool masked = row == 1 || row == 3;
      for (int token = 0; token < vocab; ++token) {
        const size_t at = static_cast<size_t>(row) * vocab + token;
        if (masked && !allowed[row].contains(token)) {
          ASSERT_EQ(got[at], -INFINITY) << row << " " << token;
        } else {
          ASSERT_EQ(got[at], logits[at]) << row << " " << token;
        }
      }
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(EditLogitsTest);

}  // namespace
}  // namespace hydrant
