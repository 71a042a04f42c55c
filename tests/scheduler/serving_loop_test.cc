// The loop thread with a fake engine: submissions and cancels from many threads, rejections, drain,
// stop, engine failure. Run it under ThreadSanitizer. Nothing sleeps: tests wait for events.
#include "scheduler/serving_loop.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "scheduler/serving_view.h"
#include "tests/sanitized.h"
#include "tests/scheduler/collecting_sink.h"
#include "tests/scheduler/fake_engine.h"
#include "tests/scheduler/fake_tokenizer.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

// Each step blocks until the test releases it.
class HeldEngine : public ImmediateExecutor {
 public:
  HeldEngine() : engine_(SmallLimits()) {}
  const EngineLimits& limits() const override { return engine_.limits(); }
  absl::Status RunStep(const Batch& batch, StepResult* result) override {
    std::unique_lock<std::mutex> lock(mutex_);
    entered_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
    return engine_.Execute(batch, result);
  }
  void WaitUntilEntered() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return entered_; });
  }
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  FakeEngine engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool entered_ = false;
  bool released_ = false;
};

struct LoopFixture {
  explicit LoopFixture(const EngineLimits& limits = SmallLimits(),
                       const SchedulerOptions& options = {})
      : engine(limits) {
    loop = *ServingLoop::Start(&engine, &tokenizer, options, &sink);
  }
  FakeTokenizer tokenizer;
  FakeEngine engine;
  CollectingSink sink;
  std::unique_ptr<ServingLoop> loop;
};

bool Accepted(const std::variant<Queued, Failed>& answer) {
  return std::holds_alternative<Queued>(answer);
}
const std::string& ReasonOf(const std::variant<Queued, Failed>& answer) {
  return std::get<Failed>(answer).reason;
}

TEST(ServingLoopTest, ServesAndGoesIdle) {
  LoopFixture f;
  EXPECT_TRUE(f.loop->Idle());
  ASSERT_TRUE(Accepted(f.loop->Submit(1, MakeRequest(10, 20))));
  const Stream stream = f.sink.WaitForEnd(1);
  EXPECT_EQ(stream.token_ids.size(), 20u);
  f.loop->StopAdmitting();
  const auto refused = f.loop->Submit(2, MakeRequest(10, 20));
  ASSERT_FALSE(Accepted(refused));
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  EXPECT_EQ(std::get<Failed>(refused).status.code(), absl::StatusCode::kUnavailable);
  f.loop->Stop();
  EXPECT_TRUE(f.loop->Idle());
  const ServingStats snapshot = f.loop->Stats();
  EXPECT_EQ(snapshot.pages_free, snapshot.pages_total);
  EXPECT_EQ(snapshot.generation_tokens, 20u);
  EXPECT_EQ(snapshot.prompt_tokens, 10u);
  EXPECT_EQ(snapshot.waiting, 0);
  EXPECT_GE(snapshot.steps, 20u);
}

TEST(ServingLoopTest, BadOptionsAndRequestsAreRefused) {
  FakeTokenizer tokenizer;
  FakeEngine engine(SmallLimits());
  CollectingSink sink;
  const auto loop = ServingLoop::Start(&engine, &tokenizer, {.watermark = 2.0}, &sink);
  ASSERT_FALSE(loop.ok());
  EXPECT_EQ(std::string(loop.status().message()), "watermark: 2 is outside [0, 0.5]");

  LoopFixture f;
  Request request = MakeRequest(5, 5);
  request.sampling.temperature = -1;
  const auto refused = f.loop->Submit(1, request);
  ASSERT_FALSE(Accepted(refused));
  EXPECT_EQ(ReasonOf(refused), "INVALID");
  EXPECT_TRUE(f.loop->Idle());
}

