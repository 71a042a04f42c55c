// The scheduler's input to one engine step, and the step's results. Plain data; the engine decides
// nothing about memory: every block id, table row and length follows from this input.
//
// A sequence lives in a slot (0 <= slot < max_num_seqs) from its SlotSetup until the scheduler
// reuses the slot. Its prompt is prefilled layer by layer (PrefillSlice); after the last slice of a
// layer the engine compresses the layer by the slot's CachePlan and writes the kept entries into
// the pages that the table already names. Then it decodes, one row a step. Later tokens, such as a
// question or a conversation's next turn, are prefilled in slices again where the plan allows it
// (CachePlan::AppendsRuns), and compete with the entries in the cache.
#ifndef HYDRANT_ENGINE_RUN_STEP_BATCH_H_
#define HYDRANT_ENGINE_RUN_STEP_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/kept_memory.h"
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

// A row that a token is sampled from, with its request's mask and biases. Its pointers are valid
// during Enqueue().
struct SampledRow : SamplingRow {
  SampledRow() = default;
  SampledRow(const SamplingRow& row) : SamplingRow(row) {}  // NOLINT: no mask and no biases

  // A bit per token, set if it is allowed (kernels/ops/edit_logits.h), for at most the vocabulary;
  // empty: all tokens are allowed. Valid once the masks in Batch::masks have been made.
  std::span<const uint32_t> mask = {};
  // At most kMostBiases, at most one per token.
  std::span<const TokenBias> biases = {};
  // Requests StepResult::logprobs of the sampled token: from the model's own distribution, before
  // masks, biases, penalties and temperature.
  bool logprobs = false;
};
inline constexpr int kMostBiases = 1024;

// Work on one prompt: tokens [token_begin, token_end) through layers [layer_begin, layer_end).
// Slices of a prompt come in order: all tokens of a layer before the next layer, so a slice of
// several layers spans all tokens to prefill.
struct PrefillSlice {
  int slot = 0;
  // All tokens of the prefill: the plan's prompt, then a probe where the plan scores by one. Valid
  // during Enqueue().
  std::span<const TokenId> prompt;
  int arena_begin = 0;  // offset of the prompt in the prefill arena, in tokens
  int layer_begin = 0;
  int layer_end = 0;
  int token_begin = 0;  // a multiple of kQueryTile
  int token_end = 0;    // a multiple of kQueryTile, or the end of the prompt
  SampledRow sampling;  // the same in all slices; a token is sampled when the slice ends the prompt
  // In a slice that ends the prompt: further samples from the same logits, for sequences without a
  // slot yet. Valid as long as `prompt`. A batch has at most as many as there are slots that it
  // does not name.
  std::span<const SampledRow> more_samples = {};
  // The tokens that penalties count as the prompt; valid as long as `prompt`.
  std::span<const TokenId> whole_prompt = {};
  // Shared prefill: other slots that build a cache from the same prefill, each by its own plan for
  // a prompt of the same length, to compare policies. They get the results of a slice of their own,
  // except a sampled token; their reports follow the slice's own. The same in all slices; valid as
  // long as `prompt`.
  std::span<const int> sharing_slots = {};
  EmbeddingPooling pooling = EmbeddingPooling::kNone;  // the same in all slices
  // Requests StepResult::prompt_logprobs of whole_prompt's tokens, except the first. The same in
  // all slices.
  // REQUIRES: all of whole_prompt is prefilled as one prompt, and none of it is cached
  bool prompt_logprobs = false;
  // Tokens before this one are not computed: their data that the plan needs lies in cached_blocks.
  // A multiple of kPrefixBlockTokens; slices begin there instead of at 0. The same in all slices.
  int first_token = 0;
  // Prefix blocks of the tokens before first_token, all that PrefixLayout::KeysBefore names.
  std::span<const int32_t> cached_blocks = {};
  // Prefix blocks to fill with data of the tokens from first_token on, as PrefixLayout::KeysFrom
  // names them, or the first part of that list; empty: nothing is cached. Each block is complete at
  // the end of the prefill. `checkpoints`: tokens at which sums are saved, ascending, above
  // first_token. All valid as long as `prompt`, and the same in all slices.
  std::span<const int32_t> new_blocks = {};
  std::span<const int32_t> checkpoints = {};

  // Tokens that the slot's cache has seen; 0: the slice builds a new cache. Otherwise its tokens
  // follow them: they attend to the remaining entries and to each other, and each layer keeps as
  // many of both as it may hold (kernels/ops/append_pages.h). Nothing is reported then. The same in
  // all slices. REQUIRES, above 0: the plan appends runs; no other slots share it, no blocks are
  // named and nothing is pooled.
  int32_t num_seen = 0;

