// The scheduler's input to one engine step, and the step's results. Plain data; the engine decides
// nothing about memory: every block id, table row and length follows from this input.
//
// A step is a list of runs. A run is a range of consecutive tokens of one sequence, which lives in
// a slot (0 <= slot < max_num_seqs) from its SlotSetup until the scheduler reuses the slot:
//   - a prompt (Commit::kCompress), processed in parts, layer by layer. After the last part of a
//     layer the engine compresses the layer by the slot's CachePlan and writes the kept entries
//     into the pages that the table already names.
//   - a decoded token (Commit::kDecode), a run of one.
//   - a question or a conversation's next turn (Commit::kAppend), in parts like a prompt, where the
//     plan allows it (CachePlan::AppendsRuns): its tokens compete with the entries in the cache.
//   - tokens that may be rejected, such as a draft (Commit::kLater): they attend like an appended
//     run and write nothing, until a SlotCommit appends the first of them.
#ifndef HYDRANT_ENGINE_RUN_STEP_BATCH_H_
#define HYDRANT_ENGINE_RUN_STEP_BATCH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/offload_memory.h"
#include "engine/run/step/kept_entries.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/ops/edit_logits.h"
#include "kernels/ops/logprobs.h"
#include "kernels/ops/prefill_attention.h"
#include "kernels/ops/sample.h"

namespace hydrant {

inline constexpr TokenId kNoToken = std::numeric_limits<TokenId>::max();

// How a prompt's final hidden states are pooled into one vector.
enum class EmbeddingPooling : uint8_t { kNone, kLast, kMean };

// A row's mask that is computed during the step, on any thread.
class RowMask {
 public:
  virtual void Make() = 0;

 protected:
  ~RowMask() = default;
};

// A row of the step's runs that a token is sampled from, with its request's mask and biases. The
// sampled token has position `position` and follows the token before it in the run. Its pointers
// are valid during Enqueue().
struct SampledRow : SamplingRow {
  SampledRow() = default;
  SampledRow(const SamplingRow& row) : SamplingRow(row) {}  // NOLINT: no mask and no biases

  int run = 0;  // index in Batch::runs
  // The sampled token is the newest of the run's slot (kNoToken of a later run refers to it). At
  // most one row a slot.
  bool is_newest = true;
  // A bit per token, set if it is allowed (kernels/ops/edit_logits.h), for at most the vocabulary;
  // empty: all tokens are allowed. Valid once the masks in Batch::masks have been made.
  std::span<const uint32_t> mask = {};
  // At most kMaxBiases, at most one per token.
  std::span<const TokenBias> biases = {};
  // Requests StepResult::logprobs of the sampled token: from the model's own distribution, before
  // masks, biases, penalties and temperature.
  bool logprobs = false;
  // Requests StepResult::kept_entries of tokens [0, position), as the run's slot holds them after
  // the step. A GPU's step then waits for the device. REQUIRES: no rolling rule
  bool kept_entries = false;
};
inline constexpr int kMaxBiases = 1024;

// How the tokens of a run enter the slot's cache.
enum class Commit : uint8_t {
  kDecode,    // a single token, by the plan's decode rule
  kCompress,  // a new cache: each layer keeps the entries that the plan selects
  kAppend,    // the tokens compete with the cache's entries (kernels/ops/append_pages.h)
  kLater,     // nothing is written now; a SlotCommit may append the first tokens
};

// Work of a step on a run: tokens [token_begin, token_end) through layers [layer_begin, layer_end).
// Parts of a run come in order: all tokens of a layer before the next layer, so a part of several
// layers spans all tokens to compute.
struct RunPart {
  int layer_begin = 0;
  int layer_end = 0;
  int token_begin = 0;  // a multiple of kQueryTile
  int token_end = 0;    // a multiple of kQueryTile, or the end of the run
};

// Inputs and results of a prompt besides its tokens; the same in all parts. Spans are valid during
// Enqueue().
struct PromptRun {
  // The tokens that penalties count as the prompt, if the request has any.
  std::span<const TokenId> whole_prompt = {};
  bool penalties = false;
  // Shared prefill: other slots that build a cache from the same prefill, each by its own plan for
  // a prompt of the same length, to compare policies. They get the reports of a run of their own,
  // which follow those of the run's slot.
  std::span<const int32_t> sharing_slots = {};
  EmbeddingPooling pooling = EmbeddingPooling::kNone;
  // Requests StepResult::prompt_logprobs of whole_prompt's tokens, except the first.
  // REQUIRES: all of whole_prompt is prefilled as one prompt, and none of it is cached
  bool logprobs = false;

