// Random schedules of a scheduler and a real engine: requests of every policy, conversations that
// go on from kept caches, samples, swaps, cuts and cancels in a pool that is too small, and the
// tokens of each compared with those of the same request alone. A fake engine shows the order of
// what a scheduler asks for; that pages hold what they should, only a real one shows.
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

// One conversation of a catalogue: a prompt, and questions that each go on from its cache; or
// samples of a prompt that nobody goes on from.
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
// Of every policy, by seeds 0, 1, ...: the same seed gives the same conversation.
Conversation DrawConversation(uint64_t seed);

// Tokens of the prompt's samples, then of each question.
using Answers = std::vector<std::vector<TokenId>>;

// Runs batches on an engine that others use after it; one step at a time.
class EngineLoop {
 public:
  struct Stream {
    std::vector<TokenId> tokens;
    std::string error;  // not empty: it has failed, CANCELLED included
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

// What has been seen in schedules. Plain numbers.
struct EngineScheduleCounts {
  uint64_t requests = 0, compared = 0, differ = 0, failed = 0;
  uint64_t swaps = 0, preemptions = 0, shrinks = 0, cancels = 0, continued = 0, forks = 0;
  std::map<std::string, uint64_t> compared_of, differ_of;  // by policy
  std::vector<std::string> faults;                         // of the first few, a line each

  void Add(const EngineScheduleCounts& other);
};

// The conversations of the catalogue, each run alone once.
class AnswersAlone {
 public:
  // `engine` has room for any of them.
  AnswersAlone(StepExecutor* engine, int num_conversations);
  const Conversation& conversation(int i) const { return conversations_[i]; }
  int size() const { return static_cast<int>(conversations_.size()); }
  const Answers& answers(int i);

 private:
  StepExecutor* const engine_;
  std::vector<Conversation> conversations_;
  std::vector<Answers> answers_;  // empty: not run yet
};

// About `num_requests` of them on `engine`, whose pool is small.
EngineScheduleCounts RunEngineSchedule(uint64_t seed, int num_requests, StepExecutor* engine,
                                       AnswersAlone* alone);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_ENGINE_SCHEDULE_H_
