// StoreLastTokens and ReadLastTokens of every backend against their contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

class LastTokensTest : public BackendTest {
 protected:
  // `count` different slots below 1000, a fifth of them replaced by padding.
  static std::vector<int32_t> RandomSlots(int count, std::mt19937* rng) {
    std::vector<int32_t> slots(1000);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), *rng);
    slots.resize(count);
    for (int32_t& slot : slots) {
      if ((*rng)() % 5 == 0) slot = -1;
    }
    return slots;
  }
};

TEST_P(LastTokensTest, KeepsOneTokenASlot) {
  for (const int count : {0, 1, 255, 256, 257, 600}) {
    std::mt19937 rng(count);
    const std::vector<int32_t> slots = RandomSlots(count, &rng);
    std::vector<uint32_t> tokens(count), before(1000);
    for (uint32_t& token : tokens) token = rng() % 7 == 0 ? UINT32_MAX : rng();
    for (uint32_t& token : before) token = rng();
    std::vector<uint32_t> expected = before;
    for (int i = 0; i < count; ++i) {
      if (slots[i] >= 0) expected[slots[i]] = tokens[i];
    }
    auto last_tokens = Upload(before);
    auto device_tokens = Upload(tokens);
    auto device_slots = Upload(slots);
    backend().StoreLastTokens({.tokens = device_tokens.data(),
                               .slots = device_slots.data(),
                               .num_rows = count,
                               .last_tokens = last_tokens.data()});
    EXPECT_EQ(last_tokens.Read(), expected) << count << " rows";
    EXPECT_EQ(device_tokens.Read(), tokens);
  }
}

TEST_P(LastTokensTest, TakesWhereTheHostDoesNotKnow) {
  for (const int count : {0, 1, 255, 256, 257, 600}) {
    std::mt19937 rng(count);
    const std::vector<int32_t> slots = RandomSlots(count, &rng);
    std::vector<uint32_t> last_tokens(1000), tokens(count);
    for (uint32_t& token : last_tokens) token = rng() % 7 == 0 ? UINT32_MAX : rng() % 1000;
    for (uint32_t& token : tokens) token = rng() % 2 == 0 ? UINT32_MAX : rng() % 1000;
    std::vector<uint32_t> expected = tokens;
    for (int i = 0; i < count; ++i) {
      if (slots[i] < 0 || tokens[i] != UINT32_MAX) continue;
      expected[i] = last_tokens[slots[i]] == UINT32_MAX ? 0 : last_tokens[slots[i]];
    }
    auto device_last_tokens = Upload(last_tokens);
    auto device_tokens = Upload(tokens);
    auto device_slots = Upload(slots);
    backend().ReadLastTokens({.tokens = device_tokens.data(),
                              .slots = device_slots.data(),
                              .num_rows = count,
                              .last_tokens = device_last_tokens.data()});
    EXPECT_EQ(device_tokens.Read(), expected) << count << " rows";
    EXPECT_EQ(device_last_tokens.Read(), last_tokens);
  }
}

HYDRANT_FOR_EACH_BACKEND(LastTokensTest);

}  // namespace
}  // namespace hydrant
