// The scheduler under a fake clock, with a fake engine that checks engine/run/step/batch.h.
#include "scheduler/scheduler.h"

#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/serving_view.h"
#include "tests/engine/cache/plan_view.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

// The parameter: steps in flight.
class SchedulerTest : public testing::TestWithParam<int> {
 protected:
  static EngineLimits Limits() {
    EngineLimits limits = SmallLimits();
    limits.max_steps_in_flight = GetParam();
    return limits;
  }
  // Steps by which a result is later than with one step in flight.
  static int Late() { return GetParam() - 1; }
};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, SchedulerTest, testing::Values(1, 2, 3));

TEST_P(SchedulerTest, OneRequestRunsToItsLength) {
  SchedulerHarness h(Limits());
  const RequestHandle a = h.Add(MakeRequest(10, 5));
  h.RunToEnd();
  ASSERT_TRUE(h[a].finished.has_value());
  EXPECT_EQ(h[a].finished->reason, FinishReason::kLength);
  EXPECT_EQ(h[a].token_ids.size(), 5u);
  EXPECT_EQ(h[a].num_deltas, 5);
  const Usage& usage = h[a].finished->usage;
  EXPECT_EQ(usage.prompt_tokens, 10);
  EXPECT_EQ(usage.completion_tokens, 5);
  EXPECT_EQ(usage.kv_tokens_kept, 14);  // the fifth token is never fed
  EXPECT_EQ(usage.kv_tokens_evicted, 0);
  EXPECT_EQ(usage.kv_pages_peak, 4 * 4);  // 14 entries are 4 pages of 4, in 4 heads
  // 3 pages a head until the third entry after the prompt; with more steps in flight the first
  // tokens are late, too.
  const int steps = 5 + Late();
  EXPECT_DOUBLE_EQ(usage.kv_pages_mean, 4.0 * (3 * 3 + 4 * (steps - 3)) / steps);
  EXPECT_EQ(usage.queue_us, 0);
  EXPECT_EQ(usage.prefill_us, 1000 * (1 + Late()));
  EXPECT_EQ(usage.decode_us, 4000);
  EXPECT_EQ(usage.swapped_us + usage.preempted_us, 0);
  EXPECT_EQ(h.scheduler.Stats().prompt_tokens, 10u);
  EXPECT_EQ(h.scheduler.Stats().generation_tokens, 5u);
}

TEST_P(SchedulerTest, GrowsAcrossPageBordersAndMovesItsRow) {
  SchedulerHarness h(Limits());
  const RequestHandle a = h.Add(MakeRequest(3, 120));
  h.RunToEnd();
  EXPECT_EQ(h[a].token_ids.size(), 120u);
  EXPECT_EQ(h[a].finished->usage->kv_pages_peak, 4 * 31);  // 122 entries
}

TEST_P(SchedulerTest, ACappedSequenceNeedsNoUpdatesOnceItIsFull) {
  SchedulerHarness h(Limits());
  Request request = MakeRequest(20, 60);
  request.cache = LocalCache(8);
  const RequestHandle a = h.Add(std::move(request));
  h.Step();
  EXPECT_EQ(h.engine.last_step().num_updates, 4u * 2);
  while (!h.scheduler.Empty()) {
    h.Step();
    EXPECT_EQ(h.engine.last_step().num_updates, 0u);
  }
  EXPECT_EQ(h[a].token_ids.size(), 60u);
  EXPECT_EQ(h[a].finished->usage->kv_tokens_kept, 8);
  EXPECT_EQ(h[a].finished->usage->kv_tokens_evicted, 20 + 59 - 8);
}

TEST_P(SchedulerTest, FirstComeFirstServed) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  SchedulerHarness h(limits);
  std::vector<RequestHandle> handles;
  handles.reserve(5);
  for (int i = 0; i < 5; ++i) handles.push_back(h.Add(MakeRequest(40 - 8 * i, 3, i)));
  for (int done = 0; done < 5;) {
    h.Step();
    ASSERT_FALSE(HasFailure());
    for (int i = done + 1; i < 5; ++i) EXPECT_FALSE(h[handles[i]].Ended());
    if (h[handles[done]].Ended()) ++done;
  }
  EXPECT_GT(h[handles[4]].finished->usage->queue_us, h[handles[1]].finished->usage->queue_us);
}

TEST_P(SchedulerTest, LowerNumbersGoFirst) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  SchedulerHarness h(limits);
  const auto add = [&](int priority) {
    Request request = MakeRequest(10, 5);
    request.priority = priority;
    return h.Add(request);
  };
  const RequestHandle running = add(3);
  h.Step();
  const std::vector<RequestHandle> order = {add(0), add(1), add(-2), add(0), add(1)};
  std::vector<RequestHandle> ended;
  for (int i = 0; i < 200 && ended.size() < 6; ++i) {
    h.Step();
    for (auto& [handle, stream] : h.streams) {
      if (stream.Ended() && std::find(ended.begin(), ended.end(), handle) == ended.end())
        ended.push_back(handle);
    }
  }
  EXPECT_THAT(ended,
              testing::ElementsAre(running, order[2], order[0], order[3], order[1], order[4]));
}

// One priority level equals a minute of waiting.
TEST_P(SchedulerTest, WaitingOutweighsPriority) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  SchedulerHarness h(limits);
  h.Add(MakeRequest(10, 5));
  h.Step();
  Request request = MakeRequest(10, 5);
  request.priority = 2;
  const RequestHandle patient = h.Add(request);
  h.now += 121'000'000;
  const RequestHandle late = h.Add(MakeRequest(10, 5));
  while (!h[patient].Ended()) h.Step();
  EXPECT_FALSE(h[late].Ended());
  h.RunToEnd();
}

// The pool holds both requests to half of their lengths.
TEST_P(SchedulerTest, TheLastClassIsPreemptedFirst) {
  EngineLimits limits = Limits();
  limits.num_blocks = 4 * 16;
  SchedulerHarness h(limits, {.watermark = 0});
  Request low = MakeRequest(20, 20, 1), high = MakeRequest(20, 20, 2);
  low.priority = 1;
  const RequestHandle first = h.Add(low);
  const RequestHandle second = h.Add(high);
  h.RunToEnd();
  EXPECT_GT(h[first].finished->usage->preemptions, 0);
  EXPECT_EQ(h[second].finished->usage->preemptions, 0);
}

// Two caches that may shrink, in a pool that is too small for both.
TEST_P(SchedulerTest, CachesShrinkBeforePreemption) {
  EngineLimits limits = Limits();
  limits.num_blocks = 4 * 22 + 4;  // 88 entries a head, and the scores of all
  const auto run = [&](bool evict) {
    auto h = std::make_unique<SchedulerHarness>(limits, SchedulerOptions{.watermark = 0});
    for (const uint64_t seed : {1, 2}) {
      Request request = MakeRequest(20, 60, seed);
      request.cache.policy = "h2o";
      request.cache.max_cache_tokens = 100;
      request.cache.min_cache_tokens = 12;
      request.on_pressure = evict ? OnPressure::kEvict : OnPressure::kPreempt;
      h->Add(request);
    }
    h->RunToEnd();
    return h;
  };
  const auto preempted = run(false);
  EXPECT_GT(preempted->scheduler.Stats().preemptions, 0u);
  EXPECT_EQ(preempted->scheduler.Stats().shrinks, 0u);
  const auto cut = run(true);
  EXPECT_EQ(cut->scheduler.Stats().preemptions, 0u);
  EXPECT_GT(cut->scheduler.Stats().shrinks, 0u);
  int shrinks = 0;
  for (const auto& [handle, stream] : cut->streams) {
    EXPECT_EQ(stream.token_ids.size(), 60u);
    const Usage& usage = stream.finished->usage;
    shrinks += usage.shrinks;
    if (usage.shrinks > 0) {
      EXPECT_LT(usage.kv_tokens_kept, 75);
      EXPECT_GE(usage.kv_tokens_kept, 12);
      EXPECT_EQ(usage.kv_tokens_evicted, 79 - usage.kv_tokens_kept);
    }
  }
  EXPECT_EQ(shrinks, static_cast<int>(cut->scheduler.Stats().shrinks));
}

// A full cache shrinks repeatedly under pressure, and its usage reports it.
TEST_P(SchedulerTest, AutoShrinksBeforePreemption) {
  EngineLimits limits = Limits();
  limits.num_blocks = 4 * 26;
  SchedulerHarness h(limits, {.watermark = 0});
  Request request = MakeRequest(20, 60, 1), other = MakeRequest(20, 60, 2);
  request.cache.policy = "auto";
  request.cache.min_cache_tokens = 12;
  request.on_pressure = OnPressure::kEvict;
  const RequestHandle open = h.Add(request);
  h.Step();
  const RequestHandle full = h.Add(other);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
  ASSERT_TRUE(h[full].finished.has_value()) << h[full].failed->status;
  ASSERT_TRUE(h[open].finished.has_value()) << h[open].failed->status;
  EXPECT_EQ(h[full].finished->usage->kv_tokens_kept, 79);
  const Usage& usage = h[open].finished->usage;
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 20);
  EXPECT_GT(usage.shrinks, 1);
  EXPECT_LT(usage.kv_tokens_kept, 79);
  EXPECT_GE(usage.kv_tokens_kept, 12);
  EXPECT_EQ(h[open].token_ids.size(), 60u);
  EXPECT_EQ(Reported(usage.policy_report, "policy"), "echo");
  EXPECT_THAT(Reported(usage.policy_report, "why"),
              HasSubstr(absl::StrCat("; cut to ", usage.kv_tokens_kept, " entries a head after ")));
}

// A cache that may shrink later takes all free room; any other cache takes only a budget that fits
// to its end.
TEST_P(SchedulerTest, AutoTakesMoreWhereItMayTightenLater) {
  for (const bool evict : {false, true}) {
    EngineLimits limits = Limits();
    // The final sizes of both caches, 40 and 48 pages, if they may not shrink, and 5 and 6 pages
    // for their state, of 8 pages each.
    limits.num_blocks = 4 * 22 + 11;
    SchedulerHarness h(limits, {.watermark = 0});
    Request request = MakeRequest(40, 30, 1);
    request.cache.policy = "auto";
    request.cache.min_cache_tokens = 4;
    if (evict) request.on_pressure = OnPressure::kEvict;
    const RequestHandle first = h.Add(request), second = h.Add(request);
    h.RunToEnd();
    const auto of_prompt = [&](RequestHandle handle) {
      return h[handle].finished->usage->kv_entries_of_prompt;
    };
    EXPECT_EQ(of_prompt(first) == 4 * 40, evict);
    EXPECT_EQ(of_prompt(second) == 4 * 40, evict);
    EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
  }
}

