#include "scheduler/request_gate.h"

#include "gtest/gtest.h"

namespace hydrant {
namespace {

TEST(RequestGateTest, CountsAndRefuses) {
  RequestGate gate({.max_num_queued_reqs = 3, .max_num_queued_tokens = 100});
  EXPECT_FALSE(gate.Enter(1, "a", 60, 0).has_value());
  const auto duplicate = gate.Enter(2, "a", 1, 0);
  ASSERT_TRUE(duplicate.has_value());
  EXPECT_EQ(duplicate->reason, "DUPLICATE_REQUEST_ID");
  const auto tokens = gate.Enter(2, "b", 41, 0);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_EQ(tokens->reason, "QUEUE_FULL");
  EXPECT_EQ(std::string(tokens->status.message()),
            "queue full: 60 tokens wait, 41 more exceed the limit of 100");
  EXPECT_FALSE(gate.Enter(3, "b", 40, 0).has_value());
  EXPECT_FALSE(gate.Enter(4, "", 0, 0).has_value());
  const auto requests = gate.Enter(5, "", 0, 0);
  ASSERT_TRUE(requests.has_value());
  EXPECT_EQ(std::string(requests->status.message()), "queue full: 3 requests wait, the limit is 3");
  gate.SetQueue(0, 0, 1000);  // all run now; their ids are still taken
  EXPECT_TRUE(gate.Enter(5, "a", 1, 1000).has_value());
  gate.Leave(1);
  gate.Leave(1);
  EXPECT_FALSE(gate.Enter(5, "a", 1, 1000).has_value());
  for (const RequestHandle handle : {3, 4, 5}) gate.Leave(handle);
  EXPECT_TRUE(gate.Empty());
}

TEST(RequestGateTest, AnEmptyQueueTakesAPromptOfAnyLength) {
  RequestGate gate({.max_num_queued_tokens = 100});
  EXPECT_FALSE(gate.Enter(1, "", 5000, 0).has_value());
  EXPECT_TRUE(gate.Enter(2, "", 1, 0).has_value());
}

// 10 requests of 100 tokens leave the queue every second: one place is free after a tenth of a
// second.
TEST(RequestGateTest, RetryTimeFollowsTheRateOfTheQueue) {
  RequestGate gate({.max_num_queued_reqs = 10, .max_num_queued_tokens = 1'000'000});
  TimeUs now = 0;
  RequestHandle handle = 0;
  while (!gate.Enter(++handle, "", 100, now).has_value()) {
  }
  const auto at_first = gate.Enter(++handle, "", 100, now);
  EXPECT_EQ(at_first->retry_after_us, 1'000'000);  // no rate yet
  for (int i = 0; i < 600; ++i) {
    now += 100'000;
    gate.SetQueue(9, 900, now);
    ASSERT_FALSE(gate.Enter(++handle, "", 100, now).has_value());
  }
  const auto steady = gate.Enter(++handle, "", 100, now);
  ASSERT_TRUE(steady.has_value());
  EXPECT_NEAR(static_cast<double>(steady->retry_after_us), 100'000, 5'000);
  const auto stalled = gate.Enter(++handle, "", 100, now + 30'000'000);
  EXPECT_GT(stalled->retry_after_us, 10 * steady->retry_after_us);
  EXPECT_LE(stalled->retry_after_us, 60'000'000);
}

}  // namespace
}  // namespace hydrant
