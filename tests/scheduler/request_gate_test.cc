#include "scheduler/request_gate.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace hydrant {
namespace {

// A request of one sample.
std::optional<Failed> Enter(RequestGate* gate, RequestHandle handle, const std::string& request_id,
                            int64_t tokens, TimeUs now) {
  return gate->Enter({&handle, 1}, request_id, tokens, now);
}

TEST(RequestGateTest, CountsAndRefuses) {
  RequestGate gate({.max_num_queued_reqs = 3, .max_num_queued_tokens = 100});
  EXPECT_FALSE(Enter(&gate, 1, "a", 60, 0).has_value());
  const auto duplicate = Enter(&gate, 2, "a", 1, 0);
  ASSERT_TRUE(duplicate.has_value());
  EXPECT_EQ(duplicate->reason, "DUPLICATE_REQUEST_ID");
  const auto tokens = Enter(&gate, 2, "b", 41, 0);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_EQ(tokens->reason, "QUEUE_FULL");
  EXPECT_EQ(std::string(tokens->status.message()),
            "queue full: 60 tokens wait, 41 more exceed the limit of 100");
  EXPECT_FALSE(Enter(&gate, 3, "b", 40, 0).has_value());
  EXPECT_FALSE(Enter(&gate, 4, "", 0, 0).has_value());
  const auto requests = Enter(&gate, 5, "", 0, 0);
  ASSERT_TRUE(requests.has_value());
  EXPECT_EQ(std::string(requests->status.message()), "queue full: 3 requests wait, the limit is 3");
  gate.SetQueue(0, 0, 1000);  // all run now; their ids are still taken
  EXPECT_TRUE(Enter(&gate, 5, "a", 1, 1000).has_value());
  gate.Leave(1);
  gate.Leave(1);
  EXPECT_FALSE(Enter(&gate, 5, "a", 1, 1000).has_value());
  for (const RequestHandle handle : {3, 4, 5}) gate.Leave(handle);
  EXPECT_TRUE(gate.Empty());
}

TEST(RequestGateTest, SamplesEnterTogetherAndTheIdIsTheirsUntilTheLastHasLeft) {
  RequestGate gate({.max_num_queued_reqs = 5, .max_num_queued_tokens = 100});
  const std::vector<RequestHandle> three = {1, 2, 3}, more = {4, 5, 6},
                                   many = {7, 8, 9, 10, 11, 12};
  EXPECT_FALSE(gate.Enter(three, "a", 20, 0).has_value());
  EXPECT_EQ(gate.num_queued_reqs(), 3);
  EXPECT_EQ(gate.num_queued_tokens(), 60);

  const auto requests = gate.Enter(more, "b", 1, 0);
  ASSERT_TRUE(requests.has_value());
  EXPECT_EQ(requests->reason, "QUEUE_FULL");
  EXPECT_GT(requests->retry_after_us, 0);
  EXPECT_EQ(std::string(requests->status.message()),
            "queue full: 3 requests wait, 3 samples come, the limit is 5");
  const auto tokens = gate.Enter(std::span(more).first(2), "b", 21, 0);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_EQ(std::string(tokens->status.message()),
            "queue full: 60 tokens wait, 42 more exceed the limit of 100");
  // An empty queue would not take them either.
  const auto never = gate.Enter(many, "b", 1, 0);
  ASSERT_TRUE(never.has_value());
  EXPECT_EQ(never->reason, "INVALID");
  EXPECT_EQ(never->status, absl::InvalidArgumentError(
                               "sampling.n: 6 samples exceed the queue's limit of 5 requests"));
  EXPECT_EQ(never->retry_after_us, 0);
  EXPECT_EQ(gate.num_queued_reqs(), 3) << "who was refused has left nothing";
  EXPECT_TRUE(gate.LiveSamples(4).empty());

  EXPECT_EQ(gate.LiveSamples(1), three);
  EXPECT_TRUE(gate.LiveSamples(2).empty()) << "the first stands for all";
  gate.Leave(1);
  EXPECT_EQ(gate.LiveSamples(1), (std::vector<RequestHandle>{2, 3}));
  gate.Leave(3);
  EXPECT_EQ(Enter(&gate, 13, "a", 1, 0)->reason, "DUPLICATE_REQUEST_ID");
  gate.Leave(2);
  EXPECT_TRUE(gate.Empty());
  EXPECT_TRUE(gate.LiveSamples(1).empty());
  EXPECT_FALSE(Enter(&gate, 13, "a", 1, 0).has_value());
}

TEST(RequestGateTest, AnEmptyQueueTakesAPromptOfAnyLength) {
  RequestGate gate({.max_num_queued_tokens = 100});
  EXPECT_FALSE(Enter(&gate, 1, "", 5000, 0).has_value());
  EXPECT_TRUE(Enter(&gate, 2, "", 1, 0).has_value());
}

// 10 requests of 100 tokens leave the queue every second: one place is free after a tenth of a
// second.
TEST(RequestGateTest, RetryTimeFollowsTheRateOfTheQueue) {
  RequestGate gate({.max_num_queued_reqs = 10, .max_num_queued_tokens = 1'000'000});
  TimeUs now = 0;
  RequestHandle handle = 0;
  while (!Enter(&gate, ++handle, "", 100, now).has_value()) {
  }
  const auto at_first = Enter(&gate, ++handle, "", 100, now);
  EXPECT_EQ(at_first->retry_after_us, 1'000'000);  // no rate yet
  for (int i = 0; i < 600; ++i) {
    now += 100'000;
    gate.SetQueue(9, 900, now);
    ASSERT_FALSE(Enter(&gate, ++handle, "", 100, now).has_value());
  }
  const auto steady = Enter(&gate, ++handle, "", 100, now);
  ASSERT_TRUE(steady.has_value());
  EXPECT_NEAR(static_cast<double>(steady->retry_after_us), 100'000, 5'000);
  const auto stalled = Enter(&gate, ++handle, "", 100, now + 30'000'000);
  EXPECT_GT(stalled->retry_after_us, 10 * steady->retry_after_us);
  EXPECT_LE(stalled->retry_after_us, 60'000'000);
}

}  // namespace
}  // namespace hydrant