// A sequence that was compacted and then preempted prefills its prompt again, is compacted at the
// same tokens to the same lengths of heads, and produces the same tokens.
TEST_P(SchedulerTest, AShrunkCacheSurvivesPreemption) {
  for (const std::string policy : {"h2o", "snapkv", "pyramidkv", "ada-h2o", "echo", "auto"}) {
    SCOPED_TRACE(policy);
    const bool is_ragged = policy == "ada-h2o" || policy == "echo" || policy == "pyramidkv";
    EngineLimits limits = Limits();
    // 26 pages a head, and slabs: one holds the scores of 24 pages, or the full state of 8. `echo`
    // peaks alone at 98 pages, which need 13 slabs.
    limits.num_blocks = policy == "echo" ? 98 + 13 : 4 * 26 + 5;
    SchedulerHarness h(limits, {.watermark = 0});
    h.engine.checks_replays = true;
    const Request first = MakeRequest(20, 60, 1);
    Request second = MakeRequest(40, 60, 2);
    second.cache.policy = policy;
    if (policy != "auto") second.cache.max_cache_tokens = is_ragged ? 36 : 100;
    second.cache.min_cache_tokens = 30;  // then it is preempted
    second.on_pressure = OnPressure::kEvict;
    h.Add(first);
    const RequestHandle cut = h.Add(second);
    h.RunToEnd();
    const Usage& usage = h[cut].finished->usage;
    EXPECT_GT(usage.shrinks, 0);
    EXPECT_GT(usage.preemptions, 0);
    EXPECT_GT(h.engine.num_shrinks(), usage.shrinks);
    EXPECT_LT(usage.kv_tokens_kept, 99);
  }
}

// The pool has 20 pages a head, and 2 for scores. The first request takes 11, and 12 at its end;
// the second would take 11, or 3 if compressed; the third takes 5.
class FallbackPlanTest : public SchedulerTest {
 protected:
  static std::unique_ptr<SchedulerHarness> MakeHarness(const std::string& policy) {
    EngineLimits limits = Limits();
    limits.num_blocks = 4 * 20 + 2;
    const auto parsed = ParsePolicyUnderPressure(policy);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return std::make_unique<SchedulerHarness>(
        limits, SchedulerOptions{.watermark = 0, .policy_under_pressure = *parsed});
  }
  static Request LongRequest(int prompt_tokens, int max_tokens, uint64_t seed) {
    Request request = MakeRequest(prompt_tokens, max_tokens, seed);
    request.stopping.ignore_eos = true;
    return request;
  }
};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, FallbackPlanTest, testing::Values(1, 2, 3));

TEST_P(FallbackPlanTest, ACacheThatDoesNotFitIsCompressedAndReported) {
  const auto h = MakeHarness("h2o:max_cache_tokens=12");
  const RequestHandle first = h->Add(LongRequest(44, 5, 1));
  const RequestHandle second = h->Add(LongRequest(44, 5, 2));
  const RequestHandle third = h->Add(LongRequest(17, 4, 3));
  h->Step();
  EXPECT_EQ(h->scheduler.Stats().waiting, 0);
  EXPECT_EQ(h->scheduler.Stats().pages_free, 4 * (20 - 11 - 3 - 5) + 2 - 1) << "one has the scores";
  ASSERT_EQ((*h)[second].progress.size(), 1u);  // before any other event of the request
  EXPECT_EQ((*h)[second].progress[0].compressed_by, "h2o");
  EXPECT_EQ((*h)[second].progress[0].queue_position, 0);
  EXPECT_EQ((*h)[second].progress[0].prompt_tokens, 44);
  h->RunToEnd();
  const Usage& usage = (*h)[second].finished->usage;
  EXPECT_EQ(usage.compressed_by, "h2o");
  EXPECT_EQ(usage.kv_tokens_kept, 12);
  EXPECT_EQ(usage.kv_tokens_evicted, 48 - 12);
  EXPECT_EQ(usage.queue_us, 0);
  EXPECT_EQ((*h)[second].token_ids.size(), 5u);
  for (const RequestHandle whole : {first, third}) {  // requests that fit keep their caches
    EXPECT_EQ((*h)[whole].finished->usage->compressed_by, "");
    EXPECT_EQ((*h)[whole].finished->usage->kv_tokens_evicted, 0);
    EXPECT_TRUE((*h)[whole].progress.empty());
  }
  EXPECT_EQ(h->scheduler.Stats().compressed, 1u);
  EXPECT_EQ(h->scheduler.Stats().preemptions, 0u);
}

TEST_P(FallbackPlanTest, WaitsWithoutAFallback) {
  const auto h = MakeHarness("wait");
  const RequestHandle first = h->Add(LongRequest(44, 5, 1));
  const RequestHandle second = h->Add(LongRequest(44, 5, 2));
  h->Step();
  EXPECT_EQ(h->scheduler.Stats().waiting, 1);
  while (!(*h)[first].Ended()) h->Step();
  h->RunToEnd();
  const Usage& usage = (*h)[second].finished->usage;
  EXPECT_EQ(usage.compressed_by, "");
  EXPECT_EQ(usage.kv_tokens_evicted, 0);
  EXPECT_GT(usage.queue_us, 0);
  EXPECT_EQ(h->scheduler.Stats().compressed, 0u);
}

// 16 pages a head do not fit either: it waits for its full cache, unchanged.
TEST_P(FallbackPlanTest, ARequestThatDoesNotFitCompressedWaitsUnchanged) {
  const auto h = MakeHarness("h2o:max_cache_tokens=64");
  h->Add(LongRequest(44, 5, 1));
  const RequestHandle second = h->Add(LongRequest(76, 4, 2));
  h->RunToEnd();
  const Usage& usage = (*h)[second].finished->usage;
  EXPECT_EQ(usage.compressed_by, "");
  EXPECT_EQ(usage.kv_tokens_evicted, 0);
  EXPECT_GT(usage.queue_us, 0);
}

// A policy that prefills a prompt twice does so here, too.
TEST_P(FallbackPlanTest, APolicyWithAProbeReadsIt) {
  const auto h = MakeHarness("reconstruct:max_cache_tokens=12:candidates=1");
  h->Add(LongRequest(44, 5, 1));
  const RequestHandle second = h->Add(LongRequest(44, 5, 2));
  h->RunToEnd();
  const Usage& usage = (*h)[second].finished->usage;
  EXPECT_EQ(usage.compressed_by, "reconstruct");
  EXPECT_GE(usage.probe_tokens, 44);
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 12);
}

// The first sample does not fit next to the other request: all samples of the prompt are
// compressed, and each reports it.
TEST_P(FallbackPlanTest, SamplesAreCompressedTogether) {
  const auto h = MakeHarness("h2o:max_cache_tokens=12");
  h->Add(LongRequest(44, 5, 1));
  Request request = LongRequest(44, 5, 2);
  std::vector<RequestHandle> samples;
  for (int i = 0; i < 3; ++i) {
    if (i > 0) request.sample_of = samples.front();
    request.sampling.seed = 10 + i;
    samples.push_back(h->Add(request));
  }
  h->RunToEnd();
  for (const RequestHandle sample : samples) {
    EXPECT_EQ((*h)[sample].finished->usage->compressed_by, "h2o");
    EXPECT_EQ((*h)[sample].finished->usage->kv_tokens_kept, 12);
  }
  EXPECT_EQ(h->scheduler.Stats().compressed, 1u);
}

// A preempted compressed cache is restored compressed, even if there is room for all of it by then.
TEST_P(FallbackPlanTest, APreemptedRequestKeepsItsPlan) {
  const auto h = MakeHarness("snapkv:max_cache_tokens=34");
  const RequestHandle first = h->Add(LongRequest(44, 30, 1));
  const RequestHandle second = h->Add(LongRequest(44, 30, 2));
  h->RunToEnd();
  EXPECT_EQ((*h)[first].finished->usage->preemptions, 0);
  const Usage& usage = (*h)[second].finished->usage;
  EXPECT_GT(usage.preemptions, 0);
  EXPECT_EQ(usage.compressed_by, "snapkv");
  EXPECT_EQ(usage.kv_tokens_kept, 34 + 29);
  EXPECT_EQ(h->scheduler.Stats().compressed, 1u);
}

TEST_P(SchedulerTest, JoinsAndLeavesAtEveryStep) {
  SchedulerHarness h(Limits());
  const RequestHandle a = h.Add(MakeRequest(8, 20, 1));
  h.Step();
  h.Step();
  const RequestHandle b = h.Add(MakeRequest(8, 2, 2));
  h.Step();
  EXPECT_EQ(h.engine.last_step().decoded.size(), 1u);
  EXPECT_EQ(h.engine.last_step().parts.size(), 1u);
  h.Step();
  EXPECT_EQ(h.engine.last_step().decoded.size(), 2u);
  h.Step();  // b's second token was its last
  EXPECT_EQ(h.engine.last_step().decoded.size(), 1u);
  for (int i = 0; i < Late() - 1; ++i) h.Step();
  EXPECT_EQ(h[b].num_deltas, 2);
  EXPECT_TRUE(h[b].Ended());
  EXPECT_FALSE(h[a].Ended());
  h.RunToEnd();
}

// The newest token is passed if the host knows it, otherwise the engine supplies it; no step runs
// beyond the last token.
TEST_P(SchedulerTest, LeavesTokensOnTheirWayToTheEngine) {
  SchedulerHarness h(Limits());
  const RequestHandle a = h.Add(MakeRequest(8, 4));
  h.Step();
  for (int step = 0; step < 3; ++step) {
    h.Step();
    ASSERT_EQ(h.engine.last_step().decoded.size(), 1u);
    EXPECT_EQ(h.engine.last_step().tokens[0] == kNoToken, Late() > 0);
  }
  EXPECT_EQ(h.engine.num_steps(), 4);
  EXPECT_EQ(h[a].token_ids.size(), 4u - Late());
  h.RunToEnd();
  EXPECT_EQ(h.engine.num_steps(), 4);
  EXPECT_EQ(h[a].token_ids.size(), 4u);
}

