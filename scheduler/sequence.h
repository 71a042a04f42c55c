// One request's life in the scheduler. Plain data, owned and changed by Scheduler alone.
//
//   WAITING ----admitted--> PREFILLING --prompt read--> RUNNING --> FINISHED
//   PREEMPTED --admitted------^    \______________________/
//       ^------------------------------ preempted
#ifndef HYDRANT_SCHEDULER_SEQUENCE_H_
#define HYDRANT_SCHEDULER_SEQUENCE_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/cache_space.h"
#include "engine/cache/prefix_cache.h"
#include "engine/step/batch.h"
#include "kernels/ops/prefix_blocks.h"
#include "scheduler/context.h"
#include "scheduler/logits_processor.h"
#include "scheduler/output_processor.h"
#include "scheduler/prefill_planner.h"
#include "scheduler/request.h"
#include "scheduler/request_check.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

enum class SequenceState : uint8_t { kWaiting, kPrefilling, kRunning, kPreempted };

// Who comes before whom: a class of priority is worth so much waiting, so nobody waits for ever.
struct QueueOrder {
  static constexpr TimeUs kClassUs = 60'000'000;

  TimeUs arrived_at = 0;  // and priority * kClassUs
  uint64_t arrival = 0;   // order of Add
  auto operator<=>(const QueueOrder&) const = default;
};

// A cut for others' sake. One that reads its prompt again is cut again where it was.
struct ShrinkAt {
  int64_t tokens = 0;  // seen
  int32_t mean = 0;    // entries a head, on average
};

// The pages that a sequence has held, over time.
class PageTime {
 public:
  // So many from `now` on.
  void Hold(int64_t pages, TimeUs now) {
    if (pages_ > 0) {
      held_us_ += now - since_;
      page_us_ += pages_ * (now - since_);
    }
    pages_ = pages;
    since_ = now;
  }
  int64_t pages() const { return pages_; }
  // Until the last Hold(), over the time with pages; one that held some for no time: 0.
  double Mean() const {
    return held_us_ > 0 ? static_cast<double>(page_us_) / static_cast<double>(held_us_) : 0;
  }

 private:
  int64_t pages_ = 0;
  TimeUs since_ = 0;
  TimeUs held_us_ = 0;
  int64_t page_us_ = 0;
};

// While others have its room.
struct Absence {
  TimeUs since = 0;
  bool swapped = false;  // its cache is in the host's memory; else it is lost
};

struct Tenant;  // scheduler/fair_queue.h

struct Sequence {
  // What every step touches, side by side: thousands of sequences are not in the cache.
  RequestHandle handle = 0;
  SequenceState state = SequenceState::kWaiting;
  bool ended = false;           // kept only until the steps in flight that name it have come back
  bool was_swapped_in = false;  // in this step: it decodes from the next one on, cut and grown
  bool was_decided = false;     // the engine has not been told yet what the plan has become
  bool only_reads = false;
  bool waits_for_mask = false;  // for a grammar mask that takes longer than a step may wait
  bool was_read = false;  // the whole prompt, once
  int32_t num_prompt_tokens = 0;
  int32_t num_context_tokens = 0;  // of the prompt: what is compressed; the question follows
  int32_t num_resumed = 0;         // of its output, tokens that a broken stream had delivered
  int64_t max_total_tokens = 0;    // prompt and output
  int64_t num_seen = 0;  // tokens whose entries are in the cache when the scheduled steps have run
  int64_t num_done = 0;  // the same of the steps that have come back
  std::optional<TimeUs> first_token_at{};
  TimeUs last_heard_at = 0;     // last event to the client
  std::vector<TokenId> tokens;  // known ones: the prompt, then what was generated
  // Of what follows the compressed prompt, what is read at once when it is reached, in order
  // (Context::read_later).
  std::vector<TokenRange> read_later{};
  // Other samples of its prompt that wait for it to be read; they are forked from it, or leave the
  // list to read it themselves.
  std::vector<RequestHandle> samples{};
  std::vector<ShrinkAt> shrinks{};
  size_t num_shrunk = 0;  // of these, that its cache has undergone
  PageTime page_time{};
  SequenceSpace space{};
  KeepAs keep_as{};
  SampledRow sampling;                        // position, mask and biases aside
  std::unique_ptr<LogitsProcessor> logits{};  // null: it says nothing of single tokens
  Usage usage{};
  OutputProcessor output;
  CachePlan plan;

  std::string request_id{};
  QueueOrder order{};
  std::vector<TokenId> probed{};  // context and probe, for a plan that reads both
  std::optional<TimeUs> deadline;
  Slo slo;
  int32_t priority = 0;
  Tenant* tenant = nullptr;
  OnPressure on_pressure = OnPressure::kPreempt;
  int32_t largest_cap = kNoCap;  // CheckedRequest's
  EmbeddingPooling pooling = EmbeddingPooling::kNone;
  bool wants_prompt_logprobs = false;
  std::vector<TokenLogprobs> prompt_logprobs{};  // of those that have been read, from the second on

