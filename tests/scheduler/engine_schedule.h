// Random schedules of a scheduler and a real engine: requests of every policy, conversations that
// continue from offloaded caches, samples, swaps, compactions and cancels in a pool that is too
// small. Each request's tokens are compared with those of the same request run alone. A fake engine
// checks the order of the scheduler's commands; only a real engine checks the contents of pages.
#ifndef HYDRANT_TESTS_SCHEDULER_ENGINE_SCHEDULE_H_
#define HYDRANT_TESTS_SCHEDULER_ENGINE_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/run/engine.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {

// One conversation of a catalogue: a prompt and questions that each continue from its cache, or
// samples of a prompt without questions.
struct Conversation {
  CacheSpec cache;
  std::vector<TokenId> prompt;
  int64_t question_tokens = 0;
  std::vector<std::vector<TokenId>> questions;  // empty: the cache is not kept
  SamplingParams sampling;
  int samples = 1;
  int max_tokens = 1;
  OnPressure on_pressure = OnPressure::kPreempt;
};
// Draws a conversation; seeds 0, 1, ... go through all policies. Deterministic in the seed.
Conversation DrawConversation(uint64_t seed);

// Tokens of the prompt's samples, then of each question.
using Answers = std::vector<std::vector<TokenId>>;

// Runs batches, one step at a time, on an engine that outlives it and is used again.
class EngineLoop {
 public:
  struct Stream {
    std::vector<TokenId> tokens;
    std::string error;  // not empty: failed, CANCELLED included
    bool has_ended = false;
    int32_t shrinks = 0, preemptions = 0, swaps = 0;
    std::shared_ptr<const Context> context;
  };

  EngineLoop(StepExecutor* engine, const SchedulerOptions& options)
      : engine_(engine), scheduler_(engine->limits(), options, &tokenizer_) {}

  RequestHandle Add(Request request);
  void Step();
  void RunToEnd();
  Stream& operator[](RequestHandle handle) { return streams_[handle]; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  StepExecutor* const engine_;
  FakeTokenizer tokenizer_;
  Scheduler scheduler_;
  TimeUs now_ = 1'000;
  int in_flight_ = 0;
  RequestHandle next_handle_ = 1;
  std::map<RequestHandle, Stream> streams_;
};

// Counts over schedules. Plain numbers.
struct EngineScheduleCounts {
  uint64_t requests = 0, compared = 0, differ = 0, failed = 0;
  uint64_t swaps = 0, preemptions = 0, shrinks = 0, cancels = 0, continued = 0, forks = 0;
  std::map<std::string, uint64_t> compared_of, differ_of;  // by policy
  std::vector<std::string> faults;                         // the first few, one line each

  void Add(const EngineScheduleCounts& other);
};

// The conversations of the catalogue, each run alone once.
class AnswersAlone {
 public:
  // `engine` has room for any single conversation.
  AnswersAlone(StepExecutor* engine, int num_conversations);
  const Conversation& conversation(int i) const { return conversations_[i]; }
  int size() const { return static_cast<int>(conversations_.size()); }
  const Answers& answers(int i);

 private:
  StepExecutor* const engine_;
  std::vector<Conversation> conversations_;
  std::vector<Answers> answers_;  // empty: not run yet
};

// Runs about `num_requests` requests on `engine`, which has a small pool.
EngineScheduleCounts RunEngineSchedule(uint64_t seed, int num_requests, StepExecutor* engine,
                                       AnswersAlone* alone);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_ENGINE_SCHEDULE_H_