// 64 prompt tokens take 64 pages; with a budget of 8 entries they take 8. The pool has 64.
TEST_P(SchedulerTest, AdmissionCountsTheCompressedSize) {
  EngineLimits limits = Limits();
  limits.num_blocks = 64;
  limits.prefill_arena_tokens = 1024;
  SchedulerHarness h(limits, {.watermark = 0.0});
  for (int i = 0; i < 8; ++i) {
    Request request = MakeRequest(64, 10, i);
    request.cache = LocalCache(8);
    h.Add(std::move(request));
  }
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().waiting, 0);
  EXPECT_EQ(h.scheduler.Stats().pages_free, 0);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
}

TEST_P(SchedulerTest, TheWatermarkStaysFreeUnlessNothingIsLive) {
  EngineLimits limits = Limits();
  limits.num_blocks = 40;
  SchedulerHarness h(limits, {.watermark = 0.25});
  h.Add(MakeRequest(36, 2, 1));  // 36 of 40 pages: beyond the watermark, but it is alone
  h.Add(MakeRequest(1, 2, 2));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().pages_free, 4);
  EXPECT_EQ(h.scheduler.Stats().waiting, 1);
  h.RunToEnd();
  h.Add(MakeRequest(
      24, 2, 3));  // 24 and 4 pages leave 12; another 4 would leave 8 of the 10 that must stay
  h.Add(MakeRequest(4, 2, 4));
  h.Add(MakeRequest(4, 2, 5));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().waiting, 1);
  h.RunToEnd();
}

// The same requests in an ample and in a scarce pool: equal tokens, despite preemption and replay.
TEST_P(SchedulerTest, PreemptionAndReplayLeaveTheTokensAlone) {
  auto run = [](int num_blocks, uint64_t* preemptions) {
    EngineLimits limits = Limits();
    limits.num_blocks = num_blocks;
    limits.table_entries = 4096;
    SchedulerHarness h(limits, {.watermark = 0.0});
    for (int i = 0; i < 10; ++i) {
      Request request = MakeRequest(10 + i, 50, i);
      if (i % 3 == 1) request.cache = LocalCache(12);
      h.Add(std::move(request));
    }
    h.RunToEnd();
    *preemptions = h.scheduler.Stats().preemptions;
    int32_t reported = 0;
    std::vector<std::vector<TokenId>> tokens;
    for (auto& [handle, stream] : h.streams) {
      EXPECT_TRUE(stream.finished.has_value());
      if (stream.finished.has_value()) reported += stream.finished->usage->preemptions;
      tokens.push_back(stream.token_ids);
    }
    EXPECT_EQ(reported, static_cast<int32_t>(*preemptions));
    return tokens;
  };
  uint64_t ample_preemptions = 0, scarce_preemptions = 0;
  const auto ample = run(1024, &ample_preemptions);
  const auto scarce = run(80, &scarce_preemptions);
  EXPECT_EQ(ample_preemptions, 0u);
  EXPECT_GT(scarce_preemptions, 2u);
  EXPECT_EQ(ample, scarce);
}

TEST_P(SchedulerTest, TheOldestIsNeverPreempted) {
  EngineLimits limits = Limits();
  limits.num_blocks = 80;
  SchedulerHarness h(limits, {.watermark = 0.0});
  std::vector<RequestHandle> handles;
  handles.reserve(6);
  for (int i = 0; i < 6; ++i) handles.push_back(h.Add(MakeRequest(8, 70, i)));
  h.RunToEnd();
  EXPECT_GT(h.scheduler.Stats().preemptions, 0u);
  EXPECT_EQ(h[handles[0]].finished->usage->preemptions, 0);
}

// No thrashing: in a pool for half of the entries of 16 long answers, each sequence is preempted a
// few times at most, and little work is repeated.
TEST_P(SchedulerTest, NoPreemptionStorm) {
  EngineLimits limits = Limits();
  limits.num_blocks = 240;
  SchedulerHarness h(limits, {.watermark = 0.05});
  for (int i = 0; i < 16; ++i) h.Add(MakeRequest(16, 100, i));
  h.RunToEnd();
  EXPECT_LE(h.scheduler.Stats().preemptions, 2u * 16);
  // 16 * 100 tokens by up to two at a time (116 entries are 116 pages) take 800 steps at least.
  EXPECT_LE(h.engine.num_steps(), 1600);
}

TEST_P(SchedulerTest, ResumedTokensAreReplayedAndNotSentAgain) {
  SchedulerHarness h(Limits());
  Request request = MakeRequest(10, 30, 7);
  request.cache = LocalCache(9);
  const RequestHandle whole = h.Add(request);
  h.RunToEnd();
  for (const int cut : {1, 2, 13, 29}) {
    Request rest = request;
    rest.resume_token_ids.assign(h[whole].token_ids.begin(), h[whole].token_ids.begin() + cut);
    const RequestHandle resumed = h.Add(rest);
    h.RunToEnd();
    ASSERT_TRUE(h[resumed].finished.has_value());
    EXPECT_EQ(h[resumed].token_ids,
              std::vector<TokenId>(h[whole].token_ids.begin() + cut, h[whole].token_ids.end()));
    EXPECT_EQ(h[resumed].finished->usage->completion_tokens, 30);
  }
}

TEST_P(SchedulerTest, ResumeDeliversTheTextThatWasHeldBack) {
  SchedulerHarness h(Limits());
  h.tokenizer.texts = {{300, "one "}, {301, "EN"}, {302, "D!"}};
  h.engine.choose = [](uint64_t, int32_t position) {
    return position == 4 ? 300 : position == 5 ? 301 : 302;
  };
  Request request = MakeRequest(4, 3);
  request.stopping.stop = {"ENDLESS"};
  request.resume_token_ids = {300, 301};  // the id of "EN" had been delivered, its text held back
  const RequestHandle a = h.Add(request);
  h.RunToEnd();
  EXPECT_EQ(h[a].text, "END!");
}

TEST_P(SchedulerTest, NeverSamplesPastTheModelsLength) {
  SchedulerHarness h(Limits());
  Request request = MakeRequest(100, 1);
  request.stopping.max_tokens.reset();
  const RequestHandle a = h.Add(request);
  h.RunToEnd();
  EXPECT_EQ(h[a].token_ids.size(), 28u);  // positions 100 .. 127
  EXPECT_EQ(h[a].finished->reason, FinishReason::kLength);
}

TEST_P(SchedulerTest, WithoutMaxTokensThePoolIsTheLimit) {
  EngineLimits limits = Limits();
  limits.num_blocks = 40;  // 40 entries a head
  SchedulerHarness h(limits);
  Request request = MakeRequest(30, 1);
  request.stopping.max_tokens.reset();
  const RequestHandle a = h.Add(request);
  const RequestHandle b = h.Add(request);
  request.cache = LocalCache(8);
  const RequestHandle capped = h.Add(request);
  h.RunToEnd();
  EXPECT_EQ(h[a].token_ids.size(), 11u);  // 40 entries fed, one more sampled
  EXPECT_EQ(h[b].token_ids.size(), 11u);
  EXPECT_EQ(h[capped].token_ids.size(), 98u);
}

TEST_P(SchedulerTest, EndTokenEndsTheTextAndIsNotDelivered) {
  SchedulerHarness h(Limits());
  h.engine.choose = [](uint64_t, int32_t position) {
    return position < 7 ? 'a' : FakeTokenizer::kEog;
  };
  const RequestHandle a = h.Add(MakeRequest(5, 20));
  Request ignoring = MakeRequest(5, 4);
  ignoring.stopping.ignore_eos = true;
  const RequestHandle b = h.Add(ignoring);
  Request later = MakeRequest(5, 20);
  later.stopping.min_tokens = 6;
  const RequestHandle c = h.Add(later);
  h.RunToEnd();
  EXPECT_EQ(h[a].text, "aa");
  EXPECT_EQ(h[a].token_ids.size(), 2u);
  EXPECT_EQ(h[a].finished->reason, FinishReason::kStop);
  EXPECT_EQ(h[a].finished->matched_token_id, FakeTokenizer::kEog);
  EXPECT_EQ(h[a].finished->usage->completion_tokens, 3);
  EXPECT_EQ(h[b].finished->reason, FinishReason::kLength);
  EXPECT_EQ(h[b].token_ids.size(), 4u);
  EXPECT_EQ(h[c].token_ids.size(), 6u);
  EXPECT_EQ(h[c].finished->usage->completion_tokens, 7);
}

TEST_P(SchedulerTest, StopStringsAndIdsAreReported) {
  SchedulerHarness h(Limits());
  h.engine.choose = [](uint64_t seed, int32_t position) -> TokenId {
    return seed == 1 ? std::string("hello STOP it")[position - 5] : 600 + position;
  };
  Request text = MakeRequest(5, 20, 1);
  text.stopping.stop = {"none", "STOP"};
  const RequestHandle a = h.Add(text);
  text.stopping.include_stop_str_in_output = true;
  const RequestHandle b = h.Add(text);
  Request id = MakeRequest(5, 20, 2);
  id.stopping.stop_token_ids = {608};
  const RequestHandle c = h.Add(id);
  Request cut = MakeRequest(5, 8, 1);
  cut.stopping.stop = {"STOP"};
  const RequestHandle d = h.Add(cut);
  h.RunToEnd();
  EXPECT_EQ(h[a].text, "hello ");
  EXPECT_EQ(h[a].finished->matched_stop, "STOP");
  EXPECT_EQ(h[a].token_ids.size(), 10u);
  EXPECT_EQ(h[b].text, "hello STOP");
  EXPECT_EQ(h[c].text, "605 606 607 ");
  EXPECT_EQ(h[c].finished->matched_token_id, 608u);
  EXPECT_EQ(h[c].finished->matched_stop, "");
  EXPECT_EQ(h[d].text, "hello ST");  // the held text is delivered at the end
  EXPECT_EQ(h[d].finished->reason, FinishReason::kLength);
}

