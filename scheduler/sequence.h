// A request, or one of its samples, in the scheduler. Plain data in groups; owned by SequenceTable,
// changed by the scheduler's thread alone.
#ifndef HYDRANT_SCHEDULER_SEQUENCE_H_
#define HYDRANT_SCHEDULER_SEQUENCE_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prefix_cache.h"
#include "engine/run/step/batch.h"
#include "kernels/check.h"
#include "scheduler/context.h"
#include "scheduler/logits_processor.h"
#include "scheduler/output_processor.h"
#include "scheduler/page_occupancy.h"
#include "scheduler/phase.h"
#include "scheduler/prefill_planner.h"
#include "scheduler/request.h"
#include "scheduler/request_check.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

// Order of the queue: one priority level is worth 60 s of waiting, which prevents starvation.
struct QueueOrder {
  static constexpr TimeUs kLevelUs = 60'000'000;

  TimeUs arrived_at = 0;  // plus priority * kLevelUs
  uint64_t arrival = 0;   // order of Add
  auto operator<=>(const QueueOrder&) const = default;
};

// A compaction that made room for others. A sequence that reads its prompt again is compacted again
// there.
struct ShrinkAt {
  int64_t tokens = 0;  // seen
  int32_t mean = 0;    // entries a head, on average
};

// A time in which others have the sequence's pages.
struct Preemption {
  TimeUs since = 0;
  bool swapped = false;  // its cache is in host memory; else it was released
};

struct Tenant;  // scheduler/fair_queue.h

// Tokens, and how far the cache has seen them.
struct SequenceProgress {
  int32_t num_prompt_tokens = 0;
  int32_t num_context_tokens = 0;  // of the prompt: they are compressed; a question follows
  int32_t num_resumed = 0;         // output tokens that a broken stream had delivered
  int64_t max_total_tokens = 0;    // prompt and output
  int64_t num_seen = 0;            // tokens with entries in the cache after the scheduled steps
  int64_t num_done = 0;            // the same after the steps that have returned
  bool prefilled = false;          // the whole prompt, once
  std::vector<TokenId> tokens{};   // known: the prompt, then the output
  // Ranges behind the compressed prompt that are read at once when they are reached, in order
  // (Context::append_ranges).
  std::vector<TokenRange> append_ranges{};
  PrefillCursor cursor{};
  std::vector<TokenId> probed{};  // context and probe, for a plan that reads both

  int64_t NumKnown() const { return static_cast<int64_t>(tokens.size()); }
  std::span<const TokenId> Prompt() const {
    return {tokens.data(), static_cast<size_t>(num_prompt_tokens)};
  }
  // REQUIRES: the cache has seen the prompt
  std::span<const TokenId> SeenOutput() const {
    const int64_t seen = std::max<int64_t>(num_seen, num_prompt_tokens);
    return std::span(tokens).subspan(num_prompt_tokens, seen - num_prompt_tokens);
  }
};

// The cache: its plan, and its pages in the pool or in host memory.
struct SequenceCache {
  SequenceBlocks blocks{};
  std::vector<ShrinkAt> shrinks{};
  size_t num_shrunk = 0;  // of `shrinks`, those that this cache has undergone
  CachePlan plan;
  bool plan_is_new = false;                // the engine has not been told of it yet
  std::optional<CachePlan> plan_before{};  // the plan before the first of `shrinks`
  CacheSpec spec{};
  OffloadedCache swapped{};     // in host memory, while kSwapped
  PrefixLease prefix{};         // while the prompt is being read
  std::vector<int32_t> keep{};  // of the turn that is being read: TurnRun::keep

  bool IsSettled() const {
    return blocks.lengths_known && plan.resolve_at != ResolveAt::kPrefilled;
  }
};

// Sampling and text.
struct SequenceOutput {
  SampledRow sampling;                        // without position, mask and biases
  std::unique_ptr<LogitsProcessor> logits{};  // null: no constraint on single tokens
  OutputProcessor text;
  bool kept_entries_sent = false;
  bool waits_for_mask = false;  // for a grammar mask that takes longer than a step may wait
  std::vector<TokenLogprobs> prompt_logprobs{};  // of prompt tokens read so far, from the second on
};

// Latency targets: the work of the prompt, and when it must begin.
struct SequenceLatency {
  StepWork prompt_work{};            // of reading the prompt, as it was admitted
  std::optional<TimeUs> begin_by{};  // while it waits: later, its first token would be late
  struct {
    TimeUs admitted_at = 0;
    double us = 0;          // after that; 0: not known
    double allowed_us = 0;  // since its arrival
  } expected{};             // first token, when it was admitted
};

// Times and usage that the client is told.
struct SequenceAccount {
  PageOccupancy page_occupancy{};
  std::optional<TimeUs> first_token_at{};
  TimeUs last_event_at = 0;  // last event to the client
  Usage usage{};
  TimeUs submitted_at = 0;
  std::optional<TimeUs> prefill_started_at{};  // the first time only
  std::optional<Preemption> preemption{};
};