// Submit answers even while the engine runs a step.
TEST(ServingLoopTest, QueueLimitsAndDuplicatesAreReportedAtOnce) {
  FakeTokenizer tokenizer;
  HeldEngine engine;
  CollectingSink sink;
  auto loop = *ServingLoop::Start(&engine, &tokenizer, {.max_num_queued_reqs = 2}, &sink);
  Request request = MakeRequest(5, 5);
  request.request_id = "a";
  ASSERT_TRUE(Accepted(loop->Submit(1, request)));
  engine.WaitUntilEntered();
  const auto duplicate = loop->Submit(2, request);
  ASSERT_FALSE(Accepted(duplicate));
  EXPECT_EQ(ReasonOf(duplicate), "DUPLICATE_REQUEST_ID");
  EXPECT_EQ(std::get<Failed>(duplicate).status.code(), absl::StatusCode::kAlreadyExists);
  request.request_id = "b";  // the first is out of the inbox, but counts until its step is over
  ASSERT_TRUE(Accepted(loop->Submit(3, request)));
  EXPECT_EQ(loop->Stats().waiting, 2);
  request.request_id = "c";
  const auto full = loop->Submit(4, request);
  ASSERT_FALSE(Accepted(full));
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_EQ(std::get<Failed>(full).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(std::get<Failed>(full).retry_after_us, 0);
  engine.Release();
  EXPECT_TRUE(sink.WaitForEnd(1).finished.has_value());
  EXPECT_TRUE(sink.WaitForEnd(3).finished.has_value());
  request.request_id = "a";  // free again once its end was delivered
  EXPECT_TRUE(Accepted(loop->Submit(5, request)));
  EXPECT_TRUE(sink.WaitForEnd(5).finished.has_value());
}

std::vector<RequestHandle> Handles(RequestHandle first, int count) {
  std::vector<RequestHandle> handles(count);
  std::iota(handles.begin(), handles.end(), first);
  return handles;
}

// Sample i is the request with seed + i.
TEST(ServingLoopTest, SamplesAreDrawnWithSeedsThatFollowEachOther) {
  LoopFixture f;
  RequestHandle handle = 0;
  for (const uint64_t seed : {uint64_t{7}, std::numeric_limits<uint64_t>::max() - 1}) {
    Request request = MakeRequest(5, 20, 3);
    std::vector<std::vector<TokenId>> alone;
    for (uint64_t i = 0; i < 4; ++i) {
      request.sampling.seed = seed + i;
      ASSERT_TRUE(Accepted(f.loop->Submit(++handle, request)));
      alone.push_back(f.sink.WaitForEnd(handle).token_ids);
      EXPECT_EQ(alone.back().size(), 20u);
    }
    EXPECT_NE(alone[0], alone[1]);
    request.sampling.seed = seed;
    const std::vector<RequestHandle> handles = Handles(handle + 1, 4);
    handle += 4;
    const auto answer = f.loop->Submit(handles, request);
    ASSERT_TRUE(Accepted(answer));
    EXPECT_EQ(std::get<Queued>(answer).seed, seed);
    EXPECT_EQ(std::get<Queued>(answer).prompt_tokens, 5);
    for (size_t i = 0; i < handles.size(); ++i)
      EXPECT_EQ(f.sink.WaitForEnd(handles[i]).token_ids, alone[i]) << "seed " << seed << " + " << i;
  }
}

TEST(ServingLoopTest, SamplesEnterAllOrNone) {
  FakeTokenizer tokenizer;
  HeldEngine engine;
  CollectingSink sink;
  auto loop = *ServingLoop::Start(&engine, &tokenizer, {.max_num_queued_reqs = 6}, &sink);
  ASSERT_TRUE(Accepted(loop->Submit(Handles(1, 3), MakeRequest(5, 5))));
  engine.WaitUntilEntered();
  EXPECT_EQ(loop->Stats().waiting, 3);
  EXPECT_EQ(loop->Stats().queued_tokens, 15);
  const auto full = loop->Submit(Handles(10, 4), MakeRequest(5, 5));
  ASSERT_FALSE(Accepted(full));
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_GT(std::get<Failed>(full).retry_after_us, 0);
  EXPECT_EQ(loop->Stats().waiting, 3);
  ASSERT_TRUE(Accepted(loop->Submit(Handles(20, 3), MakeRequest(5, 5))));
  EXPECT_EQ(loop->Stats().waiting, 6);
  // More samples than the queue limit, and more than max_num_seqs.
  for (const int count : {7, engine.limits().max_num_seqs + 1}) {
    const auto never = loop->Submit(Handles(30, count), MakeRequest(5, 5));
    ASSERT_FALSE(Accepted(never));
    EXPECT_EQ(ReasonOf(never), "INVALID");
    EXPECT_EQ(std::get<Failed>(never).status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::get<Failed>(never).retry_after_us, 0);
  }
  engine.Release();
  for (const RequestHandle handle : {1, 2, 3, 20, 21, 22})
    EXPECT_TRUE(sink.WaitForEnd(handle).finished.has_value()) << handle;
  EXPECT_EQ(sink.streams().size(), 6u) << "a refused request gets no event";
}

// One sample ends at once, the others only by the cancel.
TEST(ServingLoopTest, ACancelReachesAllSamplesAndTheIdIsTakenUntilTheLastHasEnded) {
  LoopFixture f;
  f.engine.choose = [](uint64_t seed, int32_t) -> TokenId {
    return seed == 5 ? FakeTokenizer::kEog : 'a';
  };
  Request request = MakeRequest(5, 110, 5);
  request.request_id = "taken";
  request.cache = LocalCache(16);
  std::vector<RequestHandle> handles = Handles(1, 4);
  Request endless = request;
  endless.cache.policy = "streaming";
  endless.cache.params["rolling"] = "true";
  endless.stopping.max_tokens = 1'000'000'000;
  ASSERT_TRUE(Accepted(f.loop->Submit(handles, endless)));
  EXPECT_EQ(f.sink.WaitForEnd(1).finished->reason, FinishReason::kStop);
  for (const RequestHandle handle : {2, 3, 4}) f.sink.WaitForTokens(handle, 10);
  const auto duplicate = f.loop->Submit(9, request);
  ASSERT_FALSE(Accepted(duplicate));
  EXPECT_EQ(ReasonOf(duplicate), "DUPLICATE_REQUEST_ID");
  f.loop->Cancel(3, absl::CancelledError("not the request's first"));
  f.loop->Cancel(1, absl::ResourceExhaustedError("the client does not read"));
  for (const RequestHandle handle : {2, 3, 4}) {
    const Stream cancelled = f.sink.WaitForEnd(handle);
    ASSERT_TRUE(cancelled.failed.has_value());
    EXPECT_EQ(cancelled.failed->reason, "CANCELLED");
    EXPECT_EQ(cancelled.failed->status.code(), absl::StatusCode::kResourceExhausted);
  }
  ASSERT_TRUE(Accepted(f.loop->Submit(9, request)));
  EXPECT_TRUE(f.sink.WaitForEnd(9).finished.has_value());
  f.loop->Stop();
  EXPECT_TRUE(f.loop->Idle());
  EXPECT_EQ(f.loop->Stats().pages_free, f.loop->Stats().pages_total);
}

// Once the loop is idle every offloaded cache has been reported, so all contexts to save are known.
TEST(ServingLoopTest, IsNotIdleBeforeKeptContextsAreHandedOver) {
  FakeTokenizer tokenizer;
  EngineLimits limits = SmallLimits();
  limits.num_host_pages = 64;
  limits.max_offloaded_caches = 4;
  FakeEngine engine(limits);
  CollectingSink sink;
  auto loop = *ServingLoop::Start(&engine, &tokenizer, {}, &sink);
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<bool> was_idle;
  loop->OnKept([&](const std::shared_ptr<const Context>&) {
    const std::lock_guard<std::mutex> lock(mutex);
    was_idle = loop->Idle();
    changed.notify_all();
  });
  Request request = MakeRequest(5, 5);
  request.keep_as.handle = "kept";
  ASSERT_TRUE(Accepted(loop->Submit(1, request)));
  EXPECT_NE(sink.WaitForEnd(1).finished->context, nullptr);
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return was_idle.has_value(); });
    EXPECT_FALSE(*was_idle);
  }
  while (!loop->Idle()) std::this_thread::yield();
}

