// Requests with pages reserved at admission (OnPressure::kNever): the scheduler and a fake
// engine under a fake clock. The harness checks at every step that reserved and held pages fit the
// pool (CheckInvariants).
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

// The parameter: steps in flight.
class PageReservationTest : public testing::TestWithParam<int> {
 protected:
  // A pool with `pages_a_head` pages of 4 entries for each of 4 heads.
  static EngineLimits PoolOf(int pages_a_head) {
    EngineLimits limits = SmallLimits();
    limits.max_steps_in_flight = GetParam();
    limits.num_blocks = 4 * pages_a_head;
    return limits;
  }
  static SchedulerOptions NoWatermark() { return {.watermark = 0}; }

  static Request Never(int prompt_tokens, int max_tokens, uint64_t seed = 1) {
    Request request = MakeRequest(prompt_tokens, max_tokens, seed);
    request.on_pressure = OnPressure::kNever;
    return request;
  }
  static int NumLive(const SchedulerHarness& h) {
    const ServingStats stats = h.scheduler.Stats();
    return stats.prefilling + stats.running;
  }
  static void ExpectUntouched(const Stream& stream, size_t tokens) {
    ASSERT_TRUE(stream.finished.has_value()) << stream.failed->status;
    EXPECT_EQ(stream.token_ids.size(), tokens);
    const Usage& usage = stream.finished->usage;
    EXPECT_EQ(usage.preemptions + usage.swaps + usage.shrinks, 0);
    EXPECT_EQ(usage.swapped_us + usage.preempted_us, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, PageReservationTest, testing::Values(1, 2, 3));

// 20 tokens need 5 pages, 39 need 10; the pool has 19.
TEST_P(PageReservationTest, TwoThatFitNowAndNotToTheEndComeOneByOne) {
  for (const bool never : {false, true}) {
    SchedulerHarness h(PoolOf(19), NoWatermark());
    std::vector<RequestHandle> handles;
    for (const uint64_t seed : {1, 2}) {
      Request request = Never(20, 20, seed);
      if (!never) request.on_pressure = OnPressure::kPreempt;
      handles.push_back(h.Add(request));
    }
    h.Step();
    EXPECT_EQ(NumLive(h), never ? 1 : 2);
    if (!never) continue;
    EXPECT_EQ(h.scheduler.Stats().wait_reason, WaitReason::kPages);
    while (!h[handles[0]].Ended()) {
      EXPECT_EQ(NumLive(h), 1);
      h.Step();
    }
    h.RunToEnd();
    for (const RequestHandle handle : handles) ExpectUntouched(h[handle], 20);
  }
}

TEST_P(PageReservationTest, TwoThatFitToTheEndRunSideBySide) {
  SchedulerHarness h(PoolOf(20), NoWatermark());
  h.Add(Never(20, 20, 1));
  h.Add(Never(20, 20, 2));
  h.Step();
  EXPECT_EQ(NumLive(h), 2);
  // Reserved pages are not given to others, though 10 pages a head are free.
  const RequestHandle third = h.Add(MakeRequest(4, 2, 3));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().pages_free, 4 * 20 - 2 * 4 * 6);
  EXPECT_EQ(h.scheduler.Stats().waiting, 1);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
  EXPECT_TRUE(h[third].finished.has_value());
}

// The newest request of the lowest priority.
TEST_P(PageReservationTest, OthersArePreemptedInsteadOfIt) {
  SchedulerHarness h(PoolOf(26), NoWatermark());
  const RequestHandle first = h.Add(MakeRequest(20, 30, 1));  // 13 pages a head at the end
  const RequestHandle second = h.Add(MakeRequest(20, 30, 2));
  Request last = Never(8, 33, 3);  // 10 pages a head
  last.priority = 3;
  const RequestHandle never = h.Add(last);
  h.Step();
  EXPECT_EQ(NumLive(h), 3);
  h.RunToEnd();
  ExpectUntouched(h[never], 33);
  EXPECT_EQ(h[first].finished->usage->preemptions, 0) << "the first of those that may be preempted";
  EXPECT_GT(h[second].finished->usage->preemptions, 0);
}

// 12 of 20 pages a head are reserved for 39 steps; the first has the other 8, room for 32 tokens.
TEST_P(PageReservationTest, TheFirstIsPreemptedIfNoOtherCanBe) {
  for (const bool swaps : {false, true}) {
    EngineLimits limits = PoolOf(20);
    if (swaps) {
      limits.num_swap_pages = limits.num_host_pages = limits.num_blocks;
      limits.max_offloaded_caches = limits.max_num_seqs;
    }
    SchedulerHarness h(limits, NoWatermark());
    const RequestHandle first = h.Add(MakeRequest(8, 60, 1));
    const RequestHandle never = h.Add(Never(8, 40, 2));
    h.Step();
    EXPECT_EQ(NumLive(h), 2);
    while (NumLive(h) == 2) h.Step();
    EXPECT_FALSE(h[never].Ended());
    EXPECT_EQ(h.scheduler.Stats().waiting, 1);
    while (!h[never].Ended()) h.Step();
    EXPECT_EQ(NumLive(h), 0) << "it comes back when there is room for more than a few tokens";
    h.RunToEnd();
    ExpectUntouched(h[never], 40);
    const Usage& usage = h[first].finished->usage;
    EXPECT_EQ(h[first].token_ids.size(), 60u);
    EXPECT_EQ(usage.preemptions, swaps ? 0 : 1);
    EXPECT_EQ(usage.swaps, swaps ? 1 : 0);
  }
}

// Once answer lengths are known, a request next to a reservation of 12 of 20 pages is admitted only
// if it needs at most 8 until the reservation ends: with a prompt of 8 tokens, when at most 24 are
// still to come.
TEST_P(PageReservationTest, AdmissionLooksAheadPastAReservation) {
  SchedulerHarness h(PoolOf(20), NoWatermark());
  for (int i = 0; i < 8; ++i) {
    h.Add(MakeRequest(8, 60, 100 + i));
    h.RunToEnd();
  }
  for (auto& [handle, stream] : h.streams) ASSERT_EQ(stream.token_ids.size(), 60u);
  const RequestHandle never = h.Add(Never(8, 40, 1));
  h.Step();
  const RequestHandle other = h.Add(MakeRequest(8, 60, 2));  // 17 pages a head
  while (h[never].token_ids.size() < 40 - 25) {
    EXPECT_EQ(NumLive(h), 1);
    h.Step();
  }
  while (NumLive(h) == 1) h.Step();
  EXPECT_FALSE(h[never].Ended());
  h.RunToEnd();
  ASSERT_TRUE(h[other].finished.has_value()) << h[other].failed->status;
  EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
}

// Table rows have their final width: 10 block ids for each of 4 heads.
TEST_P(PageReservationTest, TheTableIsReservedToo) {
  for (const int rows : {1, 2}) {
    EngineLimits limits = PoolOf(40);
    limits.table_entries = 4 * 10 * (rows + 1) - 4;
    SchedulerHarness h(limits, NoWatermark());
    for (const uint64_t seed : {1, 2, 3}) h.Add(Never(20, 20, seed));
    h.Step();
    EXPECT_EQ(NumLive(h), rows);
    EXPECT_EQ(h.scheduler.Stats().wait_reason, WaitReason::kBlockTables);
    h.RunToEnd();
    for (auto& [handle, stream] : h.streams) ExpectUntouched(stream, 20);
  }
}

// A prompt of 20 tokens has 5 whole pages a head, which samples share; each adds 5 of its own.
TEST_P(PageReservationTest, EverySampleHasAReservation) {
  for (const auto& [pages, live] : {std::pair(20, 3), std::pair(19, 2)}) {
    SchedulerHarness h(PoolOf(pages), NoWatermark());
    const std::vector<RequestHandle> samples = AddSamples(&h, Never(20, 20), 3);
    int most = 0;
    while (!h.scheduler.Empty()) {
      h.Step();
      most = std::max(most, NumLive(h));
    }
    EXPECT_EQ(most, live);
    for (const RequestHandle sample : samples) ExpectUntouched(h[sample], 20);
    EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
  }
}

// Heads that will overwrite prompt entries share no pages: 24 entries are 6 pages of their own.
TEST_P(PageReservationTest, PagesThatWillBeOverwrittenAreNotShared) {
  for (const auto& [pages, live] : {std::pair(18, 3), std::pair(17, 2)}) {
    SchedulerHarness h(PoolOf(pages), NoWatermark());
    Request request = Never(20, 20);
    request.cache = LocalCache(24);
    const std::vector<RequestHandle> samples = AddSamples(&h, request, 3);
    int most = 0;
    while (!h.scheduler.Empty()) {
      h.Step();
      most = std::max(most, NumLive(h));
      EXPECT_EQ(h.scheduler.Stats().pages_spared, 0);
    }
    EXPECT_EQ(most, live);
    EXPECT_GT(h.engine.num_copies(), 0);
    for (const RequestHandle sample : samples) ExpectUntouched(h[sample], 20);
  }
}

// With a prompt of 40 tokens a head holds 32 candidates, 8 pages, until the prompt's end; then all
// heads together hold 32 entries, in at most 11 pages: 12 more entries fit in partially filled last
// pages. The state of 8 pages each needs 4 more.
TEST_P(PageReservationTest, SurplusReservationsAreReleased) {
  SchedulerHarness h(PoolOf(11), NoWatermark());  // 44
  const auto ragged = [](uint64_t seed) {
    Request request = Never(40, 60, seed);
    request.cache = LocalCache(8);
    request.cache.policy = "h2o";
    request.cache.params = {{"budget_scope", "model"}, {"candidates", "4"}};
    return request;
  };
  const RequestHandle first = h.Add(ragged(1)), second = h.Add(ragged(2));
  h.Step();
  EXPECT_EQ(NumLive(h), 1) << "36 pages are promised, and 36 are wanted";
  for (int i = 0; i < GetParam() + 2; ++i) h.Step();
  EXPECT_EQ(NumLive(h), 2);
  EXPECT_FALSE(h[first].Ended());
  h.RunToEnd();
  ExpectUntouched(h[first], 60);
  ExpectUntouched(h[second], 60);
}

// Every cache policy, in a pool that is too small for two of most caches, next to other requests.
TEST_P(PageReservationTest, EveryKindOfCacheStaysWithinItsReservation) {
  const std::vector<std::pair<std::string, std::map<std::string, std::string>>> policies = {
      {"full", {}},
      {"local", {}},
      {"h2o", {{"budget_scope", "model"}, {"candidates", "2"}}},
      {"ada-snapkv", {}},
      {"snapkv", {}},
      {"ada-h2o", {}},
      {"co2", {{"measurement_steps", "9"}}},
      {"co2", {{"self_tuning", "true"}, {"budget_scope", "model"}}},
      {"scissorhands", {{"drop_tokens", "5"}}},
      {"subgen", {}},
      {"reconstruct", {}},
      {"auto", {}}};
  SchedulerHarness h(PoolOf(30), NoWatermark());
  std::vector<RequestHandle> handles;
  uint64_t seed = 0;
  for (const auto& [policy, params] : policies) {
    Request request = Never(48, 40, ++seed);
    if (policy != "full" && policy != "auto") request.cache = LocalCache(20);
    request.cache.policy = policy;
    request.cache.params = params;
    handles.push_back(h.Add(request));
    h.Add(MakeRequest(20, 40, 100 + seed));
  }
  h.RunToEnd();
  for (const RequestHandle handle : handles) ExpectUntouched(h[handle], 40);
  EXPECT_GT(h.scheduler.Stats().preemptions, 0u) << "the pool is scarce";
}

// The longest request is not rejected: it finally gets the whole pool.
TEST_P(PageReservationTest, ARequestForAllPagesWaitsForAnEmptyPool) {
  SchedulerHarness h(PoolOf(20));
  h.Add(MakeRequest(8, 20, 1));
  const RequestHandle never = h.Add(Never(30, 51, 2));  // 80 entries, the whole pool
  h.Step();
  EXPECT_EQ(NumLive(h), 1);
  h.RunToEnd();
  ExpectUntouched(h[never], 51);
}

// An append raises the caps of the context that it continues; that is reserved, too.
TEST_P(PageReservationTest, AConversationsNextTurnReservesItsPages) {
  EngineLimits limits = PoolOf(40);
  limits.num_host_pages = 200;
  limits.max_offloaded_caches = 4;
  SchedulerHarness h(limits, NoWatermark());
  Request first = MakeRequest(60, 4, 1);
  first.cache.policy = "h2o";
  first.cache.cache_ratio = 0.5;
  first.cache.min_cache_tokens = 4;
  first.keep_as.handle = "context";
  h.Add(first);
  h.RunToEnd();
  Request turn = Never(40, 20, 2);
  turn.context = "context";
  ASSERT_FALSE(h.scheduler.contexts().Resolve(&turn).has_value());
  const RequestHandle never = h.Add(turn);
  for (uint64_t seed = 10; seed < 14; ++seed) h.Add(MakeRequest(20, 60, seed));
  h.RunToEnd();
  ExpectUntouched(h[never], 20);
  EXPECT_GT(h.engine.num_turns(), 0);
  EXPECT_GT(h.scheduler.Stats().preemptions, 0u);
}

}  // namespace
}  // namespace hydrant