// Facts of the request; constant after SequenceTable::Add(), except fallback_plan's effect on its
// samples.
struct SequenceRequest {
  std::string request_id{};
  QueueOrder order{};
  std::optional<TimeUs> deadline{};
  Slo slo{};
  int32_t priority = 0;
  OnPressure on_pressure = OnPressure::kPreempt;
  int32_t largest_cap = kNoCap;  // CheckedRequest's
  EmbeddingPooling pooling = EmbeddingPooling::kNone;
  bool prefill_only = false;  // Request::prefill_only
  bool wants_prompt_logprobs = false;
  bool wants_kept_entries = false;
  bool publish_kv_events = true;          // Request's
  std::vector<PrefixKey> prefix_keys{};   // of the context's whole blocks
  std::shared_ptr<const Context> from{};  // whose cache it continues; may be null
  std::optional<RequestHandle> sample_of{};
  KeepAs keep_as{};
  std::shared_ptr<const PromptPlan> fallback_plan{};  // CheckedRequest
  std::string salt{};
};

struct Sequence {
  // Members that every step reads come first: the data of thousands of sequences is not in the CPU
  // caches.
  RequestHandle handle = 0;
  Phase phase = Phase::kWaiting;
  SequenceProgress progress{};
  SequenceCache cache;
  SequenceOutput output;
  SequenceAccount account{};
  // Other samples of its prompt that wait until it has been read; they are forked from this
  // sequence, or leave the list to read it themselves.
  std::vector<RequestHandle> samples{};
  SequenceLatency latency{};
  SequenceRequest request{};
  Tenant* tenant = nullptr;

  void MoveTo(Phase to) {
    HYDRANT_CHECK(MayMove(phase, to));
    phase = to;
  }
  bool IsWaiting() const { return IsQueued(phase); }
  bool IsSwapped() const { return phase == Phase::kSwapped; }
  bool HasEnded() const { return phase == Phase::kEnded; }
  // Its prompt is in its cache, and it decodes in this step or the next.
  bool IsDecoding() const { return phase == Phase::kRunning || phase == Phase::kResuming; }

  // The range that is to be read at once after all that has been seen; null: none.
  const TokenRange* NextAppend() const {
    for (const TokenRange& range : progress.append_ranges) {
      if (range.begin == progress.num_seen) return cache.plan.AppendsRuns() ? &range : nullptr;
    }
    return nullptr;
  }
  // The tokens that prefill reads.
  std::span<const TokenId> PrefillTokens() const {
    const std::span<const TokenId> tokens = progress.tokens;
    if (const TokenRange* range = NextAppend(); range != nullptr)
      return tokens.subspan(range->begin, range->end - range->begin);
    if (cache.plan.ReadsProbe()) return progress.probed;
    return tokens.first(static_cast<size_t>(progress.num_context_tokens));
  }
  // The first of PrefillTokens() that is read; those before it are in prefix blocks.
  int32_t FirstToken() const { return progress.num_seen > 0 ? 0 : cache.prefix.tokens; }
  // Tokens seen when PrefillTokens() have been read. A probe leaves nothing.
  int64_t SeenAfterPrefill() const {
    const TokenRange* read = NextAppend();
    return read != nullptr ? read->end : progress.num_context_tokens;
  }
  // Prompt tokens read so far. Layers count alike; a reading that is longer than the prompt counts
  // as the prompt.
  int64_t PromptTokensRead(int num_layers) const;

  // The run of the range that is being read, if its tokens are scored for a later turn's
  // compaction: the cache continues a context, or becomes one.
  std::optional<TurnRun> Turn() const;
  // Its plan when the last turn has begun.
  CachePlan LargestPlan() const {
    CachePlan largest = cache.plan;
    if (request.from != nullptr) largest.cap = request.largest_cap;
    return largest;
  }
  // All pages that it may come to hold are reserved when it is admitted.
  bool IsGuaranteed() const { return request.on_pressure == OnPressure::kNever; }
  // Others may own its pages too. No pages are reserved for the copies that turns ask for, which
  // compact heads or raise their caps.
  bool SharesPages() const {
    return request.on_pressure == OnPressure::kPreempt ||
           (IsGuaranteed() && request.from == nullptr);
  }
  // Whether its next row, or the end of its reading, draws a token that is not known yet, and all
  // tokens before that one are known.
  bool DrawsNext() const;
  // Whether the row that samples the token at `position` reports the prompt's entries: it draws the
  // first token. A sequence that reads its prompt again may have reported them.
  bool ReportsKeptEntries(int64_t position) const {
    return request.wants_kept_entries && !output.kept_entries_sent &&
           position == progress.num_prompt_tokens;
  }
  // The prompt is in its cache, or all but a last token that is decoded: samples fork here.
  bool IsAtFork() const;
  // Tokens can be sampled: the last one is not on its way, and nothing is to be read first.
  bool MayDecode() const;
};

// The sequence of a checked request: its tokens, with those of a resumed stream, and its plan.
// `arrival`: order of arrival.
std::unique_ptr<Sequence> MakeSequence(RequestHandle handle, CheckedRequest checked, TimeUs now,
                                       uint64_t arrival, const Tokenizer& tokenizer);

// No head of the sequence will hold more than is known now, unless another turn follows: pages that
// were reserved beyond that are free for others.
inline void TrimReservation(Sequence* sequence, KvCacheManager* kv_cache) {
  if (sequence->request.from == nullptr) kv_cache->TrimReservation(&sequence->cache.blocks);
}

// The context that a finished sequence leaves. REQUIRES: keep_as has a handle
std::shared_ptr<const Context> ContextOf(const Sequence& sequence);

// The tokens of a context, then its probe; empty without a probe.
std::vector<TokenId> WithProbe(const SequenceProgress& progress, const std::vector<TokenId>& probe);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SEQUENCE_H_
