// A request as the scheduler sees it, and the events it answers with. No tensor, no block id, no
// gRPC. Plain data.
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
// Names a sequence inside the process, a request or one of its samples; never reused.
using RequestHandle = uint64_t;

inline constexpr size_t kMaxTenantBytes = 128;
inline constexpr int kMaxSamples = 64;           // of one request
inline constexpr int kMostPriority = 1000;       // and the least is -1000
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
  double presence_penalty = 0.0;   // [-2, 2]; off the logits of tokens in the output
  double frequency_penalty = 0.0;  // [-2, 2]; so for each time that they are there
  std::optional<uint64_t> seed{};  // unset: drawn at submission
  // Logprobs of the tokens that are generated, and of the prompt's, which the first sample tells.
  // How many of the first in rank are told is the business of who asks.
  bool logprobs = false;
  bool prompt_logprobs = false;
  // Before penalties and temperature, to the logits:
  std::map<TokenId, double> logit_bias{};            // added; [-100, 100], at most kMostBiases
  std::vector<TokenId> allowed_token_ids{};          // no others are drawn; empty: all are
  std::vector<std::vector<TokenId>> bad_words{};     // tokens that never follow each other
  std::shared_ptr<const CompiledGrammar> grammar{};  // that the text follows; null: none
};

struct StoppingParams {
  // Wide enough for what a client can send, so that an error names the number that was sent.
  std::optional<int64_t> max_tokens{};  // >= 1; unset: to the end of the text or of max_model_len
  int64_t min_tokens = 0;  // before so many nothing ends the text: what would is not drawn, and
                           // stop strings do not match
  std::vector<std::string> stop{};  // strings, none empty
  std::vector<TokenId> stop_token_ids{};
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
};

// How the cache of a request that ends is kept for others to go on from.
struct KeepAs {
  std::string handle;      // empty: it is not
  int64_t created_at = 0;  // Unix time in seconds
  int64_t expires_at = 0;  // the same; 0: never
  bool pinned = false;     // it does not leave for others
};

// Latencies that a request is to keep; it is refused where it cannot. Unset: the server's targets.
struct Slo {
  std::optional<TimeUs> ttft_us{};  // from its arrival to its first token
  std::optional<TimeUs> tpot_us{};  // from one token to the next, on average
};

// What may happen to a request's cache when the pool is used up and others need pages.
enum class OnPressure : uint8_t {
  kPreempt,  // nothing, until the whole request is preempted: then it comes back as it was
  // It may be cut to less than it may hold before anybody is preempted. It shares no pages.
  // REQUIRES: the request goes on from no context and is not kept
  kEvict,
  // Nothing: the request is admitted when all that it may come to hold can be promised to it.
  // REQUIRES: that is bounded by max_tokens or by its cache plan
  kNever,
};

struct Context;  // scheduler/context.h

struct Request {
  std::string request_id;  // unique among the live ones of its owner
  // Of the request's id: nobody else's request has it. "": of all that have no owner.
  std::string owner;
  std::vector<TokenId> prompt;
  std::vector<TokenId>
      resume_token_ids;  // tokens a broken stream had already delivered; replayed, not sent again
  CacheSpec cache;
  // The prompt's last tokens, which the cache does not know of when it compresses what comes before
  // them; then they are read, too.
  int64_t question_tokens = 0;
  // Whether what was read of a prompt that begins alike is used, and what is read of this one kept;
  // only among requests of the same salt.
  bool prefix_caching = true;
  std::string cache_salt;
  // Whoever listens to what becomes of prefix blocks (scheduler/kv_events.h) hears of this
  // prompt's, and so reads its tokens.
  bool prompt_is_told = true;
  // A context that it goes on from, by its handle; empty: none. The prompt is what follows it, or
  // the whole conversation, which begins with the context's tokens.
  std::string context;
  // The context of this handle, as it was seen just now: it counts where it has left since.
  std::shared_ptr<const Context> seen_context;
  bool whole_conversation = false;
  // Where the prompt is messages that follow the context: what ends an answer, of which as much
  // comes between as the context lacks, where it ends in one.
  std::vector<TokenId> answer_end;
  bool find_context = false;  // the longest that the prompt continues, where there is one
  KeepAs keep_as;
  // Nothing is generated: the request ends when its prompt has been read. REQUIRES: max_tokens is
  // 1, nothing is resumed
  bool only_reads = false;
  std::shared_ptr<const Context>
      from;  // ContextDirectory::Resolve: `prompt` begins with its tokens
  SamplingParams sampling;
  // A request that was added right before, of which this is another sample: all but the seed is the
  // same. Its prompt is read once for all of them.
  std::optional<RequestHandle> sample_of;
  StoppingParams stopping;
  bool skip_special_tokens = true;
  std::optional<TimeUs> deadline;
  Slo slo;
  int32_t priority = 0;  // lower ones go first, and are preempted last
  std::string tenant;    // whose it is: tenants that wait get shares by their weights
  OnPressure on_pressure = OnPressure::kPreempt;
  // The request ends with the prompt's hidden states (Finished::embedding) when that has been read:
  // no token follows. REQUIRES: max_tokens is 1, nothing is resumed
  EmbeddingPooling pooling = EmbeddingPooling::kNone;
};

