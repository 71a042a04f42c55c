// Penalize of every backend against the published formulas in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "kernels/ops/sample.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

class PenalizeTest : public BackendTest {
 protected:
  struct Row {
    Penalties penalties;
    int32_t slot;
    uint32_t newest;
  };
  // Returns the logits; updates `seen`.
  std::vector<float> Run(const std::vector<float>& logits, const std::vector<Row>& rows, int vocab,
                         std::vector<uint16_t>* seen) {
    std::vector<SamplingRow> sampling(rows.size());
    std::vector<int32_t> slots;
    std::vector<uint32_t> newest;
    for (size_t i = 0; i < rows.size(); ++i) {
      sampling[i].penalties = rows[i].penalties;
      slots.push_back(rows[i].slot);
      newest.push_back(rows[i].newest);
    }
    auto device_logits = Upload(logits);
    const auto* bytes = reinterpret_cast<const uint8_t*>(sampling.data());
    auto device_rows =
        Upload(std::vector<uint8_t>(bytes, bytes + sampling.size() * sizeof(SamplingRow)));
    auto device_slots = Upload(slots);
    auto device_newest = Upload(newest);
    auto device_seen = Upload(*seen);
    backend().Penalize({.logits = device_logits.data(),
                        .num_rows = static_cast<int>(rows.size()),
                        .vocab = vocab,
                        .rows = reinterpret_cast<const SamplingRow*>(device_rows.data()),
                        .slots = device_slots.data(),
                        .newest = device_newest.data(),
                        .seen = device_seen.data()});
    *seen = device_seen.Read();
    return device_logits.Read();
  }
};

TEST_P(PenalizeTest, FollowsTheFormulas) {
  constexpr int kSlots = 5;
  const std::vector<Penalties> kinds = {{},
                                        {.repetition = 1.3f},
                                        {.repetition = 0.7f},
                                        {.presence = 0.6f},
                                        {.frequency = -0.25f},
                                        {.repetition = 1.1f, .presence = 0.5f, .frequency = 0.3f}};
  for (const int vocab : {1, 97, 1024, 3001}) {
    // Tokens seen by each sequence, tracked beside the device in plain sets.
    std::vector<std::map<int, int>> output(kSlots);
    std::vector<std::map<int, bool>> prompt(kSlots);
    std::vector<uint16_t> seen(static_cast<size_t>(kSlots) * vocab, 0);
    for (int slot = 0; slot < kSlots; ++slot) {
      for (int i = 0; i < 30; ++i) {
        const int token = (i * i * 7 + slot) % vocab;
        prompt[slot][token] = true;
        seen[static_cast<size_t>(slot) * vocab + token] = kInPrompt;
      }
    }
    for (int step = 0; step < 12; ++step) {
      std::vector<Row> rows;
      for (int slot = kSlots - 1; slot >= 0; --slot) {
        const Penalties& penalties = kinds[(slot + vocab) % kinds.size()];
        const uint32_t newest = step == 0 ? kNone : (step / 3 * 11 + slot) % vocab;
        rows.push_back({penalties, slot, newest});
        if (newest != kNone && penalties.Any()) ++output[slot][static_cast<int>(newest)];
      }
      const std::vector<float> logits = RandomFloats(rows.size() * vocab, 31 + step, 4.0f);
      const std::vector<float> got = Run(logits, rows, vocab, &seen);
      for (size_t row = 0; row < rows.size(); ++row) {
        const auto& [penalties, slot, newest] = rows[row];
        for (int token = 0; token < vocab; ++token) {
          double expected = logits[row * vocab + token];
          const bool in_output = output[slot].contains(token);
          if (in_output || prompt[slot].contains(token)) {
            expected =
                expected > 0 ? expected / penalties.repetition : expected * penalties.repetition;
          }
          if (in_output) {
            expected -= double{penalties.frequency} * output[slot][token] + penalties.presence;
          }
          ASSERT_NEAR(got[row * vocab + token], expected, 1e-6 * (4 + std::abs(expected)))
              << "vocab " << vocab << " step " << step << " row " << row << " token " << token;
        }
      }
    }
  }
}

TEST_P(PenalizeTest, CountsSaturate) {
  std::vector<uint16_t> seen = {kMaxCounted - 1, kInPrompt | kMaxCounted};
  const Row row = {{.frequency = 1.0f}, 0, 0};
  Run({0, 0}, {row}, 2, &seen);
  EXPECT_EQ(seen[0], kMaxCounted);
  EXPECT_EQ(Run({0, 0}, {row}, 2, &seen)[0], -static_cast<float>(kMaxCounted));
  EXPECT_EQ(seen[0], kMaxCounted);
  Run({0, 0}, {{{.frequency = 1.0f}, 0, 1}}, 2, &seen);
  EXPECT_EQ(seen[1], kInPrompt | kMaxCounted);
}

HYDRANT_FOR_EACH_BACKEND(PenalizeTest);

}  // namespace
}  // namespace hydrant