  std::vector<PrefixKey> prefix_keys{};  // of the context's whole blocks
  bool prompt_is_told = true;            // Request's

  std::shared_ptr<const Context> from{};  // whose cache it goes on from; may be null
  std::vector<SampledRow> sample_rows{};  // in this step: PrefillSlice::more_samples
  std::optional<RequestHandle> sample_of{};
  std::optional<CachePlan> plan_before{};  // the plan before the first of `shrinks`
  CacheSpec spec{};
  std::shared_ptr<const PlannedCache> under_pressure{};  // CheckedRequest
  std::string salt{};

  KeptSpace swapped{};   // its cache in the host's memory, while it waits to come back
  PrefixLease prefix{};  // while the prompt is being read
  PrefillCursor cursor{};
  std::vector<int32_t> keep{};  // of the turn that is being read: PrefillSlice::keep

  StepWork prompt_work{};            // of reading the prompt, as it was admitted
  std::optional<TimeUs> begin_by{};  // while it waits: else its first token comes too late
  struct {
    TimeUs admitted_at = 0;
    double us = 0;          // after that; 0: not known
    double allowed_us = 0;  // since it came
  } expected{};             // first token, when it was admitted

  TimeUs submitted_at = 0;
  std::optional<TimeUs> prefill_started_at{};  // the first time only
  std::optional<Absence> absence{};

  std::span<const TokenId> Prompt() const {
    return {tokens.data(), static_cast<size_t>(num_prompt_tokens)};
  }
  // What is to be read at once after all that has been seen; null: nothing is.
  const TokenRange* NextRead() const {
    for (const TokenRange& range : read_later) {
      if (range.begin == num_seen) return plan.AppendsRuns() ? &range : nullptr;
    }
    return nullptr;
  }
  // What prefill reads.
  std::span<const TokenId> PrefillTokens() const {
    if (const TokenRange* range = NextRead(); range != nullptr)
      return std::span(tokens).subspan(range->begin, range->end - range->begin);
    if (plan.ReadsProbe()) return probed;
    return {tokens.data(), static_cast<size_t>(num_context_tokens)};
  }
  // The first of these that is read: others are known from before.
  int32_t FirstToken() const {
    if (num_seen > 0) return 0;
    return prefix.tokens;
  }
  // Of the output, what its cache has seen. REQUIRES: it has seen the prompt
  std::span<const TokenId> SeenOutput() const {
    const int64_t seen = std::max<int64_t>(num_seen, num_prompt_tokens);
    return std::span(tokens).subspan(num_prompt_tokens, seen - num_prompt_tokens);
  }
  int64_t NumKnown() const { return static_cast<int64_t>(tokens.size()); }
  bool IsWaiting() const {
    return state == SequenceState::kWaiting || state == SequenceState::kPreempted;
  }
  // Its plan when the last turn has begun.
  CachePlan LargestPlan() const {
    CachePlan largest = plan;
    if (from != nullptr) largest.cap = largest_cap;
    return largest;
  }
  // All that it may come to hold is promised to it when it is admitted.
  bool IsPromised() const { return on_pressure == OnPressure::kNever; }
  // Others may own pages of its as well. No pages are promised for the copies that turns would ask
  // for, which cut heads or raise their caps.
  bool SharesPages() const {
    return on_pressure == OnPressure::kPreempt || (IsPromised() && from == nullptr);
  }
  bool IsSwapped() const { return !swapped.IsEmpty(); }
  // Whether its next row, or the end of its reading, draws a token that is not known yet, and all
  // tokens before that one are known.
  bool DrawsNext() const {
    const TokenRange* read = NextRead();
    const int64_t seen = read != nullptr                         ? read->end
                         : state == SequenceState::kPrefilling ? num_context_tokens
                                                                : num_seen + 1;
    return seen == NumKnown();
  }
  // What the cache is to be is known.
  bool IsSettled() const { return space.lengths_known && plan.open != OpenUntil::kPromptRead; }
  // The prompt is in its cache, or all but a last token that is decoded: where its samples are
  // forked.
  bool IsAtFork() const {
    if (state != SequenceState::kRunning || num_seen == 0) return false;
    return num_seen == num_prompt_tokens ||
           (num_seen + 1 == num_prompt_tokens && NextRead() == nullptr);
  }
  // Tokens can be sampled: not the last one is on its way, and nothing is to be read first.
  bool MayDecode() const {
    if (waits_for_mask || !IsSettled() || NextRead() != nullptr) return false;
    if (!samples.empty() && IsAtFork()) return false;
    // One whose cache is kept ends with all of its tokens known, and others may not draw the next
    // before they know the last: they do not run ahead.
    const bool waits = !keep_as.handle.empty() || (logits != nullptr && logits->NeedsOutput());
    if (waits && num_seen >= NumKnown()) return false;
    return num_seen + 1 < max_total_tokens;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SEQUENCE_H_