TEST_P(SchedulerTest, CancelFreesItsPagesAtOnceAndInEveryState) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 2;
  SchedulerHarness h(limits, {.max_num_batched_tokens = 8});
  const RequestHandle running = h.Add(MakeRequest(4, 100, 1));
  h.Step();
  const RequestHandle reading = h.Add(MakeRequest(100, 10, 2));
  const RequestHandle waiting = h.Add(MakeRequest(4, 10, 3));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().prefilling, 1);
  EXPECT_EQ(h.scheduler.Stats().waiting, 1);
  for (const RequestHandle handle : {reading, waiting, running}) {
    h.scheduler.Cancel(handle, absl::CancelledError("gone"));
    h.scheduler.Cancel(handle, absl::CancelledError("gone twice"));
    h.Step();
    ASSERT_TRUE(h[handle].failed.has_value());
    EXPECT_EQ(h[handle].failed->status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(h[handle].failed->reason, "CANCELLED");
  }
  EXPECT_TRUE(h.scheduler.Empty());
  EXPECT_EQ(h.scheduler.Stats().pages_free, limits.num_blocks);
  h.scheduler.Cancel(12345, absl::CancelledError("unknown"));
  h.Step();
}

TEST_P(SchedulerTest, DeadlinesEndWaitingAndRunningRequests) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  SchedulerHarness h(limits);
  Request request = MakeRequest(4, 100);
  request.deadline = h.now + 10'000;
  const RequestHandle running = h.Add(request);
  request.deadline = h.now + 5'000;
  const RequestHandle waiting = h.Add(request);
  request.deadline = h.now;
  const RequestHandle late = h.Add(request);
  h.Step();
  EXPECT_TRUE(h[late].Ended());
  h.RunToEnd();
  for (const RequestHandle handle : {running, waiting}) {
    ASSERT_TRUE(h[handle].failed.has_value());
    EXPECT_EQ(h[handle].failed->status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(h[handle].failed->reason, "DEADLINE");
  }
  EXPECT_EQ(h[running].token_ids.size(), 10u - Late());
  EXPECT_EQ(h[running].failed->usage->completion_tokens, 10 - Late());
  EXPECT_EQ(h[waiting].failed->usage->queue_us, 5'000);
}

TEST_P(SchedulerTest, AFaultEndsThatStreamOnly) {
  SchedulerHarness h(Limits());
  h.engine.choose = [](uint64_t seed, int32_t position) -> std::optional<TokenId> {
    if (seed == 2 && position == 8) return kNoToken;
    if (seed == 3 && position == 5) return kNoToken;
    return std::nullopt;
  };
  const RequestHandle good = h.Add(MakeRequest(5, 10, 1));
  const RequestHandle bad = h.Add(MakeRequest(5, 10, 2));
  const RequestHandle bad_prompt = h.Add(MakeRequest(5, 10, 3));
  h.RunToEnd();
  EXPECT_TRUE(h[good].finished.has_value());
  for (const RequestHandle handle : {bad, bad_prompt}) {
    ASSERT_TRUE(h[handle].failed.has_value());
    EXPECT_EQ(h[handle].failed->status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(h[handle].failed->reason, "ENGINE_FAULT");
  }
  EXPECT_EQ(h[bad].token_ids.size(), 3u);
}

TEST_P(SchedulerTest, WhenTheEngineIsLostAllEnd) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 2;
  SchedulerHarness h(limits);
  for (int i = 0; i < 4; ++i) h.Add(MakeRequest(5, 10, i));
  h.Step();
  h.engine.next_error = absl::UnknownError("device gone");
  for (int i = 0; i <= Late(); ++i) h.Step();
  EXPECT_TRUE(h.scheduler.Empty());
  for (auto& [handle, stream] : h.streams) {
    ASSERT_TRUE(stream.failed.has_value());
    EXPECT_THAT(std::string(stream.failed->status.message()), HasSubstr("device gone"));
  }
}

TEST_P(SchedulerTest, SilentRequestsHearProgress) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  SchedulerHarness h(limits, {.max_num_batched_tokens = 8, .progress_interval_us = 10'000});
  const RequestHandle reading = h.Add(MakeRequest(100, 2));
  const RequestHandle waiting = h.Add(MakeRequest(4, 2));
  const RequestHandle behind = h.Add(MakeRequest(4, 2));
  h.step_us = 5'000;
  h.RunToEnd();
  ASSERT_GE(h[reading].progress.size(), 1u);
  EXPECT_EQ(h[reading].progress[0].queue_position, 0);
  EXPECT_GT(h[reading].progress[0].prompt_tokens_done, 0);
  EXPECT_LT(h[reading].progress[0].prompt_tokens_done, 100);
  EXPECT_EQ(h[reading].progress[0].prompt_tokens, 100);
  ASSERT_GE(h[waiting].progress.size(), 1u);
  EXPECT_EQ(h[waiting].progress[0].queue_position, 1);
  EXPECT_EQ(h[behind].progress[0].queue_position, 2);
  EXPECT_LE(h[behind].progress.size(), 1 + h.now / 10'000);
}

TEST_P(SchedulerTest, ReportsTheLongestWait) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  SchedulerHarness h(limits, {.progress_interval_us = 10'000});
  h.step_us = 5'000;
  h.Add(MakeRequest(4, 30));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().longest_wait_us, 0) << "it has begun";
  const TimeUs since = h.now;
  h.Add(MakeRequest(4, 2));
  h.Step();
  h.Add(MakeRequest(4, 2));
  for (int i = 0; i < 10; ++i) h.Step();
  const TimeUs told = h.scheduler.Stats().longest_wait_us;
  EXPECT_LE(told, h.now - since);
  EXPECT_GE(told, h.now - since - 10'000);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler.Stats().longest_wait_us, 0);
}

TEST_P(SchedulerTest, AShortPromptIsNotStuckBehindALongOne) {
  EngineLimits limits = Limits();
  limits.max_model_len = 8192;
  limits.num_blocks = 100'000;
  limits.table_entries = 100'000;
  limits.prefill_arena_tokens = 16384;
  SchedulerHarness h(limits, {.max_num_batched_tokens = 256});
  const RequestHandle decoding = h.Add(MakeRequest(8, 1000, 1));
  h.Step();
  const RequestHandle long_prompt = h.Add(MakeRequest(8000, 1, 2));
  h.Step();
  const RequestHandle short_prompt = h.Add(MakeRequest(100, 1, 3));
  for (int i = 0; i < 2 + Late(); ++i) h.Step();
  EXPECT_TRUE(h[short_prompt].Ended());
  EXPECT_FALSE(h[long_prompt].Ended());
  int steps = 0;
  while (!h[long_prompt].Ended()) {
    const int before = h[decoding].num_deltas;
    h.Step();
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(h[decoding].num_deltas, before + 1);  // prefill does not delay decode
    EXPECT_LE(h.engine.last_step().prefill_token_layers, 1.5 * 256 * limits.num_layers);
    ++steps;
  }
  EXPECT_GE(steps, 8000 / 256);
}

TEST_P(SchedulerTest, ALongPromptIsNotStarvedByShortOnes) {
  EngineLimits limits = Limits();
  limits.max_model_len = 4096;
  limits.num_blocks = 100'000;
  limits.table_entries = 100'000;
  limits.prefill_arena_tokens = 8192;
  SchedulerHarness h(limits, {.max_num_batched_tokens = 128});
  h.Add(MakeRequest(8, 3000, 1));
  h.Step();
  const RequestHandle long_prompt = h.Add(MakeRequest(3000, 1, 2));
  int steps = 0;
  for (; !h[long_prompt].Ended() && steps < 1000; ++steps) {
    h.Add(MakeRequest(128, 1, 3));
    h.Step();
    ASSERT_FALSE(HasFailure());
  }
  // Cost of 3000 tokens with attention is 3000 + 3000^2 / 8192 = 4098 a layer, at 64 a step.
  EXPECT_LE(steps, 80);
}

// A long prompt waits for its arena range; strict order guarantees that it gets one.
TEST_P(SchedulerTest, APromptAsLongAsTheArenaRunsInTheEnd) {
  EngineLimits limits = Limits();
  limits.prefill_arena_tokens = 127;
  SchedulerHarness h(limits, {.max_num_batched_tokens = 16});
  for (int i = 0; i < 4; ++i) h.Add(MakeRequest(50, 2, i));
  const RequestHandle long_prompt = h.Add(MakeRequest(127, 1, 9));
  for (int i = 0; i < 4; ++i) h.Add(MakeRequest(50, 2, i));
  h.RunToEnd();
  EXPECT_TRUE(h[long_prompt].finished.has_value());
}

// The table arena is no larger than the pool: rows move, and sequences are preempted for rows as
// for pages.
TEST_P(SchedulerTest, ATightTableArenaIsSharedLikeThePool) {
  EngineLimits limits = Limits();
  limits.num_blocks = 128;
  limits.table_entries = 128;
  SchedulerHarness h(limits, {.watermark = 0.0});
  for (int i = 0; i < 12; ++i) h.Add(MakeRequest(5 + i, 100, i));
  h.RunToEnd();
  for (auto& [handle, stream] : h.streams) EXPECT_TRUE(stream.finished.has_value());
}

// ---- Shared prefixes ----------------------------------------------------------------------------

Request BeginningWith(TokenId first, int shared, int more, TokenId then) {
  Request request = MakeRequest(shared + more, 2);
  for (int i = 0; i < shared + more; ++i) request.prompt[i] = i < shared ? first : then;
  return request;
}

EngineLimits LimitsForLongPrompts(EngineLimits limits) {
  limits.max_model_len = 400;
  limits.prefill_arena_tokens = 1000;
  limits.num_blocks = 1000;
  limits.table_entries = 4000;
  limits.num_prefix_blocks = 40;
  return limits;
}

// The first request prefills the shared prefix; unrelated requests overtake the followers.
TEST_P(SchedulerTest, ACommonPrefixWaitsForTheFirstPrefill) {
  SchedulerHarness h(LimitsForLongPrompts(Limits()));
  const RequestHandle leader = h.Add(BeginningWith(7, 256, 20, 1));
  std::vector<RequestHandle> followers;
  for (TokenId then = 2; then < 6; ++then)
    followers.push_back(h.Add(BeginningWith(7, 256, 20, then)));
  const RequestHandle other = h.Add(BeginningWith(8, 64, 20, 1));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().prefilling + h.scheduler.Stats().running, 2);
  EXPECT_EQ(h.scheduler.Stats().waiting, 4);
  EXPECT_EQ(h.scheduler.Stats().wait_reason, WaitReason::kPrefix);
  h.RunToEnd();
  EXPECT_EQ(h[leader].finished->usage->cached_tokens, 0);
  EXPECT_EQ(h[other].finished->usage->cached_tokens, 0);
  for (const RequestHandle follower : followers)
    EXPECT_EQ(h[follower].finished->usage->cached_tokens, 256);
}

// If the first request ends early, the next follower prefills the prefix.
TEST_P(SchedulerTest, ACancelledPrefillReleasesItsWaiters) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 32;
  SchedulerHarness h(LimitsForLongPrompts(Limits()), options);
  const RequestHandle leader = h.Add(BeginningWith(7, 256, 20, 1));
  const RequestHandle second = h.Add(BeginningWith(7, 256, 20, 2));
  const RequestHandle third = h.Add(BeginningWith(7, 256, 20, 3));
  h.Step();
  h.scheduler.Cancel(leader, absl::CancelledError("gone"));
  h.RunToEnd();
  EXPECT_EQ(h[second].finished->usage->cached_tokens, 0);
  EXPECT_EQ(h[third].finished->usage->cached_tokens, 256);
}

// A short prompt does not wait for a long one with a prefix that saves little.
TEST_P(SchedulerTest, ShortSharedPrefixesAreNotWaitedFor) {
  SchedulerHarness h(LimitsForLongPrompts(Limits()));
  h.Add(BeginningWith(7, 350, 0, 1));
  const RequestHandle brief = h.Add(BeginningWith(7, 64, 30, 2));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().waiting, 0);
  h.RunToEnd();
  EXPECT_TRUE(h[brief].finished.has_value());
}

// A request that needs all hidden states, as for mean pooling, does not wait.
TEST_P(SchedulerTest, RequestsThatPrefillAnywayDoNotWait) {
  SchedulerHarness h(LimitsForLongPrompts(Limits()));
  for (TokenId then = 1; then < 3; ++then) {
    Request request = BeginningWith(7, 256, 20, then);
    request.pooling = EmbeddingPooling::kMean;
    request.stopping.max_tokens = 1;
    h.Add(request);
  }
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().waiting, 0);
  h.RunToEnd();
}

