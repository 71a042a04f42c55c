// The steps in flight: for each row of a batch, the sequence that gets its result. Results are
// matched by cache, not by sequence alone: a sequence may end, or be preempted and admitted again,
// before a result arrives. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_STEP_LEDGER_H_
#define HYDRANT_SCHEDULER_STEP_LEDGER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/run/step/batch.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

// A sequence's cache between an admission and the next preemption.
struct CacheId {
  Sequence* sequence = nullptr;
  int32_t preemptions = 0;  // before

  static CacheId Of(Sequence* sequence) { return {sequence, sequence->account.usage.preemptions}; }
  // Null: the sequence has ended.
  Sequence* Live() const { return sequence->HasEnded() ? nullptr : sequence; }
  bool IsOf(const Sequence& other) const {
    return sequence == &other && preemptions == other.account.usage.preemptions;
  }
  bool IsOpen() const { return sequence->cache.blocks.IsOpen() && IsOf(*sequence); }
};

// A row of a batch that samples.
struct ScheduledToken {
  CacheId cache;
  int64_t index = 0;  // among the sequence's tokens; kNoIndex: the prompt is not at its end
  bool logprobs = false;
  bool kept_entries = false;
};
inline constexpr int64_t kNoIndex = -1;

// A part of a run in the arena; it samples if the run ends.
struct ScheduledPart : ScheduledToken {
  std::vector<RequestHandle> samples = {};  // sequences with further samples at its end
  TokenRange scored = {};                   // prompt tokens whose successors are scored

  bool EndsRun() const { return index != kNoIndex; }
};

// A step whose result has not returned, or that is being scheduled.
struct StepRecord {
  std::vector<ScheduledToken> decoded;  // of batch.Decoded()
  std::vector<ScheduledPart> parts;     // of batch.InArena()
  std::vector<CacheId> compacted;       // [batch.Count<SlotCompaction>()]
  // Sequences that ended while this step was the newest: it and older ones may name them.
  std::vector<std::unique_ptr<Sequence>> ended;
  bool swaps = false;
  StepWork work{};
  TimeUs scheduled_at = 0;

  bool Compacts(const Sequence& sequence) const {
    return std::any_of(compacted.begin(), compacted.end(),
                       [&](const CacheId& cache) { return cache.IsOf(sequence); });
  }
};

class StepLedger {
 public:
  // The step that is being scheduled.
  StepRecord& current() { return current_; }
  const StepRecord& current() const { return current_; }
  void Begin(TimeUs now);
  void Commit();  // the step is enqueued

  bool Empty() const { return in_flight_.empty(); }
  const std::deque<StepRecord>& in_flight() const { return in_flight_; }  // oldest first
  StepRecord& oldest() { return in_flight_.front(); }
  void RemoveOldest();
  void Clear();

  // Keeps a sequence that has ended as long as steps in flight name it.
  void KeepEnded(std::unique_ptr<Sequence> sequence);
  bool IsCompactedInFlight(const Sequence& sequence) const;
  bool SwapsInFlight() const;
  // Prefix blocks that steps in flight may still write have been given up.
  void MarkBlocksAbandoned() { steps_with_blocks_ = in_flight_.size(); }
  bool HasBlocksInFlight() const { return steps_with_blocks_ > 0; }

 private:
  StepRecord current_;
  std::deque<StepRecord> in_flight_;
  size_t steps_with_blocks_ = 0;  // in flight, that may write blocks which were given up
};

inline bool HasSwaps(const CacheUpdates& updates) {
  return updates.Count<SwapOut>() + updates.Count<SwapIn>() > 0;
}

// Hands out the sampled tokens and logprobs of a step's result, in the order of its batch.
class ResultReader {
 public:
  // Borrows the result.
  ResultReader(const StepRecord& step, const StepResult& result);

  struct Token {
    TokenId token = kNoToken;
    const TokenLogprobs* logprobs = nullptr;    // null: not requested
    const KeptEntries* kept_entries = nullptr;  // null: not requested
  };
  // The token of the row itself.
  Token Next(const ScheduledToken& row) {
    Token token = NextSample(row);
    if (row.kept_entries) token.kept_entries = next_kept_entries_++;
    return token;
  }
  // The token of another sample that the row's run draws.
  Token NextSample(const ScheduledToken& row) {
    return {*next_++, row.logprobs ? next_logprobs_++ : nullptr};
  }
  std::span<const TokenLogprobs> NextOfPrompt(const ScheduledPart& part) {
    const size_t count = part.scored.end - part.scored.begin;
    return {std::exchange(next_of_prompts_, next_of_prompts_ + count), count};
  }

 private:
  const TokenId* next_;
  const TokenLogprobs* next_logprobs_;
  const KeptEntries* next_kept_entries_;
  const TokenLogprobs* next_of_prompts_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STEP_LEDGER_H_
