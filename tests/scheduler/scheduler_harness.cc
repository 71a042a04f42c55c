#include "tests/scheduler/scheduler_harness.h"

#include "scheduler/invariants.h"
#include "scheduler/serving_view.h"

namespace hydrant {

RequestHandle SchedulerHarness::Add(Request request) {
  const RequestHandle handle = next_handle_++;
  if (request.from == nullptr) {
    if (std::optional<Failed> failed = scheduler.contexts().Resolve(&request)) {
      streams[handle].failed = *std::move(failed);
      return handle;
    }
  }
  std::variant<CheckedRequest, Failed> checked =
      CheckRequest(std::move(request), engine.limits(), tokenizer, policy_under_pressure_);
  if (Failed* failed = std::get_if<Failed>(&checked)) {
    streams[handle].failed = std::move(*failed);
  } else {
    const Request& good = std::get<CheckedRequest>(checked).request;
    Stream& stream = streams[handle];
    stream.num_known = good.prompt.size() + good.resume_token_ids.size();
    stream.logprobs = good.sampling.logprobs;
    scheduler.Add(handle, std::move(std::get<CheckedRequest>(checked)), now);
  }
  return handle;
}

void SchedulerHarness::Step() {
  if (lost_.ok()) {
    StepEngine();
  } else {
    scheduler.FailAll(lost_, "ENGINE_FAULT", now);
  }
  shortage_.reset();
  Collect();
  const absl::Status invariants = CheckInvariants(scheduler.State());
  ASSERT_TRUE(invariants.ok()) << invariants;
  CheckView();
}

void SchedulerHarness::StepEngine() {
  const bool was_empty = scheduler.Empty();
  const Batch& batch = scheduler.Schedule(now);
  now += step_time ? step_time(batch) : step_us;
  const bool has_work = batch.HasWork();
  const int depth = engine.limits().max_steps_in_flight;
  const bool may_idle = scheduler.Empty() || shortage_ != nullptr;
  if (depth == 1) {
    ASSERT_TRUE(has_work || may_idle) << "live, but there is nothing to do";
    ASSERT_FALSE(has_work && was_empty);
  }
  if (has_work) {
    engine.Enqueue(batch);
    ++steps_in_flight_;
  }
  ASSERT_TRUE(steps_in_flight_ > 0 || may_idle) << "live, but there is nothing to do";
  if (steps_in_flight_ > 0 && steps_in_flight_ >= (has_work ? depth : 1)) {
    --steps_in_flight_;
    StepResult result;
    const absl::Status status = engine.Collect(&result);
    if (status.ok()) {
      scheduler.Apply(result, now);
    } else {
      steps_in_flight_ = 0;
      lost_ = status;
      scheduler.FailAll(status, "ENGINE_FAULT", now);
    }
  }
}

// Pages owned by one sequence, shared pages and free pages add up to the pool.
void SchedulerHarness::CheckView() const {
  const ServingView view = scheduler.View(now);
  const int64_t used = view.stats.pages_total - view.stats.pages_free;
  int64_t own = view.pages_of_others, held = 0;
  for (const SequenceView& one : view.live) {
    ASSERT_GE(one.own_pages, 0);
    ASSERT_LE(one.own_pages, one.pages);
    ASSERT_GE(one.evicted, 0);
    own += one.own_pages;
    held += one.pages;
  }
  ASSERT_EQ(own + view.shared_pages, used);
  ASSERT_LE(view.shared_pages, view.stats.pages_spared);
  if (view.live.size() == kMaxViewedLive) return;  // the list may be truncated
  ASSERT_EQ(held - view.stats.pages_spared, used);
}

void SchedulerHarness::RunToEnd(int most) {
  for (int i = 0; i < most && !scheduler.Empty(); ++i) {
    Step();
    if (testing::Test::HasFailure()) return;
  }
  ASSERT_TRUE(scheduler.Empty()) << "still live after " << most << " steps";
  EXPECT_EQ(scheduler.Stats().pages_free, scheduler.Stats().pages_total);
}

void SchedulerHarness::Collect() {
  for (Event& event : scheduler.TakeEvents()) {
    ASSERT_TRUE(streams.contains(event.handle));
    Stream& stream = streams[event.handle];
    ASSERT_FALSE(stream.Ended()) << "an event follows the end of stream " << event.handle;
    if (auto* delta = std::get_if<Delta>(&event.what)) {
      if (delta->token_id.has_value()) {
        CheckLogprobs(stream, *delta);
        stream.token_ids.push_back(*delta->token_id);
      }
      stream.text += delta->text;
      ++stream.num_deltas;
    } else if (auto* progress = std::get_if<Progress>(&event.what)) {
      stream.progress.push_back(*progress);
    } else if (auto* finished = std::get_if<Finished>(&event.what)) {
      stream.finished = std::move(*finished);
    } else if (auto* of_prompt = std::get_if<PromptLogprobs>(&event.what)) {
      ASSERT_FALSE(stream.prompt_logprobs.has_value());
      ASSERT_EQ(stream.num_deltas, 0);
      stream.prompt_logprobs = std::move(*of_prompt);
    } else if (auto* entries = std::get_if<Indirect<PromptEntries>>(&event.what)) {
      ASSERT_FALSE(stream.prompt_entries.has_value());
      ASSERT_EQ(stream.num_deltas, 0);
      stream.prompt_entries = std::move(**entries);
    } else {
      stream.failed = std::move(std::get<Failed>(event.what));
    }
  }
}

// The fake engine returns a token's position as its logprob.
void SchedulerHarness::CheckLogprobs(const Stream& stream, const Delta& delta) {
  ASSERT_EQ(delta.logprobs.has_value(), stream.logprobs);
  if (!stream.logprobs) return;
  ASSERT_EQ((*delta.logprobs)->token, *delta.token_id);
  ASSERT_EQ(-(*delta.logprobs)->logprob, stream.num_known + stream.token_ids.size());
}

Request MakeRequest(int prompt_tokens, int max_tokens, uint64_t seed) {
  Request request;
  for (int i = 0; i < prompt_tokens; ++i) request.prompt.push_back((seed * 31 + i * 7) % 256);
  request.sampling.seed = seed;
  request.stopping.max_tokens = max_tokens;
  return request;
}

CacheSpec LocalCache(int64_t max_cache_tokens) {
  CacheSpec cache;
  cache.policy = "local";
  cache.max_cache_tokens = max_cache_tokens;
  return cache;
}

std::vector<RequestHandle> AddSamples(SchedulerHarness* h, Request request, int count) {
  std::vector<RequestHandle> handles;
  for (int i = 0; i < count; ++i) {
    request.sampling.seed = 100 + i;
    if (i > 0) request.sample_of = handles[0];
    handles.push_back(h->Add(request));
  }
  return handles;
}

}  // namespace hydrant