// Of the attention of a prompt's last queries, the share that falls on entries that stayed
// when it was compressed, over all heads of all layers.
struct RetainedMass {
  float mean = 1.0f;
  float minimum = 1.0f;
  float p10 = 1.0f;  // a tenth of the heads retain no more
};

// A time in which others had a sequence's room.
struct TimeAway {
  TimeUs after_us = 0;   // submitted_at
  TimeUs us = 0;         // how long
  bool swapped = false;  // its cache was in the host's memory; else it was lost
};

inline constexpr size_t kMostTimesAway = 32;  // that are told one by one

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;   // resumed ones included
  int32_t preemptions = 0;         // times that it lost its cache, and had to read its prompt again
  int32_t kv_tokens_kept = 0;      // entries of the fullest KV head at the end, of the layers
                                   // without a window where there are such
  int32_t kv_tokens_evicted = 0;   // tokens seen minus entries kept, of the same head
  double kv_tokens_kept_mean = 0;  // mean over these KV heads
  double kv_tokens_evicted_mean = 0;
  int64_t kv_bytes = 0;          // of the pages held at the end, all layers and heads
  int64_t kv_bytes_of_full = 0;  // of the pages that a full cache of the same tokens would hold
  int32_t cached_tokens = 0;     // of the prompt, not read: another had read them
  // The same that were read all the same, because the cache policy asks their queries.
  int32_t reread_tokens = 0;
  int32_t probe_tokens = 0;          // read beside the prompt, to score its entries
  int64_t kv_entries_of_prompt = 0;  // kept when the prompt was compressed, all layers and heads
  int64_t kv_window_entries_of_prompt = 0;      // of these, in layers with a window
  int64_t kv_pages_of_prompt = 0;               // held for all of these
  std::optional<RetainedMass> retained_mass{};  // unset: nothing left when the prompt was read
  int32_t heads_kept_whole = 0;  // where min_retained_mass made a head keep its whole prompt
  PolicyReport policy_report{};  // what the cache policy decided by itself
  // The policy that it was admitted by instead of `full`, for want of room (SchedulerOptions::
  // policy_under_pressure); empty: it has the one that it asked for.
  std::string compressed_by{};
  int64_t kv_pages_peak = 0;  // most pages held at once, all layers and heads
  double kv_pages_mean = 0;   // the same on average, over the time in which it held any
  int32_t shrinks = 0;        // times that its cache was cut because others needed the room
  int32_t swaps = 0;          // times that its cache left for the host's memory and came back
  TimeUs submitted_at = 0;
  TimeUs queue_us = 0;    // submission to the first prefill work
  TimeUs prefill_us = 0;  // first prefill work to the first token
  TimeUs decode_us = 0;   // first token to the end
  // Of these three, the time in which others had its room:
  TimeUs swapped_us = 0;         // its cache was in the host's memory
  TimeUs preempted_us = 0;       // it had lost its cache, and waited to read its prompt again
  std::vector<TimeAway> away{};  // these times, the first kMostTimesAway; of samples the first's
};

struct Progress {
  int32_t queue_position = 0;      // 0: being read
  int32_t prompt_tokens_done = 0;  // scaled by layers
  int32_t prompt_tokens = 0;
  std::string compressed_by{};  // Usage::compressed_by
};
// Of the prompt's tokens but the first, in their order; comes when it has been read.
struct PromptLogprobs {
  std::vector<TokenLogprobs> tokens;
};
struct Delta {
  std::optional<TokenId> token_id{};
  std::string text{};                                 // whole UTF-8 characters
  std::optional<Indirect<TokenLogprobs>> logprobs{};  // of token_id, where they were asked for
};
enum class FinishReason : uint8_t { kStop, kLength };
struct Finished {
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop{};                 // the stop string, if one matched
  std::optional<TokenId> matched_token_id{};  // the end or stop token id, if one matched
  Indirect<Usage> usage{};
  std::vector<float> embedding{};            // [hidden], where it was asked for
  std::shared_ptr<const Context> context{};  // where the cache was kept
};
// The stream ends with an error. reason is a stable word for machines: CANCELLED, DEADLINE,
// QUEUE_FULL, OVERLOADED, NEVER_FITS, DUPLICATE_REQUEST_ID, UNKNOWN_CONTEXT, INVALID, DRAINING,
// LOADING, ENGINE_FAULT.
struct Failed {
  absl::Status status;
  std::string reason;
  TimeUs retry_after_us = 0;  // 0: do not retry
  Indirect<Usage> usage{};
};

// Exactly one Finished or Failed ends a request, or each of its samples; nothing follows it. Small:
// most of a step's are tokens.
struct Event {
  RequestHandle handle = 0;
  std::variant<Progress, Delta, Finished, Failed, PromptLogprobs> what;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_REQUEST_H_