// A policy that scores with all queries waits for a request that stores blocks for them, and not
// for one that stores none.
TEST_P(SchedulerTest, PoliciesWithAllQueriesWaitForThem) {
  for (const char* policy : {"h2o", "echo"}) {
    for (const char* first : {policy, "full"}) {
      SCOPED_TRACE(testing::Message() << policy << " behind " << first);
      SchedulerHarness h(LimitsForLongPrompts(Limits()));
      Request request = BeginningWith(7, 256, 20, 1);
      request.cache.policy = first;
      if (request.cache.policy != "full") request.cache.max_cache_tokens = 40;
      h.Add(request);
      request = BeginningWith(7, 256, 20, 2);
      request.cache.policy = policy;
      request.cache.max_cache_tokens = 40;
      const RequestHandle second = h.Add(request);
      h.Step();
      const bool waits = std::string_view(first) == policy;
      EXPECT_EQ(h.scheduler.Stats().waiting, waits ? 1 : 0);
      h.RunToEnd();
      EXPECT_EQ(h[second].finished->usage->cached_tokens, waits ? 224 : 0);
      EXPECT_EQ(h[second].finished->usage->reread_tokens, waits ? 32 : 0);
    }
  }
}

// The budget that a client is sent equals the entries that a head then holds.
TEST_P(SchedulerTest, ATurnCountsItsBudgetAnew) {
  EngineLimits limits = LimitsForLongPrompts(Limits());
  limits.num_host_pages = 1000;
  limits.max_offloaded_caches = 4;
  for (const char* policy : {"h2o", "snapkv"}) {
    SCOPED_TRACE(policy);
    SchedulerHarness h(limits);
    Request first = MakeRequest(100, 3);
    first.cache.policy = policy;
    first.cache.cache_ratio = 0.2;
    first.cache.min_cache_tokens = 4;
    first.keep_as.handle = "first";
    h.Add(first);
    h.RunToEnd();
    Request next = MakeRequest(58, 1);  // after 102 tokens
    next.context = "first";
    ASSERT_FALSE(h.scheduler.contexts().Resolve(&next).has_value());
    const auto checked = CheckRequest(next, limits, h.tokenizer);
    ASSERT_TRUE(std::holds_alternative<CheckedRequest>(checked));
    const int prompt = static_cast<int>(next.prompt.size());
    EXPECT_EQ(std::get<CheckedRequest>(checked).CacheTokens(), (prompt + 4) / 5);
    const RequestHandle handle = h.Add(next);
    h.RunToEnd();
    EXPECT_EQ(h[handle].finished->usage->kv_tokens_kept, (prompt + 4) / 5);
  }
}

// ---- Pages with several owners ------------------------------------------------------------------

TEST_P(SchedulerTest, OnePrefixIsHeldOnce) {
  SchedulerHarness h(LimitsForLongPrompts(Limits()));
  std::vector<RequestHandle> all;
  for (TokenId then = 1; then < 7; ++then) all.push_back(h.Add(BeginningWith(7, 256, 4, then)));
  int64_t most = 0;
  while (!h.scheduler.Empty()) {
    h.Step();
    most = std::max(most, h.scheduler.Stats().pages_total - h.scheduler.Stats().pages_free);
  }
  // 256 tokens take 64 pages in each of 4 heads; the rest of each prompt takes two at most.
  EXPECT_LE(most, 4 * (64 + 6 * 2));
  for (const RequestHandle handle : all) {
    ASSERT_TRUE(h[handle].finished.has_value());
    EXPECT_GE(h[handle].finished->usage->kv_pages_peak, 4 * 65);
  }
}

// A pool that is too small for two unshared sequences serves all at once.
TEST_P(SchedulerTest, MoreRunWhereTheyShare) {
  EngineLimits limits = LimitsForLongPrompts(Limits());
  limits.num_blocks = 4 * 100;
  SchedulerHarness h(limits);
  for (TokenId then = 1; then < 7; ++then) {
    Request request = BeginningWith(7, 256, 4, then);
    request.stopping.max_tokens = 10;
    h.Add(request);
  }
  int most = 0;
  while (!h.scheduler.Empty()) {
    h.Step();
    most = std::max(most, h.scheduler.Stats().running);
  }
  EXPECT_EQ(most, 6);
  EXPECT_EQ(h.scheduler.Stats().preemptions, 0u);
}

// Others could share the prompt's pages, but its question will overwrite them: the question is
// already in prefill when the context's result arrives.
TEST_P(SchedulerTest, AQuestionThatIsBeingReadOverwritesNothingOfOthers) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 20;
  SchedulerHarness h(LimitsForLongPrompts(Limits()), options);
  h.Add(MakeRequest(8, 60));  // leaves room for no other prefill in a step
  for (int i = 0; i < 4; ++i) h.Step();
  Request request = BeginningWith(7, 100, 80, 1);
  request.question_tokens = 80;
  request.cache = LocalCache(104);
  request.cache.policy = "snapkv";
  request.cache.params["decode_cap"] = "110";
  const RequestHandle a = h.Add(request);
  h.RunToEnd();
  EXPECT_TRUE(h[a].finished.has_value());
}

TEST_P(SchedulerTest, SamplesReadTheirPromptOnce) {
  SchedulerHarness h(Limits());
  const std::vector<RequestHandle> samples = AddSamples(&h, MakeRequest(21, 6), 4);
  const RequestHandle behind = h.Add(MakeRequest(9, 6));
  h.Step();
  EXPECT_EQ(h.scheduler.Stats().prefilling + h.scheduler.Stats().running, 2) << "others pass";
  EXPECT_EQ(h.scheduler.Stats().wait_reason, WaitReason::kPrefix);
  h.RunToEnd();
  EXPECT_EQ(h.engine.num_forks(), 3);
  EXPECT_EQ(h.scheduler.Stats().prompt_tokens, 21u + 9u);
  EXPECT_TRUE(h[behind].finished.has_value());
  for (int i = 0; i < 4; ++i) {
    SchedulerHarness alone(Limits());
    Request request = MakeRequest(21, 6);
    request.sampling.seed = 100 + i;
    const RequestHandle handle = alone.Add(request);
    alone.RunToEnd();
    EXPECT_EQ(h[samples[i]].token_ids, alone[handle].token_ids) << i;
    EXPECT_EQ(h[samples[i]].finished->usage->prompt_tokens, 21);
    EXPECT_EQ(h[samples[i]].finished->usage->cached_tokens, i == 0 ? 0 : 21);
  }
}

TEST_P(SchedulerTest, SamplesWithoutRoomReadTheirPromptThemselves) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 2;
  SchedulerHarness h(limits);
  const std::vector<RequestHandle> samples = AddSamples(&h, MakeRequest(21, 6), 4);
  h.RunToEnd();
  EXPECT_EQ(h.engine.num_forks(), 1);
  for (const RequestHandle handle : samples) EXPECT_EQ(h[handle].token_ids.size(), 6u);
  EXPECT_EQ(h.scheduler.Stats().prompt_tokens, 21u * 3);
}

TEST_P(SchedulerTest, SamplesOutliveThePrefillingOne) {
  for (const int steps : {0, 1, 2, 3}) {
    SchedulerHarness h(Limits());
    const std::vector<RequestHandle> samples = AddSamples(&h, MakeRequest(21, 6), 3);
    for (int i = 0; i < steps; ++i) h.Step();
    h.scheduler.Cancel(samples[0], absl::CancelledError("gone"));
    h.scheduler.Cancel(samples[2], absl::CancelledError("gone"));
    h.RunToEnd();
    EXPECT_EQ(h[samples[1]].token_ids.size(), 6u) << steps;
  }
}

Request WithQuestion(int prompt_tokens, int question_tokens, int max_tokens, int budget) {
  Request request = MakeRequest(prompt_tokens, max_tokens);
  request.question_tokens = question_tokens;
  request.cache = LocalCache(budget);
  return request;
}

