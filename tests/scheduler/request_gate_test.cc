#include "scheduler/request_gate.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hydrant {
namespace {

Request MakeRequest(const std::string& request_id, int64_t tokens) {
  Request request;
  request.request_id = request_id;
  request.prompt.assign(static_cast<size_t>(tokens), 7);
  return request;
}

// Enters a request of one sample.
std::optional<Failed> Enter(RequestGate* gate, RequestHandle handle, const std::string& request_id,
                            int64_t tokens, TimeUs now) {
  return gate->Enter({&handle, 1}, MakeRequest(request_id, tokens), now);
}

// No request waits in the scheduler.
void EmptyQueue(RequestGate* gate) { gate->SetQueue({}, 0, 0); }

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
  EXPECT_EQ(gate.Find("", "b"), RequestHandle{3});
  EXPECT_EQ(gate.Find("", "c"), std::nullopt);
  EmptyQueue(&gate);  // all run now; their ids are still taken
  EXPECT_TRUE(Enter(&gate, 5, "a", 1, 1000).has_value());
  gate.Remove(1);
  gate.Remove(1);
  EXPECT_EQ(gate.Find("", "a"), std::nullopt);
  EXPECT_FALSE(Enter(&gate, 5, "a", 1, 1000).has_value());
  for (const RequestHandle handle : {3, 4, 5}) gate.Remove(handle);
  EXPECT_TRUE(gate.Empty());
}

TEST(RequestGateTest, AnIdIsItsOwnersAlone) {
  RequestGate gate({.max_num_queued_reqs = 5, .max_num_queued_tokens = 100});
  const auto enter = [&](RequestHandle handle, const std::string& owner) {
    Request request = MakeRequest("a", 1);
    request.owner = owner;
    return gate.Enter({&handle, 1}, request, 0);
  };
  EXPECT_FALSE(enter(1, "acme").has_value());
  EXPECT_FALSE(enter(2, "zeta").has_value());
  EXPECT_FALSE(enter(3, "").has_value());
  EXPECT_EQ(enter(4, "acme")->reason, "DUPLICATE_REQUEST_ID");
  EXPECT_EQ(gate.Find("acme", "a"), RequestHandle{1});
  EXPECT_EQ(gate.Find("zeta", "a"), RequestHandle{2});
  EXPECT_EQ(gate.Find("", "a"), RequestHandle{3});
  gate.Remove(1);
  EXPECT_EQ(gate.Find("acme", "a"), std::nullopt);
  EXPECT_EQ(gate.Find("zeta", "a"), RequestHandle{2});
}

TEST(RequestGateTest, SamplesEnterTogetherAndTheIdIsTheirsUntilTheLastHasLeft) {
  RequestGate gate({.max_num_queued_reqs = 5, .max_num_queued_tokens = 100});
  const std::vector<RequestHandle> three = {1, 2, 3}, more = {4, 5, 6},
                                   many = {7, 8, 9, 10, 11, 12};
  EXPECT_FALSE(gate.Enter(three, MakeRequest("a", 20), 0).has_value());
  EXPECT_EQ(gate.num_queued_reqs(), 3);
  EXPECT_EQ(gate.num_queued_tokens(), 60);

  const auto requests = gate.Enter(more, MakeRequest("b", 1), 0);
  ASSERT_TRUE(requests.has_value());
  EXPECT_EQ(requests->reason, "QUEUE_FULL");
  EXPECT_GT(requests->retry_after_us, 0);
  EXPECT_EQ(std::string(requests->status.message()),
            "queue full: 3 requests wait, 3 samples come, the limit is 5");
  const auto tokens = gate.Enter(std::span(more).first(2), MakeRequest("b", 21), 0);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_EQ(std::string(tokens->status.message()),
            "queue full: 60 tokens wait, 42 more exceed the limit of 100");
  // More samples than the limits: an empty queue would not accept them either.
  const auto never = gate.Enter(many, MakeRequest("b", 1), 0);
  ASSERT_TRUE(never.has_value());
  EXPECT_EQ(never->reason, "INVALID");
  EXPECT_EQ(never->status, absl::InvalidArgumentError(
                               "sampling.n: 6 samples exceed the queue's limit of 5 requests"));
  EXPECT_EQ(never->retry_after_us, 0);
  EXPECT_EQ(gate.num_queued_reqs(), 3) << "who was refused has left nothing";
  EXPECT_TRUE(gate.LiveSamples(4).empty());

  EXPECT_EQ(gate.LiveSamples(1), three);
  EXPECT_TRUE(gate.LiveSamples(2).empty()) << "the first stands for all";
  gate.Remove(1);
  EXPECT_EQ(gate.LiveSamples(1), (std::vector<RequestHandle>{2, 3}));
  gate.Remove(3);
  EXPECT_EQ(Enter(&gate, 13, "a", 1, 0)->reason, "DUPLICATE_REQUEST_ID");
  gate.Remove(2);
  EXPECT_TRUE(gate.Empty());
  EXPECT_TRUE(gate.LiveSamples(1).empty());
  EXPECT_FALSE(Enter(&gate, 13, "a", 1, 0).has_value());
}

