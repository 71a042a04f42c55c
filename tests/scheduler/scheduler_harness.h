// A scheduler, its request checks and a fake engine under a fake clock; collects all streams.
#ifndef HYDRANT_TESTS_SCHEDULER_SCHEDULER_HARNESS_H_
#define HYDRANT_TESTS_SCHEDULER_SCHEDULER_HARNESS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/request_check.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_engine.h"
#include "tests/scheduler/fake_tokenizer.h"
#include "tests/scheduler/shortage.h"

namespace hydrant {

struct Stream {
  std::vector<TokenId> token_ids;
  std::string text;
  std::vector<Progress> progress;
  size_t num_known = 0;   // tokens of prompt and resumed output
  bool logprobs = false;  // were requested
  std::optional<PromptLogprobs> prompt_logprobs;
  std::optional<PromptEntries> prompt_entries;
  std::optional<Finished> finished;
  std::optional<Failed> failed;
  int num_deltas = 0;
  bool Ended() const { return finished.has_value() || failed.has_value(); }
};

class SchedulerHarness {
 public:
  // limits.max_steps_in_flight: how far scheduling runs ahead of results.
  explicit SchedulerHarness(const EngineLimits& limits = SmallLimits(),
                            const SchedulerOptions& options = {})
      : engine(limits),
        scheduler(limits, options, &tokenizer),
        policy_under_pressure_(options.policy_under_pressure) {}

  // A rejected request has `failed` set in its stream.
  RequestHandle Add(Request request);
  // One iteration of the loop: schedule, enqueue, apply due results, collect, check the invariants.
  // After an engine error all live and all later requests end.
  void Step();
  // Lasts until the end of the next step.
  void BeginShortage(const Shortage::Parts& parts) {
    shortage_.reset();
    shortage_ = std::make_unique<Shortage>(parts, &scheduler);
  }
  // Steps until nothing is live. Fails the test after `most` steps.
  void RunToEnd(int most = 20000);
  Stream& operator[](RequestHandle handle) { return streams[handle]; }

  TimeUs now = 1'000;
  TimeUs step_us = 1'000;
  std::function<TimeUs(const Batch&)> step_time;  // if set, overrides the constant step time
  FakeTokenizer tokenizer;
  FakeEngine engine;
  Scheduler scheduler;
  std::map<RequestHandle, Stream> streams;

 private:
  void StepEngine();
  void Collect();
  static void CheckLogprobs(const Stream& stream, const Delta& delta);
  void CheckView() const;
  const CacheSpec policy_under_pressure_;
  int steps_in_flight_ = 0;
  absl::Status lost_;  // the engine's error, if not ok
  std::unique_ptr<Shortage> shortage_;
  RequestHandle next_handle_ = 1;
};

// A greedy-like request of `prompt_tokens` tokens that may generate `max_tokens`.
Request MakeRequest(int prompt_tokens, int max_tokens, uint64_t seed = 1);
CacheSpec LocalCache(int64_t max_cache_tokens);

// Adds `count` samples of one prompt, with seeds from 100 on; the first prefills it.
std::vector<RequestHandle> AddSamples(SchedulerHarness* h, Request request, int count);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_SCHEDULER_HARNESS_H_
