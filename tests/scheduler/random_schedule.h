// A random schedule: requests of every kind in pools and arenas that are too small, contexts that
// are kept, saved, loaded and deleted, and what goes wrong meanwhile: allocations that fail,
// clients that cancel, go or do not read, deadlines, an engine that is lost. All invariants are
// checked after each step, and at the end that every stream has ended once, with the tokens that
// its request gets with an engine to itself.
//
// A schedule is a list of events, each with a seed of its own: what one brings does not depend on
// which others there are, but for what it finds. So events can be left out of one that fails.
#ifndef HYDRANT_TESTS_SCHEDULER_RANDOM_SCHEDULE_H_
#define HYDRANT_TESTS_SCHEDULER_RANDOM_SCHEDULE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {

struct ScheduleSize {
  int steps = 0;           // in which something may happen; then it runs to its end
  int arrivals = 0;        // in percent of the steps
  int shortages = 0;       // the same
  int most_model_len = 0;  // about
  int longest_prompt = 0;  // of most of them
  int longest_answer = 0;  // the same
  int most_layers = 0;
  int most_seqs = 0;         // at once
  bool compares_all = true;  // streams with their run alone; else one
};
inline constexpr ScheduleSize kLongSchedule = {.steps = 500,
                                               .arrivals = 30,
                                               .shortages = 2,
                                               .most_model_len = 240,
                                               .longest_prompt = 30,
                                               .longest_answer = 60,
                                               .most_layers = 3,
                                               .most_seqs = 16};
inline constexpr ScheduleSize kShortSchedule = {.steps = 40,
                                                .arrivals = 20,
                                                .shortages = 10,
                                                .most_model_len = 100,
                                                .longest_prompt = 40,
                                                .longest_answer = 20,
                                                .most_layers = 2,
                                                .most_seqs = 8,
                                                .compares_all = false};

enum class Incident : uint8_t {
  kArrival,
  kContexts,    // leases, loads and removals, as an archive makes them
  kCancel,      // of one sample
  kDisconnect,  // of a client: all samples of its request
  kShortage,    // allocations of the step fail
  kEngineError  // steps fail from now on
};
struct ScheduleEvent {
  int step = 0;
  Incident what = Incident::kArrival;
  uint64_t seed = 0;
};
// In the order of their steps.
std::vector<ScheduleEvent> DrawEvents(uint64_t seed, const ScheduleSize& size);
std::string NameOf(Incident what);

// What has happened in schedules. Plain numbers.
struct ScheduleCounts {
  uint64_t preemptions = 0, swaps = 0, shrinks = 0, hit_tokens = 0, evicted_blocks = 0;
  uint64_t compressed = 0;  // by the policy under pressure
  uint64_t promised = 0;    // streams whose pages were promised to them
  uint64_t continued = 0, contexts_evicted = 0, loaded = 0, compared = 0;
  uint64_t appended = 0, turns = 0, forks = 0, copies = 0, state_copies = 0, shared_tokens = 0;
  // How streams ended.
  uint64_t finished = 0, cancelled = 0, gone = 0, slow = 0, late = 0, lost = 0, refused = 0;
  uint64_t starved = 0;  // alone, and the pool had no page for it

  void Add(const ScheduleCounts& other);
};

class RandomSchedule {
 public:
  // `tells`: on standard output what comes when.
  RandomSchedule(uint64_t seed, const ScheduleSize& size, bool tells = false);

  // Once. A broken promise is a test failure.
  ScheduleCounts Run(std::span<const ScheduleEvent> events);

 private:
  // A request as its client sees it.
  struct Call {
    size_t first = 0;  // of handles_
    size_t samples = 1;
    std::optional<size_t> most_unread{};  // the client reads nothing; bytes that may wait for it
  };

  int Below(int n) { return static_cast<int>(random_() % n); }
  EngineLimits RandomLimits();
  CacheSpec RandomPolicy();
  SchedulerOptions RandomOptions();

  void Happen(const ScheduleEvent& event);
  void Arrive();
  Request RandomRequest();
  void SayOfTokens(Request* request);
  CacheSpec RandomCache(Request* request);
  void BeginAlike(std::vector<TokenId>* prompt);
  void MayBeCut(Request* request) const;
  void GoOn(Request* request);
  void CancelOne();
  void Disconnect();
  void EndCall(const Call& call, const absl::Status& why);
  void CutOffSlowReaders();
  void BeginShortage();
  bool EngineIsLost() const;

  ContextTable& contexts() { return harness_.scheduler.context_table(); }
  ContextId AnyContext();
  void MoveContexts();
  void Release();
  void BeginLoad();
  void EndLoad();

  void CheckStreams();
  void CheckStream(size_t i);
  static void CheckTimesAway(const Usage& usage);
  void Count();

  const ScheduleSize size_;
  const bool tells_;
  std::mt19937_64 random_;  // of the event at work
  const CacheSpec policy_;  // under pressure
  SchedulerHarness harness_;
  std::mt19937_64 times_;  // of steps
  std::vector<RequestHandle> handles_;
  std::vector<Request> requests_;  // [handles_.size()]
  std::vector<Call> calls_;
  std::vector<ContextTable::Lease> leases_;
  std::vector<std::pair<std::shared_ptr<const Context>, KeptSpace>> loading_;
  std::vector<ContextId> loaded_;
  ScheduleCounts counts_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_RANDOM_SCHEDULE_H_