TEST(RequestGateTest, AnEmptyQueueTakesAPromptOfAnyLength) {
  RequestGate gate({.max_num_queued_tokens = 100});
  EXPECT_FALSE(Enter(&gate, 1, "", 5000, 0).has_value());
  EXPECT_TRUE(Enter(&gate, 2, "", 1, 0).has_value());
}

// 10 requests of 100 tokens leave the queue every second: the next place is free after 0.1 s.
TEST(RequestGateTest, RetryTimeFollowsTheRateOfTheQueue) {
  RequestGate gate({.max_num_queued_reqs = 10, .max_num_queued_tokens = 1'000'000});
  TimeUs now = 0;
  RequestHandle handle = 0;
  while (!Enter(&gate, ++handle, "", 100, now).has_value()) {
  }
  const auto at_first = Enter(&gate, ++handle, "", 100, now);
  EXPECT_EQ(at_first->retry_after_us, 1'000'000);  // no rate yet
  QueueForecast queue = {.waiting = 9, .tokens = 900};
  for (int i = 0; i < 600; ++i) {
    now += 100'000;
    queue.rate.Observe(now, true, 1, 100);
    gate.SetQueue(queue, 0, 0);
    ASSERT_FALSE(Enter(&gate, ++handle, "", 100, now).has_value());
  }
  const auto steady = Enter(&gate, ++handle, "", 100, now);
  ASSERT_TRUE(steady.has_value());
  EXPECT_NEAR(static_cast<double>(steady->retry_after_us), 100'000, 5'000);
  const auto stalled = Enter(&gate, ++handle, "", 100, now + 30'000'000);
  EXPECT_GT(stalled->retry_after_us, 10 * steady->retry_after_us);
  EXPECT_LE(stalled->retry_after_us, 60'000'000);
}

// 2 requests a second are admitted while others wait.
QueueForecast SlowQueue(int waiting) {
  QueueForecast queue = {.waiting = waiting, .tokens = 100 * waiting};
  for (int i = 1; i <= 200; ++i) queue.rate.Observe(i * 500'000, true, 1, 100);
  return queue;
}
constexpr TimeUs kSlowQueueNow = 200 * 500'000;

TEST(RequestGateTest, RequestsThatWouldWaitTooLongAreRefused) {
  RequestGate gate({.target_ttft_us = 4'000'000});
  gate.SetQueue(SlowQueue(5), 0, 0);  // 2.5 s: less than three quarters of 4
  EXPECT_FALSE(Enter(&gate, 1, "", 100, kSlowQueueNow).has_value());
  gate.SetQueue(SlowQueue(5), 3, 300);  // and 1.5 s for the requests in the inbox
  const auto late = Enter(&gate, 2, "", 100, kSlowQueueNow);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->reason, "OVERLOADED");
  EXPECT_EQ(late->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NEAR(static_cast<double>(late->retry_after_us), 1e6, 1e5);  // 4 s less three quarters of 4
  EXPECT_EQ(gate.num_queued_reqs(), 8) << "who was refused has left nothing";

  // Prompts in prefill count, too.
  QueueForecast reading = SlowQueue(0);
  reading.reading_us = 3.5e6;
  gate.SetQueue(reading, 0, 0);
  EXPECT_EQ(Enter(&gate, 3, "", 100, kSlowQueueNow)->reason, "OVERLOADED");
  // The past rate of the queue is ignored while no request waits.
  gate.SetQueue(SlowQueue(0), 30, 3000);
  EXPECT_FALSE(Enter(&gate, 4, "", 100, kSlowQueueNow).has_value());
}

TEST(RequestGateTest, ARequestsOwnTimesCount) {
  RequestGate gate({});
  gate.SetQueue(SlowQueue(8), 0, 0);  // 4 s
  EXPECT_FALSE(Enter(&gate, 1, "", 100, kSlowQueueNow).has_value()) << "there is no target";
  Request request = MakeRequest("", 100);
  const RequestHandle handles[] = {2, 3, 4};
  request.slo.ttft_us = 3'000'000;
  const auto target = gate.Enter({handles, 1}, request, kSlowQueueNow);
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(target->reason, "OVERLOADED");
  EXPECT_THAT(
      std::string(target->status.message()),
      testing::StartsWith(
          "scheduling.slo.ttft_us: the first token cannot come within 3000 ms: 9 requests wait"));
  request.slo.ttft_us = 30'000'000;
  EXPECT_FALSE(gate.Enter({handles, 1}, request, kSlowQueueNow).has_value());
  request.deadline = kSlowQueueNow + 2'000'000;  // the tighter of the two
  const auto deadline = gate.Enter({handles + 1, 1}, request, kSlowQueueNow);
  ASSERT_TRUE(deadline.has_value());
  EXPECT_EQ(deadline->reason, "OVERLOADED");
  EXPECT_THAT(std::string(deadline->status.message()), testing::StartsWith("deadline: "));
}

}  // namespace
}  // namespace hydrant