  // Tokens before this one are not computed: their data that the plan needs lies in cached_blocks.
  // A multiple of kPrefixBlockTokens; parts begin there instead of at 0.
  int first_token = 0;
  // Prefix blocks of the tokens before first_token, all that PrefixLayout::KeysBefore names.
  std::span<const int32_t> cached_blocks = {};
  // Prefix blocks to fill with data of the tokens from first_token on, as PrefixLayout::KeysFrom
  // names them, or the first part of that list; empty: nothing is cached. Each block is complete at
  // the end of the run. `checkpoints`: tokens at which sums are saved, ascending, above
  // first_token.
  std::span<const int32_t> new_blocks = {};
  std::span<const int32_t> checkpoints = {};

  // The first checkpoint after a token; the largest int32 where there is none.
  int32_t NextCheckpoint(int token) const {
    const auto next = std::upper_bound(checkpoints.begin(), checkpoints.end(), token);
    return next == checkpoints.end() ? std::numeric_limits<int32_t>::max() : *next;
  }
};

// Tokens behind the compressed prompt of a cache without caps: a question, or another turn of a
// conversation. They are scored as a prompt's are (PromptScorer::TurnScore), and the cache's entries
// add the new scores to the scores that they have. When the run has left the last layer, entries may
// be evicted. The span is valid during Enqueue().
struct TurnRun {
  int32_t scored_end = 0;  // entries of tokens from here on have no score yet
  // [heads of the budget group] entries that each head keeps of old and new, at least the protected
  // ones and at most all; heads that share a budget (CachePlan::share) put theirs together and share
  // them by score. StepResult::prompt_reports says how many each head then holds. Empty: all.
  // REQUIRES: no pages of the slot have another owner
  std::span<const int32_t> keep = {};
};

// Spans are valid during Enqueue(), and the same in all parts of a run.
struct TokenRun {
  int slot = 0;
  Commit commit = Commit::kDecode;
  bool in_prompt = false;  // the tokens are of the prompt; else they are output
  // All tokens of the run; after a prompt a probe where the plan scores by one. kNoToken, in a
  // decoded run: the slot's newest sampled token, which the host may not have received yet.
  std::span<const TokenId> tokens = {};
  int32_t first_position = 0;  // of the first token: the number of tokens that the cache has seen

  // Unused in a decoded run.
  RunPart part = {};
  int arena_begin = 0;               // offset of the run in the prefill arena, in tokens
  std::optional<TurnRun> turn = {};  // for kAppend
  PromptRun prompt = {};             // for kCompress

  int NumTokens() const { return static_cast<int>(tokens.size()); }
  bool IsDecoded() const { return commit == Commit::kDecode; }
  bool BuildsCache() const { return commit == Commit::kCompress; }
  bool CompactsTurn() const { return turn.has_value() && !turn->keep.empty(); }
  // Whether the part holds the first, or the last, tokens of its first layer.
  bool BeginsLayer() const { return part.token_begin == prompt.first_token; }
  bool EndsLayer() const { return part.token_end == NumTokens(); }
  bool Ends(int num_layers) const { return part.layer_end == num_layers && EndsLayer(); }
  // The logprobs of the successors of tokens [part.token_begin, this) are known after this part.
  int ScoredEnd(int num_layers) const {
    const int last = static_cast<int>(prompt.whole_prompt.size()) - 1;  // its successor is sampled
    if (!prompt.logprobs || part.layer_end < num_layers) return part.token_begin;
    return std::max(part.token_begin, std::min(part.token_end, last));
  }
  // Its own slot, then the sharing slots: the order of their reports.
  std::vector<int> Slots() const {
    std::vector<int> slots = {slot};
    slots.insert(slots.end(), prompt.sharing_slots.begin(), prompt.sharing_slots.end());
    return slots;
  }
};
inline constexpr std::array<TokenId, 1> kNewestToken = {kNoToken};  // TokenRun::tokens

// The engine applies the updates of caches first, then it processes the runs.
struct Batch : CacheUpdates {
  std::vector<TokenRun> runs;  // every slot at most once; decoded runs first
  // Rows to sample from: one of each decoded run, in the order of the runs, then rows of the other
  // runs that end in this step. A run that ends a prompt may have several, with other seeds, for
  // sequences without a slot yet, as many as there are slots that the batch does not name; a
  // kLater run may have one after each token. REQUIRES: rows of kLater runs have no penalties
  std::vector<SampledRow> sampled;
  // Made one after another before masks are read; complete when Enqueue() returns.
  std::vector<RowMask*> masks;