TEST(ServingLoopTest, CancelAndStopEndStreams) {
  LoopFixture f;
  Request request = MakeRequest(5, 120, 1);
  request.stopping.max_tokens = 100;
  f.engine.choose = [](uint64_t, int32_t) { return 'a'; };
  ASSERT_TRUE(Accepted(f.loop->Submit(1, request)));
  f.loop->Cancel(1, absl::CancelledError("client left"));
  f.loop->Cancel(1, absl::CancelledError("client left"));
  f.loop->Cancel(99, absl::CancelledError("nobody"));
  const Stream cancelled = f.sink.WaitForEnd(1);
  // It may have finished before the cancel was applied; it ends once in either case.
  if (cancelled.failed.has_value()) {
    EXPECT_EQ(cancelled.failed->reason, "CANCELLED");
  }
  for (RequestHandle handle = 2; handle < 40; ++handle) {
    ASSERT_TRUE(Accepted(f.loop->Submit(handle, request)));
  }
  f.loop->Stop();
  for (auto& [handle, stream] : f.sink.streams()) {
    EXPECT_TRUE(stream.Ended()) << handle;
    if (stream.failed.has_value() && handle != 1) {
      EXPECT_EQ(stream.failed->reason, "DRAINING");
    }
  }
  EXPECT_EQ(f.sink.streams().size(), 39u);
  EXPECT_TRUE(f.loop->Idle());
}