// The context is compressed alone, then the question is appended; only the answer is delivered.
TEST_P(SchedulerTest, AQuestionIsReadAfterItsContext) {
  SchedulerHarness h(Limits());
  const Request request = WithQuestion(30, 4, 3, 8);
  const RequestHandle a = h.Add(request);
  h.Step();
  ASSERT_EQ(h.engine.last_step().parts.size(), 1u);
  EXPECT_EQ(h.engine.last_step().parts[0].tokens.size(), 26u) << "the context";
  h.Step();
  ASSERT_EQ(h.engine.last_step().parts.size(), 1u);
  const TokenRun& question = h.engine.last_step().parts[0];
  EXPECT_EQ(question.tokens.size(), 4u);
  EXPECT_EQ(question.first_position, 26);
  EXPECT_EQ(h.engine.last_step().sampled[0].position, 30);
  EXPECT_TRUE(h.engine.last_step().decoded.empty());
  h.Step();
  ASSERT_EQ(h.engine.last_step().decoded.size(), 1u);
  EXPECT_EQ(h.engine.last_step().decoded[0].first_position, 30);
  EXPECT_FALSE(h.engine.last_step().decoded[0].in_prompt);
  h.RunToEnd();
  EXPECT_EQ(h[a].token_ids.size(), 3u);
  const Usage& usage = h[a].finished->usage;
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 8);
  EXPECT_EQ(usage.kv_tokens_kept, 8);
  EXPECT_EQ(usage.kv_tokens_evicted, 32 - 8);
  EXPECT_EQ(h.scheduler.Stats().prompt_tokens, 30u);
}

// In a small arena questions are appended one after the other.
TEST_P(SchedulerTest, QuestionsTakeTurnsInTheArena) {
  EngineLimits limits = Limits();
  limits.prefill_arena_tokens = limits.max_model_len;
  SchedulerHarness h(limits);
  std::vector<RequestHandle> handles;
  handles.reserve(4);
  for (int i = 0; i < 4; ++i) handles.push_back(h.Add(WithQuestion(120, 70, 3, 8)));
  h.RunToEnd();
  for (const RequestHandle handle : handles) EXPECT_EQ(h[handle].token_ids.size(), 3u);
}

// A long question gets its arena range, however many short prompts arrive.
TEST_P(SchedulerTest, ALongQuestionIsNotKeptOutOfTheArena) {
  EngineLimits limits = LimitsForLongPrompts(Limits());
  limits.prefill_arena_tokens = limits.max_model_len;
  limits.num_prefix_blocks = 0;
  SchedulerOptions options;
  options.max_num_batched_tokens = 32;
  SchedulerHarness h(limits, options);
  for (int i = 0; i < 5; ++i) h.Add(MakeRequest(60, 2));
  h.Step();
  const RequestHandle asked = h.Add(WithQuestion(390, 380, 3, 8));
  int steps = 0;
  for (; !h[asked].finished.has_value() && steps < 400; ++steps) {
    for (int i = 0; i < 3; ++i) h.Add(MakeRequest(60, 2));
    h.Step();
  }
  EXPECT_LT(steps, 400);
  h.RunToEnd();
}

// A rule that needs each token's attention gets a question token by token.
TEST_P(SchedulerTest, AQuestionIsFedTokenByToken) {
  SchedulerHarness h(Limits());
  Request request = WithQuestion(30, 4, 3, 8);
  request.cache.policy = "random";
  const RequestHandle a = h.Add(request);
  h.Step();
  ASSERT_EQ(h.engine.last_step().parts.size(), 1u);
  EXPECT_EQ(h.engine.last_step().parts[0].tokens.size(), 26u) << "the context";
  EXPECT_EQ(h.engine.last_step().parts[0].prompt.whole_prompt.size(), 30u) << "what penalties see";
  EXPECT_EQ(h.engine.last_step().sampled[0].position, 26);
  for (int position = 26; position < 32; ++position) {
    SCOPED_TRACE(position);
    h.Step();
    ASSERT_EQ(h.engine.last_step().decoded.size(), 1u);
    const TokenRun& row = h.engine.last_step().decoded[0];
    EXPECT_EQ(row.first_position, position);
    EXPECT_EQ(row.in_prompt, position < 30);
    if (position < 30) {
      EXPECT_EQ(h.engine.last_step().tokens[0], request.prompt[position])
          << "known, whatever was sampled before it";
      // No answer token so far: the first is sampled from the question's last token.
      EXPECT_EQ(h[a].token_ids.size(), position == 29 && Late() == 0 ? 1u : 0u);
    }
  }
  h.RunToEnd();
  EXPECT_EQ(h[a].token_ids.size(), 3u);
  const Usage& usage = h[a].finished->usage;
  EXPECT_EQ(usage.prompt_tokens, 30);
  EXPECT_EQ(usage.completion_tokens, 3);
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 8);
  EXPECT_EQ(usage.kv_pages_of_prompt, 4 * 2 + 1) << "one holds their scores";
  EXPECT_EQ(usage.kv_tokens_kept, 8);
  EXPECT_EQ(usage.kv_tokens_evicted, 32 - 8);
  EXPECT_TRUE(usage.retained_mass.has_value());
  EXPECT_EQ(h.scheduler.Stats().prompt_tokens, 30u);
}

// The ratio applies to the context: with the question included more entries would stay.
TEST_P(SchedulerTest, ARatioIsTheContexts) {
  SchedulerHarness h(Limits());
  Request request = WithQuestion(60, 20, 2, 1);
  request.cache.policy = "snapkv";
  request.cache.max_cache_tokens.reset();
  request.cache.cache_ratio = 0.5;
  request.cache.min_cache_tokens = 0;
  const RequestHandle a = h.Add(request);
  h.RunToEnd();
  EXPECT_EQ(h[a].finished->usage->kv_entries_of_prompt, 4 * 20);
  EXPECT_EQ(h[a].finished->usage->kv_tokens_kept, 20 + 20 + 1) << "the question is appended";
}

TEST_P(SchedulerTest, QuestionsSurviveResumptionAndPreemption) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(WithQuestion(20 + i, 1 + 2 * i, 40, 12));
    requests.back().sampling.seed = i;
    if (i % 3 == 0) requests.back().cache = CacheSpec();
    if (i % 3 == 1) requests.back().cache.policy = "ada-snapkv";
  }
  SchedulerHarness ample(Limits());
  EngineLimits limits = Limits();
  limits.num_blocks = 4 * 17 + 3;  // 67 entries a head, and their scores
  SchedulerHarness scarce(limits, {.watermark = 0.0});
  for (const Request& request : requests) {
    ample.Add(request);
    scarce.Add(request);
  }
  ample.RunToEnd();
  scarce.RunToEnd();
  EXPECT_GT(scarce.scheduler.Stats().preemptions, 2u);
  for (RequestHandle handle = 1; handle <= requests.size(); ++handle) {
    SCOPED_TRACE(handle);
    const std::vector<TokenId>& whole = ample[handle].token_ids;
    EXPECT_EQ(whole.size(), 40u);
    EXPECT_EQ(scarce[handle].token_ids, whole);
    Usage a = ample[handle].finished->usage, b = scarce[handle].finished->usage;
    EXPECT_EQ(a.kv_entries_of_prompt, b.kv_entries_of_prompt);
    EXPECT_EQ(a.kv_tokens_kept, b.kv_tokens_kept);
    Request rest = requests[handle - 1];
    rest.resume_token_ids.assign(whole.begin(), whole.begin() + 7);
    SchedulerHarness again(Limits());
    const RequestHandle resumed = again.Add(rest);
    again.RunToEnd();
    EXPECT_EQ(again[resumed].token_ids, std::vector<TokenId>(whole.begin() + 7, whole.end()));
    EXPECT_EQ(again[resumed].finished->usage->completion_tokens, 40);
  }
}

// An open budget takes the full cache while there is room, less if other requests wait, and then
// stays; usage reports the reason.
TEST_P(SchedulerTest, AnOpenBudgetFollowsTheRoom) {
  EngineLimits limits = Limits();
  limits.num_blocks = 3 * limits.num_layers * limits.num_kv_heads * 110 / limits.block_size;
  Request request = MakeRequest(100, 8);
  request.cache.policy = "auto";
  request.cache.min_cache_tokens = 0;
  for (const int clients : {1, 2, 6}) {
    SCOPED_TRACE(std::to_string(clients) + " clients");
    SchedulerHarness h(limits);
    std::vector<RequestHandle> handles;
    handles.reserve(clients);
    for (int i = 0; i < clients; ++i) handles.push_back(h.Add(request));
    h.RunToEnd();
    int whole = 0;
    for (const RequestHandle handle : handles) {
      ASSERT_TRUE(h[handle].finished.has_value());
      const Usage& usage = h[handle].finished->usage;
      EXPECT_THAT(Reported(usage.policy_report, "why"),
                  testing::HasSubstr(" pages were free for "));
      const bool full = Reported(usage.policy_report, "policy") == "full";
      EXPECT_EQ(usage.kv_entries_of_prompt == 100 * limits.num_layers * limits.num_kv_heads, full);
      whole += full;
    }
    EXPECT_EQ(Reported(h[handles[0]].finished->usage->policy_report, "policy"),
              clients < 6 ? "full" : "echo");
    EXPECT_EQ(whole == clients, clients < 3);
  }
}

// An open budget prefills a context with a separate question twice only if entries are evicted.
TEST_P(SchedulerTest, AnOpenBudgetReadsTwiceWhereSomethingLeaves) {
  EngineLimits limits = Limits();
  Request request = MakeRequest(45, 8);
  request.question_tokens = 5;
  request.cache.policy = "auto";
  request.cache.min_cache_tokens = 0;
  for (const bool room : {true, false}) {
    SCOPED_TRACE(room ? "room" : "no room");
    if (!room) limits.num_blocks = limits.num_layers * limits.num_kv_heads * 50 / limits.block_size;
    SchedulerHarness h(limits);
    const RequestHandle a = h.Add(request);
    if (!room) h.Add(request);
    h.RunToEnd();
    ASSERT_TRUE(h[a].finished.has_value());
    const Usage& usage = h[a].finished->usage;
    EXPECT_EQ(Reported(usage.policy_report, "policy"), room ? "full" : "reconstruct")
        << Reported(usage.policy_report, "why");
    EXPECT_EQ(usage.probe_tokens > 40, !room);
    EXPECT_EQ(usage.kv_entries_of_prompt == 40 * limits.num_layers * limits.num_kv_heads, room);
  }
}

