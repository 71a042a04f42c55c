// A request as the scheduler sees it, and its events. No tensor, no block id, no gRPC. Plain data.
#ifndef HYDRANT_SCHEDULER_REQUEST_H_
#define HYDRANT_SCHEDULER_REQUEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_plan.h"
#include "engine/run/step/batch.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/indirect.h"

namespace hydrant {

using TimeUs = int64_t;  // microseconds of a steady clock
// Identifies a sequence within the process, a request or one of its samples; never reused.
using RequestHandle = uint64_t;

inline constexpr size_t kMaxTenantBytes = 128;
inline constexpr int kMaxSamples = 64;           // of one request
inline constexpr int kMaxPriority = 1000;        // the least is -1000
inline constexpr size_t kMaxBadWords = 256;      // token sequences
inline constexpr size_t kMaxBadWordTokens = 64;  // of one

class CompiledGrammar;  // engine/text/grammar/grammar_compiler.h

struct SamplingParams {
  double temperature = 1.0;  // [0, 100]; 0: greedy
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  int32_t top_k = 0;         // 0 or -1: all
  double repetition_penalty =
      1.0;  // [0.001, 10]; divides the positive logits of tokens in prompt or output
  double presence_penalty = 0.0;   // [-2, 2]; subtracted from the logits of tokens in the output
  double frequency_penalty = 0.0;  // [-2, 2]; subtracted per occurrence
  std::optional<uint64_t> seed{};  // unset: drawn at submission
  // Report logprobs of the generated tokens, and of the prompt's (with the first sample). The
  // caller selects the number of top tokens to report.
  bool logprobs = false;
  bool prompt_logprobs = false;
  // Applied to the logits before penalties and temperature:
  std::map<TokenId, double> logit_bias{};            // added; [-100, 100], at most kMaxBiases
  std::vector<TokenId> allowed_token_ids{};          // only these are sampled; empty: all
  std::vector<std::vector<TokenId>> bad_words{};     // token sequences that must not occur
  std::shared_ptr<const CompiledGrammar> grammar{};  // of the text; null: none
};

struct StoppingParams {
  // As wide as the wire type, so that an error names the number that was sent.
  std::optional<int64_t> max_tokens{};  // >= 1; unset: until the text ends, or max_model_len
  int64_t min_tokens = 0;  // before, the ids that would end the text are not sampled, and stop
                           // strings do not match
  std::vector<std::string> stop{};  // strings, none empty
  std::vector<TokenId> stop_token_ids{};
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
};

// How the cache of a request is kept at its end, for others to continue.
struct KeepAs {
  std::string handle;      // empty: not kept
  int64_t created_at = 0;  // Unix time in seconds
  int64_t expires_at = 0;  // Unix time in seconds; 0: never
  bool pinned = false;     // not evicted for others
};

// Latency targets of a request, which is refused if they cannot be met. Unset: the
// server's targets.
struct Slo {
  std::optional<TimeUs> ttft_us{};  // from its arrival to its first token
  std::optional<TimeUs> tpot_us{};  // from one token to the next, on average
};

// Treatment of a request's cache when the pool is full and other sequences need pages.
enum class OnPressure : uint8_t {
  kPreempt,  // not compacted; the whole request may be preempted, and later resumes unchanged
  // May be compacted below its budget before any request is preempted. It shares no pages.
  // REQUIRES: the request continues no context and is not kept
  kEvict,
  // Never compacted or preempted: the request is admitted when all pages that it may need can be
  // reserved. REQUIRES: max_tokens or its cache plan bounds them
  kNever,
};

struct Context;  // scheduler/context.h

// Tokens [size - begin, size - end) of a prompt of `size` tokens.
struct AskedTokens {
  int64_t begin = 0;
  int64_t end = 0;
};

struct Request {
  std::string request_id;  // unique among the live requests of its owner
  // Namespace of request_id. "": shared by all requests without an owner.
  std::string owner;
  std::vector<TokenId> prompt;
  std::vector<TokenId>
      resume_token_ids;  // already delivered by a broken stream; replayed, not sent again
  CacheSpec cache;
  // The number of the prompt's last tokens that are its question: the cache is compressed without
  // them, then they are prefilled.
  int64_t question_tokens = 0;
  // Whether the prefix cache is used for this prompt, and its blocks are added to it; only among
  // requests of the same salt.
  bool prefix_caching = true;
  std::string cache_salt;
  // Whether the prompt's blocks, and thereby its tokens, are published in KV events
  // (scheduler/kv_events.h).
  bool publish_kv_events = true;
  // Handle of the context to continue; empty: none. The prompt is the continuation, or the whole
  // conversation, which begins with the context's tokens.
  std::string context;
  // The context of this handle as last seen; used if it has been evicted since.
  std::shared_ptr<const Context> seen_context;
  bool whole_conversation = false;
  // If the prompt is messages after the context: the tokens that end an answer. The tokens that the
  // context lacks are inserted before the prompt (MissingEnd).
  std::vector<TokenId> answer_end;
  bool find_context = false;  // use the longest context that the prompt continues
  // At most as many tokens of the context are read again before `asked` (scheduler/recall.h).
  int64_t recall_tokens = 0;
  std::optional<AskedTokens> asked{};  // a message's text without its template; unset: the prompt
  int32_t recalled_tokens = 0;         // set by Recall()
  KeepAs keep_as;
  // Nothing is generated: the request ends after its prefill. REQUIRES: max_tokens is 1, nothing
  // is resumed
  bool prefill_only = false;
  std::shared_ptr<const Context>
      from;  // set by ContextDirectory::Resolve: `prompt` begins with its tokens
  SamplingParams sampling;
  // The request of which this is another sample, added right before: all but the seed is equal. The
  // prompt is prefilled once for all samples.
  std::optional<RequestHandle> sample_of;
  StoppingParams stopping;
  bool skip_special_tokens = true;
  bool report_kept_entries = false;  // PromptEntries, with the first sample
  std::optional<TimeUs> deadline;
  Slo slo;
  int32_t priority = 0;  // lower ones are scheduled first, and preempted last
  std::string tenant;    // tenants with waiting requests share the machine by their weights
  OnPressure on_pressure = OnPressure::kPreempt;
  // The request ends with the prompt's hidden states (Finished::embedding) after its prefill,
  // without generated tokens. REQUIRES: max_tokens is 1, nothing is resumed
  EmbeddingPooling pooling = EmbeddingPooling::kNone;
};

// Retained mass: the share of the attention of a prompt's last queries that falls on entries kept
// when it was compressed, over all heads of all layers.
struct RetainedMass {
  float mean = 1.0f;
  float minimum = 1.0f;
  float p10 = 1.0f;  // a tenth of the heads retain at most this
};

// An interval in which a sequence was swapped out or preempted.
struct PreemptionInterval {
  TimeUs after_us = 0;   // start, after submitted_at
  TimeUs us = 0;         // how long
  bool swapped = false;  // swapped out to host memory; else preempted, its cache dropped
};

inline constexpr size_t kMaxPreemptionIntervals = 32;  // reported one by one

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;   // including resumed ones
  int32_t preemptions = 0;         // times that its cache was dropped and recomputed
  int32_t kv_tokens_kept = 0;      // entries of the fullest KV head at the end, among layers
                                   // without a window if there are any
  int32_t kv_tokens_evicted = 0;   // tokens seen minus entries kept, for the same head
  double kv_tokens_kept_mean = 0;  // mean over these KV heads
  double kv_tokens_evicted_mean = 0;
  int64_t kv_bytes = 0;          // bytes of the pages held at the end, all layers and heads
  int64_t kv_bytes_of_full = 0;  // bytes of the pages of a full cache of the same tokens
  int32_t cached_tokens = 0;     // prompt tokens not prefilled, from the prefix cache or a context
  // Prompt tokens that were prefilled although cached, because the cache policy needs
  // their queries.
  int32_t reread_tokens = 0;
  int32_t recalled_tokens = 0;       // prompt tokens that repeat passages of the context
  int32_t probe_tokens = 0;          // tokens of the second pass that scores the prompt's entries
  int64_t kv_entries_of_prompt = 0;  // kept when the prompt was compressed, all layers and heads
  int64_t kv_window_entries_of_prompt = 0;      // the part in layers with a window
  int64_t kv_pages_of_prompt = 0;               // held for these entries
  std::optional<RetainedMass> retained_mass{};  // unset: no entry was evicted after the prefill
  int32_t heads_kept_whole = 0;                 // heads kept whole because of min_retained_mass
  PolicyReport policy_report{};                 // decisions of the cache policy
  // The policy of the sequence's cache; with a context the context's. Empty: no cache was planned.
  std::string policy{};
  // The policy used instead of `full` for lack of room (SchedulerOptions::policy_under_pressure);
  // empty: none.
  std::string compressed_by{};
  int64_t kv_pages_peak = 0;  // peak of pages held, all layers and heads
  double kv_pages_mean = 0;   // mean of pages held, over the time in which it held any
  int32_t shrinks = 0;  // times that its cache was compacted because other sequences needed pages
  int32_t swaps = 0;    // times that its cache was swapped out to host memory and back
  TimeUs submitted_at = 0;
  TimeUs queue_us = 0;    // submission to the first prefill work
  TimeUs prefill_us = 0;  // first prefill work to the first token
  TimeUs decode_us = 0;   // first token to the end
  // The parts of these three times in which it held no pages:
  TimeUs swapped_us = 0;    // swapped out to host memory
  TimeUs preempted_us = 0;  // preempted, waiting to recompute its cache
  std::vector<PreemptionInterval>
      // the first kMaxPreemptionIntervals such intervals; of samples the first's
      preemption_intervals{};
};