TEST(ServingLoopTest, DeadlinesUseTheSteadyClock) {
  LoopFixture f;
  Request request = MakeRequest(5, 5);
  request.deadline = 1;  // long ago
  ASSERT_TRUE(Accepted(f.loop->Submit(1, request)));
  const Stream stream = f.sink.WaitForEnd(1);
  ASSERT_TRUE(stream.failed.has_value());
  EXPECT_EQ(stream.failed->reason, "DEADLINE");
}

TEST(ServingLoopTest, ALostEngineRefusesFromThenOn) {
  LoopFixture f;
  f.engine.next_error = absl::UnknownError("device gone");
  ASSERT_TRUE(Accepted(f.loop->Submit(1, MakeRequest(5, 5))));
  const Stream stream = f.sink.WaitForEnd(1);
  ASSERT_TRUE(stream.failed.has_value());
  EXPECT_EQ(stream.failed->reason, "ENGINE_FAULT");
  const auto refused = f.loop->Submit(2, MakeRequest(5, 5));
  ASSERT_FALSE(Accepted(refused));
  EXPECT_EQ(ReasonOf(refused), "ENGINE_FAULT");
  EXPECT_FALSE(f.loop->EngineStatus().ok());
}

TEST(ServingLoopTest, ManyThreadsSubmitCancelAndLook) {
  constexpr int kThreads = 4, kRequests = 150;
  EngineLimits limits = SmallLimits();
  limits.num_blocks = 120;  // a scarce pool: preemptions too
  LoopFixture f(limits, {.max_num_queued_reqs = 64, .max_num_queued_tokens = 2000});
  std::atomic<int> accepted = 0, samples = 0, refused = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kRequests; ++i) {
        const RequestHandle handle = (t * kRequests + i) * 4;
        const std::vector<RequestHandle> handles = Handles(handle, random() % 4 == 0 ? 3 : 1);
        Request request = MakeRequest(1 + random() % 60, 1 + random() % 40, handle);
        request.request_id = std::to_string(handle);
        if (random() % 2 == 0) request.cache = LocalCache(8);
        if (!Accepted(f.loop->Submit(handles, std::move(request)))) {
          ++refused;
          if (accepted > 0) std::this_thread::yield();
          continue;
        }
        ++accepted;
        samples += static_cast<int>(handles.size());
        if (random() % 4 == 0) f.loop->Cancel(handle, absl::CancelledError("test"));
        const ServingStats snapshot = f.loop->Stats();
        EXPECT_LE(snapshot.pages_free, snapshot.pages_total);
        EXPECT_LE(snapshot.waiting, 64 + limits.max_num_seqs);
        if (random() % 8 == 0) f.sink.WaitForEnd(handles.back());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& [handle, stream] : f.sink.streams()) f.sink.WaitForEnd(handle);
  f.loop->Stop();
  EXPECT_EQ(f.sink.streams().size(), static_cast<size_t>(samples));
  for (auto& [handle, stream] : f.sink.streams()) EXPECT_TRUE(stream.Ended());
  EXPECT_EQ(accepted + refused, kThreads * kRequests);
  EXPECT_EQ(f.loop->Stats().pages_free, limits.num_blocks);
}