// A probe prefills more than the prompt: the arena holds all of it, the cache only the prompt, and
// reported token counts stop at the prompt's length.
TEST_P(SchedulerTest, AProbeIsReadAndForgotten) {
  SchedulerHarness h(Limits(), {.max_num_batched_tokens = 8, .progress_interval_us = 1});
  Request request = MakeRequest(45, 3);
  request.question_tokens = 5;
  request.cache.policy = "reconstruct";
  request.cache.max_cache_tokens = 10;
  const RequestHandle a = h.Add(request);
  const auto instruction =
      static_cast<int>(h.tokenizer.Encode("\n\nRepeat the previous context:", {}).value().size());
  h.Step();
  ASSERT_EQ(h.engine.last_step().parts.size(), 1u);
  const int read = 40 + instruction + 40;
  EXPECT_EQ(static_cast<int>(h.engine.last_step().parts[0].tokens.size()), read);
  EXPECT_EQ(h.engine.last_step().parts[0].prompt.whole_prompt.size(), 45u);
  h.RunToEnd();
  ASSERT_TRUE(h[a].finished.has_value());
  const Usage& usage = h[a].finished->usage;
  EXPECT_EQ(usage.prompt_tokens, 45);
  EXPECT_EQ(usage.probe_tokens, instruction + 40);
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 10);
  EXPECT_EQ(h.scheduler.Stats().prompt_tokens, 45u);
  ASSERT_GT(h[a].progress.size(), 3u);
  int32_t last = 0;
  for (const Progress& progress : h[a].progress) {
    EXPECT_EQ(progress.prompt_tokens, 45);
    EXPECT_GE(progress.prompt_tokens_done, last);
    EXPECT_LE(progress.prompt_tokens_done, 45);
    last = progress.prompt_tokens_done;
  }
}

Request Co2(int prompt_tokens, int max_tokens, int budget,
            std::map<std::string, std::string> params) {
  Request request = MakeRequest(prompt_tokens, max_tokens);
  request.cache = LocalCache(budget);
  request.cache.policy = "co2";
  request.cache.params = std::move(params);
  return request;
}

// No decode before the engine has the plan that was decided at the prompt's end.
TEST_P(SchedulerTest, ATunedCacheIsDecidedBeforeItDecodes) {
  SchedulerHarness h(Limits());
  const RequestHandle a =
      h.Add(Co2(80, 40, 10, {{"self_tuning", "true"}, {"measurement_steps", "20"}}));
  h.RunToEnd();  // the fake engine checks the order
  ASSERT_TRUE(h[a].finished.has_value());
  const Usage& usage = h[a].finished->usage;
  ASSERT_EQ(usage.policy_report.name, "self_tuning");
  EXPECT_LE(ReportedNumber(usage.policy_report, "measurement_steps"), 20);
  EXPECT_GT(ReportedNumber(usage.policy_report, "attainable_mass"), 0.0);
  EXPECT_EQ(usage.kv_tokens_kept, 10);
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 80) << "whole until it shrinks";
  const RequestHandle b = h.Add(Co2(41, 40, 10, {{"self_tuning", "true"}}));
  h.RunToEnd();
  EXPECT_EQ(h[b].finished->usage->policy_report.name, "") << "too short: the defaults hold";
}

// A question's tokens do not count as measured steps: the cache shrinks once the question and five
// tokens of the answer are cached.
TEST_P(SchedulerTest, ACacheIsMeasuredByTheAnswerNotByTheQuestion) {
  SchedulerHarness h(Limits());
  Request request = Co2(60, 30, 10, {{"measurement_steps", "5"}});
  request.question_tokens = 8;
  const RequestHandle a = h.Add(request);
  h.RunToEnd();
  ASSERT_TRUE(h[a].finished.has_value());
  const Usage& usage = h[a].finished->usage;
  EXPECT_EQ(usage.kv_pages_peak, 4 * 17 + 3)
      << "65 tokens of every head, in pages of 4, and the scores of 24 pages in each of 3";
  EXPECT_EQ(usage.kv_entries_of_prompt, 4 * 52) << "the context's";
  EXPECT_EQ(usage.kv_tokens_kept, 10);
}

// When a cache shrinks to a shared budget, each head's surplus pages are freed.
TEST_P(SchedulerTest, ACacheThatShrinksRaggedGivesItsPagesBack) {
  for (const char* scope : {"layer", "model"}) {
    SchedulerHarness h(Limits());
    const RequestHandle a =
        h.Add(Co2(60, 30, 10, {{"measurement_steps", "5"}, {"budget_scope", scope}}));
    const auto held = [&] {
      const ServingStats stats = h.scheduler.Stats();
      return stats.pages_total - stats.pages_free;
    };
    int64_t most = 0, least = 1000;
    while (!h[a].finished.has_value()) {
      h.Step();
      most = std::max(most, held());
      if (held() > 0) least = std::min(least, held());
    }
    EXPECT_EQ(most, 4 * 17 + 3)
        << "65 tokens of every head, in pages of 4, and the scores of 24 pages in each of 3";
    // 40 entries in 4 heads: 10 pages, and at most one more a head for a partial page. One page
    // holds all scores.
    EXPECT_GE(least, 10 + 1);
    EXPECT_LE(least, 13 + 1);
    EXPECT_EQ(held(), 0);
  }
}

// A batch without runs still sends the question's table updates.
TEST_P(SchedulerTest, AQuestionThatFindsNoRoomInTheArenaKeepsItsPages) {
  Request request = MakeRequest(30, 6);
  request.question_tokens = 10;
  request.cache.policy = "ada-snapkv";  // takes the question's pages when it is appended
  request.cache.max_cache_tokens = 8;
  SchedulerHarness alone(Limits());
  const RequestHandle expected = alone.Add(request);
  alone.RunToEnd();
  ASSERT_EQ(alone[expected].token_ids.size(), 6u);
  for (int short_at = 0; short_at < 6; ++short_at) {
    SCOPED_TRACE(short_at);
    SchedulerHarness h(Limits());
    const RequestHandle handle = h.Add(request);
    for (int step = 0; step < short_at; ++step) h.Step();
    h.BeginShortage({.arena_tokens = 100});
    h.RunToEnd();
    EXPECT_EQ(h[handle].token_ids, alone[expected].token_ids);
  }
}

// The question of the first is in prefill when its context's result arrives, and overwrites entries
// of the context: its pages may not be shared.
TEST_P(SchedulerTest, PagesThatAQuestionOverwritesAreNotForOthers) {
  EngineLimits limits = Limits();
  limits.num_prefix_blocks = 8;
  const SchedulerOptions in_pieces = {.max_num_batched_tokens = 8};
  Request request = WithQuestion(46, 12, 20, 36);
  const auto run_alone = [&] {
    SchedulerHarness alone(limits, in_pieces);
    const RequestHandle handle = alone.Add(request);
    alone.RunToEnd();
    return alone[handle].token_ids;
  };
  SchedulerHarness h(limits, in_pieces);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    request.sampling.seed = seed;
    const std::vector<TokenId> expected = run_alone();
    const RequestHandle handle = h.Add(request);
    for (int step = 0; step < 12; ++step) h.Step();
    if (seed == 3) h.RunToEnd();
    EXPECT_EQ(h[handle].token_ids,
              std::vector(expected.begin(), expected.begin() + h[handle].token_ids.size()));
    EXPECT_GT(h[handle].token_ids.size(), 0u);
  }
}

// A sequence that cannot grow even alone (only with an injected shortage) fails; the next one takes
// its slot in the same step, and gets none of its compactions.
TEST_P(SchedulerTest, APreemptedSequenceLeavesNoUpdatesInItsSlot) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 1;
  limits.SetWindow(1, 64);
  limits.table_entries = 80;  // small, so that rows move
  const Request next = MakeRequest(6, 4, 2);
  SchedulerHarness alone(limits);
  const RequestHandle expected = alone.Add(next);
  alone.RunToEnd();
  int ended = 0;
  for (int cap = 16; cap < 24; ++cap) {
    for (int short_at = 1; short_at < 30; ++short_at) {
      SCOPED_TRACE(testing::Message() << "cap " << cap << ", short at " << short_at);
      Request cut = MakeRequest(6, 40);
      cut.cache = LocalCache(cap);
      cut.cache.policy = "subgen";  // cut at times when the layer with a window grows
      SchedulerHarness h(limits);
      const RequestHandle first = h.Add(cut);
      const RequestHandle second = h.Add(next);
      for (int step = 0; step < short_at; ++step) h.Step();
      h.BeginShortage({.table_entries = 100});
      h.RunToEnd();
      ended += h[first].failed.has_value() ? 1 : 0;
      EXPECT_EQ(h[second].token_ids, alone[expected].token_ids);
    }
  }
  EXPECT_GT(ended, 0);
}

// Two probes of 110 tokens do not fit into an arena of 128 together.
TEST_P(SchedulerTest, ProbesTakeTurnsInTheArena) {
  EngineLimits limits = Limits();
  limits.prefill_arena_tokens = 128;
  SchedulerHarness h(limits);
  for (int i = 0; i < 3; ++i) {
    Request request = MakeRequest(40, 3, i);
    request.cache.policy = "reconstruct";
    request.cache.max_cache_tokens = 10;
    h.Add(request);
  }
  h.Step();
  EXPECT_EQ(h.engine.last_step().parts.size(), 1u);
  EXPECT_EQ(h.scheduler.Stats().waiting, 2);
  h.RunToEnd();
  for (auto& [handle, stream] : h.streams) EXPECT_EQ(stream.token_ids.size(), 3u);
}

// Heads that share a budget hold different numbers of entries, so the fullest head does not show
// how much was saved.
TEST_P(SchedulerTest, UsageHasTheMeanOfTheHeadsAndTheMemoryOfTheFullCache) {
  EngineLimits limits = Limits();
  limits.page_bytes = 100;
  SchedulerHarness h(limits);
  Request request = MakeRequest(40, 3);
  const RequestHandle full = h.Add(request);
  request.cache.policy = "ada-snapkv";
  request.cache.max_cache_tokens = 10;
  const RequestHandle shared = h.Add(request);
  h.RunToEnd();
  const Usage& all = h[full].finished->usage;
  EXPECT_EQ(all.kv_tokens_kept_mean, 42) << "the third token is never fed";
  EXPECT_EQ(all.kv_tokens_evicted_mean, 0);
  EXPECT_EQ(all.kv_bytes_of_full, 4 * 11 * 100) << "4 heads of 42 entries, 4 a page";
  EXPECT_EQ(all.kv_bytes, all.kv_bytes_of_full);
  const Usage& some = h[shared].finished->usage;
  const double mean = static_cast<double>(some.kv_entries_of_prompt) / 4 + 2;
  EXPECT_DOUBLE_EQ(some.kv_tokens_kept_mean, mean);
  EXPECT_DOUBLE_EQ(some.kv_tokens_evicted_mean, 42 - mean);
  EXPECT_GE(some.kv_tokens_kept, mean);
  EXPECT_EQ(some.kv_bytes_of_full, all.kv_bytes_of_full);
  EXPECT_LT(some.kv_bytes, some.kv_bytes_of_full);
}