  // For a slice that appends: [heads of the budget group] entries that each head keeps of its old
  // and new entries, ranked by attention from the run's last kMassQueries queries; at most all
  // entries, at least the protected ones. Empty: as many as its cap allows. Valid as long as
  // `prompt`, and the same in all slices. REQUIRES: no pages of the slot have another owner
  std::span<const int32_t> keep = {};

  bool Appends() const { return num_seen > 0; }
  // The logprobs of the successors of tokens [token_begin, this) are known after this slice.
  int ScoredEnd(int num_layers) const {
    const int last = static_cast<int>(whole_prompt.size()) - 1;  // its successor is sampled
    if (!prompt_logprobs || layer_end < num_layers) return token_begin;
    return std::max(token_begin, std::min(token_end, last));
  }
  // Its own slot, then sharing_slots: the order of their reports.
  std::vector<int> Slots() const {
    std::vector<int> slots = {slot};
    slots.insert(slots.end(), sharing_slots.begin(), sharing_slots.end());
    return slots;
  }

  // The first checkpoint after a token; the largest int32 where there is none.
  int32_t NextCheckpoint(int token) const {
    const auto next = std::upper_bound(checkpoints.begin(), checkpoints.end(), token);
    return next == checkpoints.end() ? std::numeric_limits<int32_t>::max() : *next;
  }
  // Whether the slice holds the first tokens of its first layer.
  bool BeginsLayer() const { return token_begin == first_token; }
  bool EndsPrompt(int num_layers) const {
    return layer_end == num_layers && token_end == static_cast<int>(prompt.size());
  }
};

struct DecodeRow {
  int slot = 0;
  TokenId token = 0;     // the input; kNoToken: the slot's last sampled token, which the host may
                         // not have received yet
  int32_t position = 0;  // its position
  SampledRow sampling;
  bool in_prompt = false;  // the input is a prompt token behind the compressed part
};

// The engine applies the updates of caches first, then it runs the rows and slices.
struct Batch : CacheUpdates {
  std::vector<DecodeRow> decode;      // every slot at most once; not a slot of `prefill`
  std::vector<PrefillSlice> prefill;  // every slot at most once
  // Made one after another before masks are read; complete when Enqueue() returns.
  std::vector<RowMask*> masks;

  // Updates count as work: each must reach the engine once.
  bool HasWork() const { return !decode.empty() || !prefill.empty() || !list.empty(); }

  // Calls visit(slot, row) for all sampled rows: decode rows, then the slices that end their
  // prompt, then the slices' more_samples.
  template <typename Visit>
  void ForEachSampled(int num_layers, Visit visit) const {
    for (const DecodeRow& row : decode) visit(row.slot, row.sampling);
    for (const PrefillSlice& slice : prefill) {
      if (slice.EndsPrompt(num_layers)) visit(slice.slot, slice.sampling);
    }
    for (const PrefillSlice& slice : prefill) {
      for (const SampledRow& row : slice.more_samples) visit(slice.slot, row);
    }
  }
};

// The state of a cache after its prompt was compressed, or after a cut.
struct CacheReport {
  std::vector<int32_t> entries;  // [layers * KV heads] kept by each head; empty: as the plan says
  // For a prompt with unassigned pages: the pages of the first head, of the second, ... Empty: the
  // engine has no memory behind them, and any assignment will do.
  std::vector<PageIds> pages;
  // [layers * KV heads] the share of the attention of the prompt's last queries that falls on kept
  // entries (kernels/ops/retained_mass.h); empty: no entry was evicted.
  std::vector<float> retained_mass;
  // [n, layers * KV heads] observations of the scorer of an open plan (Observations::of_prompt).
  std::vector<float> observations;
};

// The sampled token of each row; kNoToken where the logits held no finite value: then only that
// sequence has failed.
struct StepResult {
  std::vector<TokenId> decode_tokens;   // [batch.decode.size()]
  std::vector<TokenId> prefill_tokens;  // [batch.prefill.size()], kNoToken also where the slice
                                        // does not end its prompt
  std::vector<TokenId> more_tokens;     // of the slices' more_samples, in slice order
  // [batch.prefill.size()] pooled hidden states [hidden] of slices that end a prompt and request
  // them; empty for other slices, and as a whole where no slice does.
  std::vector<std::vector<float>> embeddings;
  // For rows that request them, in the order of ForEachSampled().
  std::vector<TokenLogprobs> logprobs;
  // In slice order: of the tokens that follow tokens [token_begin, ScoredEnd()).
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<CacheReport> prompt_reports;  // of every slice's Slots()
  std::vector<CacheReport> cut_reports;     // [batch.Count<SlotCut>()]
};

// The interface between scheduler and engine; the scheduler's tests implement it with a fake. Steps
// run one after another in the order of Enqueue(), so a page of one sequence in one step may belong
// to another sequence in the next.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const EngineLimits& limits() const = 0;
  // Host memory that SwapOut copies caches to, and SwapIn from; valid as long as the executor.
  virtual KeptMemory kept_memory() const { return {}; }
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
