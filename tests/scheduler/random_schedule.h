// A random schedule: requests of every kind in pools and arenas that are too small, contexts that
// are kept, saved, loaded and deleted, and faults: allocation failures, clients that cancel,
// disconnect or do not read, deadlines, engine failure. All invariants are checked after each step,
// and at the end that every stream has ended once, with the tokens of the same request run alone.
//
// A schedule is a list of events, each with its own seed: an event does not depend on other events
// except through the state that it finds. So a failing schedule can be reduced by removing events.
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
  int steps = 0;           // steps with events; then the schedule runs to its end
  int arrivals = 0;        // percent of the steps
  int shortages = 0;       // percent of the steps
  int most_model_len = 0;  // approximate
  int longest_prompt = 0;  // of most requests
  int longest_answer = 0;  // of most requests
  int max_layers = 0;
  int max_seqs = 0;          // running sequences
  bool compares_all = true;  // compares every stream with its run alone; else one
};
inline constexpr ScheduleSize kLongSchedule = {.steps = 500,
                                               .arrivals = 30,
                                               .shortages = 2,
                                               .most_model_len = 240,
                                               .longest_prompt = 30,
                                               .longest_answer = 60,
                                               .max_layers = 3,
                                               .max_seqs = 16};
inline constexpr ScheduleSize kShortSchedule = {.steps = 40,
                                                .arrivals = 20,
                                                .shortages = 10,
                                                .most_model_len = 100,
                                                .longest_prompt = 40,
                                                .longest_answer = 20,
                                                .max_layers = 2,
                                                .max_seqs = 8,
                                                .compares_all = false};

enum class Incident : uint8_t {
  kArrival,
  kContexts,    // leases, loads and removals, as in an archive
  kCancel,      // of one sample
  kDisconnect,  // of a client: all samples of its request
  kShortage,    // allocations of the step fail
  kEngineError  // all later steps fail
};
struct ScheduleEvent {
  int step = 0;
  Incident what = Incident::kArrival;
  uint64_t seed = 0;
};
// Sorted by step.
std::vector<ScheduleEvent> DrawEvents(uint64_t seed, const ScheduleSize& size);
std::string NameOf(Incident what);

// Totals over schedules. Plain numbers.
struct ScheduleCounts {
  uint64_t preemptions = 0, swaps = 0, shrinks = 0, hit_tokens = 0, evicted_blocks = 0;
  uint64_t compressed = 0;  // by the policy under pressure
  uint64_t guaranteed = 0;  // streams with reserved pages
  uint64_t continued = 0, contexts_evicted = 0, loaded = 0, compared = 0;
  uint64_t appended = 0, turns = 0, forks = 0, copies = 0, state_copies = 0, shared_tokens = 0;
  // Ends of streams, by cause.
  uint64_t finished = 0, cancelled = 0, gone = 0, slow = 0, late = 0, lost = 0, refused = 0;
  uint64_t starved = 0;  // alone in the pool, and no page was left

  void Add(const ScheduleCounts& other);
};

class RandomSchedule {
 public:
  // tells: prints each event to standard output.
  RandomSchedule(uint64_t seed, const ScheduleSize& size, bool tells = false);

  // Call once. A broken rule is a test failure.
  ScheduleCounts Run(std::span<const ScheduleEvent> events);

 private:
  // A request from its client's view.
  struct Call {
    size_t first = 0;  // index in handles_
    size_t samples = 1;
    std::optional<size_t> max_unread{};  // the client reads nothing; bytes that may wait for it
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
  void AllowEviction(Request* request) const;
  void GoOn(Request* request);
  void CancelOne();
  void Disconnect();
  void EndCall(const Call& call, const absl::Status& why);
  void DisconnectSlowReaders();
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
  std::mt19937_64 random_;  // reseeded for each event
  const CacheSpec policy_;  // the policy under pressure
  SchedulerHarness harness_;
  std::mt19937_64 times_;  // of steps
  std::vector<RequestHandle> handles_;
  std::vector<Request> requests_;  // [handles_.size()]
  std::vector<Call> calls_;
  std::vector<ContextTable::Lease> leases_;
  std::vector<std::pair<std::shared_ptr<const Context>, OffloadedCache>> loading_;
  std::vector<ContextId> loaded_;
  ScheduleCounts counts_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_RANDOM_SCHEDULE_H_