// Clients that do not read are cut off by the writing thread, as in GenerateStream: once a client's
// buffer exceeds its limit, all samples of its request are cancelled.
class UnreadSink : public CollectingSink {
 public:
  void ReadsNothing(const std::vector<RequestHandle>& handles, size_t max_unread) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const RequestHandle handle : handles)
      of_[handle] = {.first = handles.front(), .max_unread = max_unread};
  }
  void Deliver(std::vector<Event> events) override {
    std::set<RequestHandle> cut_off;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const Event& event : events) {
        const auto* delta = std::get_if<Delta>(&event.what);
        const auto it = of_.find(event.handle);
        if (delta == nullptr || it == of_.end()) continue;
        const Unread& unread = it->second;
        if ((waiting_[unread.first] += delta->token_id.has_value() ? 1 : 0) > unread.max_unread)
          cut_off.insert(unread.first);
      }
    }
    CollectingSink::Deliver(std::move(events));
    for (const RequestHandle first : cut_off)
      loop->Cancel(first, absl::ResourceExhaustedError("slow"));
  }
  ServingLoop* loop = nullptr;  // set before the first request

 private:
  struct Unread {
    RequestHandle first = 0;
    size_t max_unread = 0;
  };
  std::mutex mutex_;
  std::map<RequestHandle, Unread> of_;
  std::map<RequestHandle, size_t> waiting_;  // tokens, by the first handle
};

// All steps after a given one fail.
class EngineWithAnEnd : public ImmediateExecutor {
 public:
  EngineWithAnEnd(const EngineLimits& limits, int last_step)
      : engine_(limits), steps_left_(last_step) {}
  const EngineLimits& limits() const override { return engine_.limits(); }
  absl::Status RunStep(const Batch& batch, StepResult* result) override {
    if (steps_left_-- == 0) engine_.next_error = absl::UnknownError("device gone");
    return engine_.Execute(batch, result);
  }

 private:
  FakeEngine engine_;
  int steps_left_;
};

// Clients that disconnect, are late or do not read, an engine failure, a loop that drains or stops
// at once: every accepted request gets one end, every rejected request no event.
TEST(ServingLoopTest, EveryAcceptedRequestEndsOnce) {
  std::map<std::string, int> ends;  // by reason
  for (uint64_t seed = 1; seed <= 1'000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    EngineLimits limits = SmallLimits();
    limits.num_blocks = 100 + below(100);
    limits.max_num_seqs = 4;
    limits.max_steps_in_flight = 1 + below(2);
    const FakeTokenizer tokenizer;
    EngineWithAnEnd engine(limits, below(4) == 0 ? below(60) : -1);
    UnreadSink sink;
    const auto loop = *ServingLoop::Start(&engine, &tokenizer, {.max_num_queued_reqs = 8}, &sink);
    sink.loop = loop.get();
    std::vector<RequestHandle> taken;
    for (int i = 1; i <= 10; ++i) {
      const std::vector<RequestHandle> handles = Handles(i * 8, below(4) == 0 ? 3 : 1);
      Request request = MakeRequest(1 + below(40), 1 + below(40), i);
      if (below(2) == 0) request.cache = LocalCache(8);
      if (below(6) == 0) request.deadline = 1;  // has passed on any clock
      if (below(4) == 0) sink.ReadsNothing(handles, below(20));
      if (Accepted(loop->Submit(handles, std::move(request))))
        taken.insert(taken.end(), handles.begin(), handles.end());
      // A client that has disconnected, perhaps before the loop saw its request or after its end.
      if (below(4) == 0) loop->Cancel((1 + below(i)) * 8, absl::CancelledError("gone"));
      if (below(12) == 0) loop->StopAdmitting();
      if (below(3) == 0) std::this_thread::yield();
    }
    if (below(2) == 0) {
      for (const RequestHandle handle : taken) sink.WaitForEnd(handle);
    }
    loop->Stop();
    std::map<RequestHandle, Stream> streams = sink.streams();
    for (const RequestHandle handle : taken) {
      ASSERT_TRUE(streams[handle].Ended()) << handle;
      const auto& failed = streams[handle].failed;
      const bool slow = failed && absl::IsResourceExhausted(failed->status);
      ++ends[!failed ? "finished" : slow ? "slow" : failed->reason];
    }
    EXPECT_EQ(streams.size(), taken.size()) << "a refused request gets no event";
    EXPECT_TRUE(loop->Idle());
    EXPECT_EQ(loop->Stats().pages_free, limits.num_blocks);
  }
  for (const char* end : {"finished", "slow", "CANCELLED", "DEADLINE", "ENGINE_FAULT", "DRAINING"})
    EXPECT_GT(ends[end], 0) << end;
}