TEST_P(SchedulerTest, OnlyTheMassKeepsHeadsWhole) {
  SchedulerHarness h(Limits());
  Request request = MakeRequest(40, 3);
  request.cache.policy = "snapkv";
  request.cache.max_cache_tokens = 10;
  request.cache.min_retained_mass = 0.9;
  const RequestHandle compressed = h.Add(request);
  request.cache.max_cache_tokens = 40;
  const RequestHandle short_enough = h.Add(request);
  h.RunToEnd();
  const Usage& usage = h[compressed].finished->usage;
  // The fake engine keeps some heads whole; the others hold their share.
  EXPECT_EQ(usage.kv_entries_of_prompt,
            40 * usage.heads_kept_whole + 10 * (4 - usage.heads_kept_whole));
  EXPECT_EQ(h[short_enough].finished->usage->kv_entries_of_prompt, 4 * 40);
  EXPECT_EQ(h[short_enough].finished->usage->heads_kept_whole, 0) << "nothing was to leave";
}

// Every wait_reason seen between two steps.
std::set<WaitReason> ShortagesUntilTheEnd(SchedulerHarness* h) {
  std::set<WaitReason> seen;
  for (int i = 0; i < 20000 && !h->scheduler.Empty(); ++i) {
    h->Step();
    const ServingStats stats = h->scheduler.Stats();
    if (stats.waiting > 0) {
      seen.insert(stats.wait_reason);
    } else {
      EXPECT_EQ(stats.wait_reason, WaitReason::kArrived);
    }
  }
  return seen;
}

// Limits with one scarce resource, and the wait_reason of two requests of 40 tokens.
TEST_P(SchedulerTest, ReportsTheMissingResourceOfTheQueuesHead) {
  const auto seen = [](const EngineLimits& limits) {
    SchedulerHarness h(limits, {.watermark = 0.0});
    for (int i = 0; i < 2; ++i) h.Add(MakeRequest(40, 20, i));
    return ShortagesUntilTheEnd(&h);
  };
  EngineLimits limits = Limits();
  EXPECT_THAT(seen(limits), testing::IsEmpty());
  limits.max_num_seqs = 1;
  EXPECT_THAT(seen(limits), testing::ElementsAre(WaitReason::kMaxNumSeqs));
  limits = Limits();
  limits.num_blocks = 60;  // 40 tokens take 10 pages in each of 4 heads, 60 take 15
  EXPECT_THAT(seen(limits), testing::ElementsAre(WaitReason::kPages));
  limits = Limits();
  limits.prefill_arena_tokens = 79;
  EXPECT_THAT(seen(limits), testing::ElementsAre(WaitReason::kPrefillArena));
  limits = Limits();
  limits.table_entries = 64;
  EXPECT_THAT(seen(limits), testing::ElementsAre(WaitReason::kBlockTables));
}

TEST_P(SchedulerTest, SaysWhereAPreemptedOneWaitsForRoomToCatchUp) {
  EngineLimits limits = Limits();
  limits.num_blocks = 80;
  limits.table_entries = 4096;
  SchedulerHarness h(limits, {.watermark = 0.0});
  for (int i = 0; i < 10; ++i) h.Add(MakeRequest(10 + i, 50, i));
  EXPECT_THAT(ShortagesUntilTheEnd(&h),
              testing::UnorderedElementsAre(WaitReason::kPages, WaitReason::kPreempted));
  EXPECT_GT(h.scheduler.Stats().preemptions, 0u);
}

// A pool for one and a half of two requests: the later one is preempted, and resumes.
void ExpectPreemptionTimes(EngineLimits limits, bool swapped) {
  limits.num_blocks = 4 * 24;
  SchedulerHarness h(limits);
  h.Add(MakeRequest(20, 60, 1));
  const RequestHandle late = h.Add(MakeRequest(20, 60, 2));
  TimeUs absent = 0, in_pool = 0;
  int64_t page_us = 0;
  while (!h.scheduler.Empty()) {
    h.Step();
    const ServingView view = h.scheduler.View(h.now);
    for (const SequenceView& one : view.waiting) {
      EXPECT_EQ(one.handle, late);
      EXPECT_EQ(one.phase, swapped ? Phase::kSwapped : Phase::kPreempted);
      EXPECT_EQ(one.host_pages, swapped ? view.stats.swapped_pages : 0);
      absent += h.step_us;
    }
    for (const SequenceView& one : view.live) {
      if (one.handle != late) continue;
      in_pool += h.step_us;
      page_us += one.pages * h.step_us;
    }
  }
  ASSERT_TRUE(h[late].finished.has_value());
  const Usage& usage = h[late].finished->usage;
  EXPECT_GT(absent, 0);
  EXPECT_EQ(swapped ? usage.swapped_us : usage.preempted_us, absent);
  EXPECT_EQ(swapped ? usage.preempted_us : usage.swapped_us, 0);
  EXPECT_LE(absent, usage.prefill_us + usage.decode_us);
  // The last step is not observed.
  EXPECT_NEAR(usage.kv_pages_mean, static_cast<double>(page_us) / static_cast<double>(in_pool),
              1.5);
  EXPECT_LT(usage.kv_pages_mean, static_cast<double>(usage.kv_pages_peak));
}

TEST_P(SchedulerTest, CountsPreemptedTime) { ExpectPreemptionTimes(Limits(), false); }

TEST_P(SchedulerTest, CountsForHowLongACacheWasSwappedOut) {
  EngineLimits limits = Limits();
  limits.num_host_pages = limits.num_swap_pages = 256;
  limits.max_offloaded_caches = limits.max_num_seqs;
  ExpectPreemptionTimes(limits, true);
}

TEST_P(SchedulerTest, AViewShowsTheCurrentState) {
  EngineLimits limits = Limits();
  limits.max_num_seqs = 2;
  SchedulerHarness h(limits);
  Request request = MakeRequest(20, 40);
  request.request_id = std::string(1000, 'x');
  request.tenant = "a tenant";
  request.priority = -3;
  request.cache = LocalCache(8);
  const RequestHandle first = h.Add(std::move(request));
  const RequestHandle second = h.Add(MakeRequest(30, 40));
  const RequestHandle third = h.Add(MakeRequest(10, 40));
  for (int i = 0; i < 12; ++i) h.Step();
  const ServingView view = h.scheduler.View(h.now);
  EXPECT_EQ(view.at, h.now);
  ASSERT_EQ(view.live.size(), 2u);
  const SequenceView& full = view.live[0];  // ordered by pages
  EXPECT_EQ(full.handle, second);
  EXPECT_EQ(full.policy, "full");
  EXPECT_FALSE(full.budget.has_value());
  EXPECT_EQ(full.pages, full.full_pages);
  EXPECT_EQ(full.evicted, 0);
  const SequenceView& local = view.live[1];
  EXPECT_EQ(local.handle, first);
  EXPECT_EQ(local.request_id, std::string(kMaxViewedBytes, 'x'));
  EXPECT_EQ(local.tenant, "a tenant");
  EXPECT_EQ(local.priority, -3);
  EXPECT_EQ(local.policy, "local");
  EXPECT_EQ(local.phase, Phase::kRunning);
  EXPECT_EQ(local.most_entries, 8);
  EXPECT_EQ(local.prompt_tokens_read, 20);
  EXPECT_EQ(local.completion_tokens, static_cast<int>(h[first].token_ids.size()));
  EXPECT_EQ(local.kept, 8);
  EXPECT_EQ(local.evicted, 20 + local.completion_tokens - 1 - 8);
  EXPECT_EQ(local.pages, 4 * 2);
  EXPECT_GE(local.full_pages, 4 * ((20 + local.completion_tokens + 3) / 4));
  EXPECT_LE(local.full_pages, 4 * ((20 + local.completion_tokens + Late() + 3) / 4));
  EXPECT_EQ(local.age_us, h.now - 1000);
  EXPECT_EQ(view.evicted_entries, static_cast<uint64_t>(local.evicted));
  ASSERT_EQ(view.waiting.size(), 1u);
  EXPECT_EQ(view.waiting[0].handle, third);
  EXPECT_EQ(view.waiting[0].pages, 0);
  EXPECT_EQ(view.stats.wait_reason, WaitReason::kMaxNumSeqs);
  h.RunToEnd();
  const ServingView idle = h.scheduler.View(h.now);
  EXPECT_TRUE(idle.live.empty());
  EXPECT_EQ(idle.stats.pages_free, limits.num_blocks);
  EXPECT_EQ(idle.evicted_entries, static_cast<uint64_t>(20 + 39 - 8));
}

TEST_P(SchedulerTest, AViewNamesTheLargestAndTheFirstAndCountsTheOthers) {
  EngineLimits limits = Limits();
  limits.num_blocks = 1 << 14;
  limits.table_entries = 1 << 16;
  limits.max_num_seqs = 300;
  limits.prefill_arena_tokens = 4096;
  limits.prefill_rows = 4096;
  SchedulerHarness h(limits);
  for (int i = 0; i < 400; ++i) h.Add(MakeRequest(i < 280 ? 4 : 40, 80));
  h.Step();
  h.Step();
  const ServingView view = h.scheduler.View(h.now);
  EXPECT_EQ(view.stats.running + view.stats.prefilling, 300);
  ASSERT_EQ(view.live.size(), kMaxViewedLive);
  EXPECT_GE(view.live[19].pages, 4 * 10) << "the twenty long ones are there";
  EXPECT_LT(view.live[20].pages, 4 * 10);
  EXPECT_EQ(view.pages_of_others, 44 * view.live.back().pages);
  EXPECT_EQ(view.waiting.size(), kMaxViewedWaiting);
  EXPECT_EQ(view.waiting[0].handle, 301u);
}

}  // namespace
}  // namespace hydrant