  // Updates count as work: each must reach the engine once.
  bool HasWork() const { return !runs.empty() || !list.empty(); }
  void Clear() {
    CacheUpdates::Clear();
    runs.clear();
    sampled.clear();
    masks.clear();
  }

  // The runs of one decoded token, and the other ones, which go through the arena.
  std::span<const TokenRun> Decoded() const { return std::span(runs).first(NumDecoded()); }
  std::span<const TokenRun> InArena() const { return std::span(runs).subspan(NumDecoded()); }
  size_t NumDecoded() const {
    return std::partition_point(runs.begin(), runs.end(),
                                [](const TokenRun& run) { return run.IsDecoded(); }) -
           runs.begin();
  }
  // Adds a row of the newest run.
  SampledRow& AddSampled(const SampledRow& row) {
    sampled.push_back(row);
    sampled.back().run = static_cast<int>(runs.size()) - 1;
    return sampled.back();
  }
};

// The state of a cache after its prompt was compressed, or after a compaction.
struct CacheReport {
  std::vector<int32_t> entries;  // [layers * KV heads] kept by each head; empty: as the plan says
  // For a prompt with unassigned pages: the pages of the first head, of the second, ... Empty: the
  // engine has no memory behind them, and any assignment will do.
  std::vector<PageIds> pages;
  // [layers * KV heads] the share of the attention of the prompt's last queries that falls on kept
  // entries (kernels/ops/retained_mass.h); empty: no entry was evicted.
  std::vector<float> retained_mass;
  // [n, layers * KV heads] observations of the scorer of an open plan (ResolveInputs::of_prompt).
  std::vector<float> observations;
};

struct StepResult {
  // [batch.sampled.size()] kNoToken where the logits held no finite value: then only that sequence
  // has failed.
  std::vector<TokenId> tokens;
  // [batch.runs.size()] pooled hidden states [hidden] of prompts that end and request them; empty
  // for other runs, and as a whole where no run does.
  std::vector<std::vector<float>> embeddings;
  // For sampled rows that request them.
  std::vector<TokenLogprobs> logprobs;
  std::vector<KeptEntries> kept_entries;  // the same
  // In the order of the runs: of the tokens that follow tokens [part.token_begin, ScoredEnd()).
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<CacheReport> prompt_reports;      // of the Slots() of each of batch.InArena()
  std::vector<CacheReport> compaction_reports;  // [batch.Count<SlotCompaction>()]
};

// The interface between scheduler and engine; the scheduler's tests implement it with a fake. Steps
// run one after another in the order of Enqueue(), so a page of one sequence in one step may belong
// to another sequence in the next.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const EngineLimits& limits() const = 0;
  // Host memory that SwapOut copies caches to, and SwapIn from; valid as long as the executor.
  virtual OffloadMemory offload_memory() const { return {}; }
  virtual PrefixMemory prefix_memory() const { return {}; }
  // Copies the data that it needs from the batch. A CPU backend does the work here.
  // REQUIRES: at most one step has not been collected.
  virtual void Enqueue(const Batch& batch) = 0;
  // Waits for the oldest step that has not been collected. An error means that the whole engine has
  // failed, not one sequence: nothing is in flight afterwards.
  virtual absl::Status Collect(StepResult* result) = 0;

  absl::Status Execute(const Batch& batch, StepResult* result) {
    Enqueue(batch);
    return Collect(result);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_BATCH_H_