struct Progress {
  int32_t queue_position = 0;      // 0: in prefill
  int32_t prompt_tokens_done = 0;  // scaled by layers
  int32_t prompt_tokens = 0;
  std::string compressed_by{};  // as Usage::compressed_by
};
// Logprobs of the prompt's tokens except the first, in order; sent after the prefill.
struct PromptLogprobs {
  std::vector<TokenLogprobs> tokens;
};
// The prompt's entries in the cache when the first token was sampled; sent before it.
struct PromptEntries {
  KeptEntries kept;
  std::vector<std::string> token_texts;  // of the prompt; bytes, possibly parts of characters
};
struct Delta {
  std::optional<TokenId> token_id{};
  std::string text{};                                 // whole UTF-8 characters
  std::optional<Indirect<TokenLogprobs>> logprobs{};  // of token_id, if requested
};
enum class FinishReason : uint8_t { kStop, kLength };
struct Finished {
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop{};                 // the stop string, if one matched
  std::optional<TokenId> matched_token_id{};  // the end or stop token id, if one matched
  Indirect<Usage> usage{};
  std::vector<float> embedding{};            // [hidden], if requested
  std::shared_ptr<const Context> context{};  // set if the cache was kept
};
// The stream ends with an error. reason is a stable identifier: CANCELLED, DEADLINE,
// QUEUE_FULL, OVERLOADED, NEVER_FITS, DUPLICATE_REQUEST_ID, UNKNOWN_CONTEXT, INVALID, DRAINING,
// LOADING, ENGINE_FAULT.
struct Failed {
  absl::Status status;
  std::string reason;
  TimeUs retry_after_us = 0;  // 0: do not retry
  Indirect<Usage> usage{};
};

// Exactly one Finished or Failed ends a request, or each of its samples; nothing follows it. Small,
// because most events of a step are tokens.
struct Event {
  RequestHandle handle = 0;
  std::variant<Progress, Delta, Finished, Failed, PromptLogprobs, Indirect<PromptEntries>> what;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_REQUEST_H_