TEST(ServingLoopTest, UnseededRequestsDrawDifferentSeeds) {
  LoopFixture f;
  Request request = MakeRequest(5, 8);
  request.sampling.seed.reset();
  ASSERT_TRUE(Accepted(f.loop->Submit(1, request)));
  ASSERT_TRUE(Accepted(f.loop->Submit(2, request)));
  EXPECT_NE(f.sink.WaitForEnd(1).token_ids, f.sink.WaitForEnd(2).token_ids);
}

TEST(ServingLoopTest, AStepIsDueWhileRequestsAreThere) {
  FakeTokenizer tokenizer;
  HeldEngine engine;
  CollectingSink sink;
  const auto loop = *ServingLoop::Start(&engine, &tokenizer, {}, &sink);
  EXPECT_EQ(loop->Stats().step_due_since, 0);
  ASSERT_TRUE(Accepted(loop->Submit(1, MakeRequest(4, 3))));
  const TimeUs due = loop->Stats().step_due_since;
  EXPECT_GE(due, loop->Stats().last_step_end) << "a loop that had nothing to do was not late";
  engine.WaitUntilEntered();
  ASSERT_TRUE(Accepted(loop->Submit(2, MakeRequest(4, 3))));
  EXPECT_EQ(loop->Stats().step_due_since, due) << "what comes later does not excuse the loop";
  engine.Release();
  sink.WaitForEnd(1);
  sink.WaitForEnd(2);
  EXPECT_EQ(loop->Stats().step_due_since, 0);
}

TEST(ServingLoopTest, MetricsCountEveryStep) {
  LoopFixture f;
  ASSERT_TRUE(Accepted(f.loop->Submit(1, MakeRequest(10, 20))));
  f.sink.WaitForEnd(1);
  f.loop->Stop();
  const StepHistograms& metrics = f.loop->histograms();
  for (const Histogram* histogram :
       {&metrics.step_seconds, &metrics.batch_sequences, &metrics.batch_tokens}) {
    const Histogram::Reading reading = histogram->Read();
    uint64_t count = 0;
    for (const uint64_t bucket : reading.counts) count += bucket;
    EXPECT_EQ(count, f.loop->Stats().steps);
  }
  // Ten prompt tokens with the first sampled token, then a row for each of the other nineteen.
  EXPECT_DOUBLE_EQ(metrics.batch_tokens.Read().sum, 10 + 19);
}

// Waits for the requested view.
ServingView WaitForView(ServingLoop* loop) {
  while (true) {
    if (const std::unique_ptr<ServingView> view = loop->RequestView()) return *view;
    std::this_thread::yield();
  }
}

TEST(ServingLoopTest, ViewsAreMadeOnRequest) {
  LoopFixture f;
  ASSERT_TRUE(Accepted(f.loop->Submit(1, MakeRequest(10, 20))));
  f.sink.WaitForEnd(1);
  EXPECT_EQ(f.loop->RequestView(), nullptr) << "no view was asked for";
  const ServingView idle = WaitForView(f.loop.get());  // an idle loop answers, too
  EXPECT_TRUE(idle.live.empty());
  EXPECT_EQ(idle.stats.pages_free, idle.stats.pages_total);
  EXPECT_EQ(idle.stats.generation_tokens, 20u);
  ASSERT_EQ(idle.steps.size(), 20u);
  EXPECT_EQ(idle.steps.front().work.prompt_tokens, 10);
  EXPECT_EQ(idle.steps.back().work.rows, 1);
  EXPECT_EQ(f.loop->Stats().steps, 20u) << "to look is no step";
  for (RequestHandle handle = 2; handle < 12; ++handle) {
    ASSERT_TRUE(Accepted(f.loop->Submit(handle, MakeRequest(10, 100))));
    f.sink.WaitForEnd(handle);
  }
  WaitForView(f.loop.get());  // the first view may be older than the steps
  const ServingView later = WaitForView(f.loop.get());
  ASSERT_EQ(later.steps.size(), kMaxViewedSteps);
  for (size_t i = 1; i < later.steps.size(); ++i)
    EXPECT_LE(later.steps[i - 1].end, later.steps[i].end);
}

TEST(ServingLoopTest, AViewComesAfterTheStepAtWork) {
  FakeTokenizer tokenizer;
  HeldEngine engine;
  CollectingSink sink;
  auto loop = *ServingLoop::Start(&engine, &tokenizer, {}, &sink);
  ASSERT_TRUE(Accepted(loop->Submit(1, MakeRequest(10, 100))));
  engine.WaitUntilEntered();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(loop->RequestView(), nullptr);
  engine.Release();
  EXPECT_EQ(WaitForView(loop.get()).live.size(), 1u);
}

// The signal handler blocks its thread until as many stops are over as have begun.
std::atomic<int> stops_begun{0};
std::atomic<int> stops_over{0};
sem_t stopped;
void StayHere(int) {
  const int mine = ++stops_begun;
  sem_post(&stopped);
  while (stops_over < mine) poll(nullptr, 0, 1);
}

// The operating system may preempt a reader at any instruction, for any time: steps continue. With
// a shared lock this test would hang.
TEST(ServingLoopTest, AReaderThatIsStoppedAnywhereDelaysNoStep) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer delivers signals late";
  LoopFixture f;
  sem_init(&stopped, 0, 0);
  struct sigaction action {};
  action.sa_handler = StayHere;
  sigaction(SIGUSR1, &action, nullptr);
  std::atomic<bool> done{false};
  std::atomic<uint64_t> readings{0};
  std::thread reader([&] {
    while (!done) {
      const ServingStats snapshot = f.loop->Stats();
      const Histogram::Reading reading = f.loop->histograms().step_seconds.Read();
      if (snapshot.pages_total > 0 && reading.num_bounds > 0) ++readings;
    }
  });
  for (RequestHandle handle = 1; handle <= 300; ++handle) {
    for (const uint64_t before = readings; readings == before;) std::this_thread::yield();
    pthread_kill(reader.native_handle(), SIGUSR1);
    while (sem_wait(&stopped) != 0) {
    }
    ASSERT_TRUE(Accepted(f.loop->Submit(handle, MakeRequest(4, 3))));
    EXPECT_EQ(f.sink.WaitForEnd(handle).token_ids.size(), 3u);
    ++stops_over;
  }
  done = true;
  reader.join();
}

TEST(HistogramTest, AValueBelongsToTheFirstBoundThatIsNotBelowIt) {
  Histogram histogram{1, 2.5, 10};
  for (const double value : {0.0, 1.0, 1.1, 2.5, 9.0, 10.0, 10.1, 1e9}) histogram.Observe(value);
  const Histogram::Reading reading = histogram.Read();
  ASSERT_EQ(reading.num_bounds, 3u);
  EXPECT_EQ(reading.bounds[1], 2.5);
  EXPECT_EQ(std::vector<uint64_t>(reading.counts.begin(), reading.counts.begin() + 4),
            (std::vector<uint64_t>{2, 2, 2, 2}));
  EXPECT_DOUBLE_EQ(reading.sum, 0.0 + 1.0 + 1.1 + 2.5 + 9.0 + 10.0 + 10.1 + 1e9);
}

}  // namespace
}  // namespace hydrant
