// What the scheduler asks of the engine in one step, and what comes back. Plain data; the engine
// decides nothing about memory: every block id, table row and length follows from what is written
// here.
//
// A sequence lives in a slot (0 <= slot < max_num_seqs) from its SlotSetup until the scheduler
// reuses the slot. Its prompt is read layer by layer (PrefillSlice); when the last slice of a layer
// is done the engine compresses the layer by the slot's CachePlan and writes the kept entries into
// the pages that the table already names. Then it decodes, one row a step. Tokens that follow, such
// as a question or a conversation's next turn, are read in slices again where the plan allows it
// (CachePlan::AppendsRuns), and compete with what is there.
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

// What is wanted of a prompt's final hidden states, as one vector.
enum class EmbeddingPooling : uint8_t { kNone, kLast, kMean };

// A row's mask that takes a while to make: beside the step, on whichever thread.
class RowMask {
 public:
  virtual void Make() = 0;

 protected:
  ~RowMask() = default;
};

// A row that a token is drawn from, and what its request says of single tokens. What it points to
// is valid during Enqueue().
struct SampledRow : SamplingRow {
  SampledRow() = default;
  SampledRow(const SamplingRow& row) : SamplingRow(row) {}  // NOLINT: one that says nothing

  // Bits of the tokens that may be drawn (kernels/ops/edit_logits.h), at most the vocabulary's;
  // empty: all may. They are there when Batch::masks have been made.
  std::span<const uint32_t> mask = {};
  // Each token once at most; at most kMostBiases.
  std::span<const TokenBias> biases = {};
  // StepResult::logprobs of the token that is drawn: of the model's own distribution, before masks,
  // biases, penalties and temperature.
  bool logprobs = false;
};
inline constexpr int kMostBiases = 1024;

// Work on one prompt: tokens [token_begin, token_end) through layers [layer_begin, layer_end).
// Slices of a prompt come in order: all tokens of a layer before the next layer, so a slice of
// several layers spans all that is read.
struct PrefillSlice {
  int slot = 0;
  // All that is read, which the plan's prompt begins: it is followed by a probe where the plan
  // scores by one. Valid during Enqueue().
  std::span<const TokenId> prompt;
  int arena_begin = 0;  // where the prompt's tokens lie in the prefill arena, in tokens
  int layer_begin = 0;
  int layer_end = 0;
  int token_begin = 0;  // a multiple of kQueryTile
  int token_end = 0;    // a multiple of kQueryTile, or the end of the prompt
  SampledRow sampling;  // the same in all slices; a token is drawn when the slice ends the prompt
  // Of a slice that ends the prompt: further tokens that are drawn from the same logits, for
  // sequences that have no slot yet. As valid as `prompt`. No more in a batch than there are slots
  // that it does not name.
  std::span<const SampledRow> more_samples = {};
  // What penalties count as the prompt; as valid as `prompt`.
  std::span<const TokenId> whole_prompt = {};
  // Shared prefill: other slots that make a cache of their own of the same prefill, each by its own
  // plan of a prompt as long. Policies are compared so. They get what a slice of their own would
  // give them, but for a sampled token; their reports come behind the slice's own. The same in all
  // slices; as valid as `prompt`.
  std::span<const int> sharing_slots = {};
  EmbeddingPooling pooling = EmbeddingPooling::kNone;  // the same in all slices
  // Of whole_prompt's tokens but the first, StepResult::prompt_logprobs. The same in all slices.
  // REQUIRES: all of whole_prompt is read as one, nothing of it is known from before
  bool prompt_logprobs = false;
  // Tokens before this one are not read: what the plan asks of them lies in cached_blocks. A
  // multiple of kPrefixBlockTokens; slices begin there instead of at 0. The same in all slices.
  int first_token = 0;
  // Prefix blocks of the tokens before first_token, all that PrefixLayout::KeysBefore names.
  std::span<const int32_t> cached_blocks = {};
  // Prefix blocks for what the tokens from first_token on leave, as PrefixLayout::KeysFrom names
  // them, or the first of these; empty: nothing stays. Each block is whole when the prompt has been
  // read. `checkpoints`: where sums are kept, ascending, above first_token. All as valid as
  // `prompt`, and the same in all slices.
  std::span<const int32_t> new_blocks = {};
  std::span<const int32_t> checkpoints = {};

  // Tokens that the slot's cache has seen; 0: the slice makes a new one. Else its tokens follow
  // them: they attend to the entries that are left and to each other, and each layer keeps of both
  // what it may hold (kernels/ops/append_pages.h). Nothing is reported then. The same in all
  // slices. REQUIRES, above 0: the plan appends runs; no other slots share it, no blocks are named
  // and nothing is pooled.
  int32_t num_seen = 0;

  // Of a slice that appends: [heads of the budget group] entries that each keeps of old and new
  // ones, by the attention that the run's last kMassQueries queries pay them; at most what there
  // are, at least the protected. Empty: all that its cap lets it. As valid as `prompt`, and the
  // same in all slices. REQUIRES: no pages of the slot have another owner
  std::span<const int32_t> keep = {};

  bool Appends() const { return num_seen > 0; }
  // Tokens whose successors' logprobs are known when it has run: [token_begin, this).
  int ScoredEnd(int num_layers) const {
    const int last = static_cast<int>(whole_prompt.size()) - 1;  // what follows it is drawn
    if (!prompt_logprobs || layer_end < num_layers) return token_begin;
    return std::max(token_begin, std::min(token_end, last));
  }
  // Its own slot and those that share it, in the order of their reports.
  std::vector<int> Slots() const {
    std::vector<int> slots = {slot};
    slots.insert(slots.end(), sharing_slots.begin(), sharing_slots.end());
    return slots;
  }

  // The first place after a token where sums are kept; any large number: nowhere.
  int32_t NextCheckpoint(int token) const {
    const auto next = std::upper_bound(checkpoints.begin(), checkpoints.end(), token);
    return next == checkpoints.end() ? std::numeric_limits<int32_t>::max() : *next;
  }
  // Of the layers that it goes through, the first is begun.
  bool BeginsLayer() const { return token_begin == first_token; }
  bool EndsPrompt(int num_layers) const {
    return layer_end == num_layers && token_end == static_cast<int>(prompt.size());
  }
};

struct DecodeRow {
  int slot = 0;
  TokenId token = 0;     // the input; kNoToken: what the slot's last sampled row gave, which the
                         // host need not know yet
  int32_t position = 0;  // its position
  SampledRow sampling;
  bool in_prompt = false;  // the input is a part of the prompt that was not compressed with it
};

// The engine applies the updates of caches first, then it runs the rows and slices.
struct Batch : CacheUpdates {
  std::vector<DecodeRow> decode;      // every slot at most once; not a slot of `prefill`
  std::vector<PrefillSlice> prefill;  // every slot at most once
  // To be made, one after another, before masks are read; all have been when Enqueue() returns.
  std::vector<RowMask*> masks;

  // Updates are work, too: each must reach the engine once.
  bool HasWork() const { return !decode.empty() || !prefill.empty() || !list.empty(); }

  // visit(slot, row) for all that is drawn: of the decode rows, then of the slices that end their
  // prompt, then of what else is drawn from these.
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

// What has become of a cache: of a prompt that was compressed, or when it shrank.
struct CacheReport {
  std::vector<int32_t> entries;  // [layers * KV heads] kept by each head; empty: as the plan says
  // Of a prompt whose slot had unassigned pages: of the first head's entries, of the second's, ...
  // Empty: the engine has none in memory, and any will do.
  std::vector<PageIds> pages;
  // [layers * KV heads] of the attention of the prompt's last queries, the share that falls
  // on kept entries (kernels/ops/retained_mass.h); empty: nothing has left.
  std::vector<float> retained_mass;
  // [n, layers * KV heads] that the scorer of an open plan has observed (Observations::of_prompt).
  std::vector<float> observations;
};

// Token of each row, kNoToken where the logits held no finite value: that sequence has failed, the
// others have not.
struct StepResult {
  std::vector<TokenId> decode_tokens;   // [batch.decode.size()]
  std::vector<TokenId> prefill_tokens;  // [batch.prefill.size()], kNoToken too where the slice does
                                        // not end its prompt
  std::vector<TokenId> more_tokens;     // of the slices' more_samples, in their order
  // [batch.prefill.size()] the pooled hidden states [hidden] of slices that end a prompt and want
  // them; empty where a slice does not, or none does.
  std::vector<std::vector<float>> embeddings;
  // Of the rows that want them, in the order of ForEachSampled().
  std::vector<TokenLogprobs> logprobs;
  // Of the slices, in their order: of the tokens behind [token_begin, ScoredEnd()).
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<CacheReport> prompt_reports;  // of every slice's Slots()
  std::vector<CacheReport> cut_reports;     // [batch.Count<SlotCut>()]
};

// The seam between scheduler and engine; the scheduler's tests put a fake behind it. Steps run one
// after another, in the order in which they are enqueued; so a page that one step names may be
// another's in the next.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const EngineLimits& limits() const = 0;
  // The memory that SwapOut copies caches to, and SwapIn from; valid as long as the executor.
  virtual KeptMemory kept_memory() const { return {}; }
  virtual PrefixMemory prefix_memory() const { return {}; }
  // Takes what it needs of the batch. On a host this is where the work is done.
  // REQUIRES: at most one step has not been collected.
  virtual void Enqueue(const Batch& batch) = 0;
  // Waits for the oldest step that has not been collected. An error means that the whole engine is
  // lost, not one sequence: nothing is in flight afterwards.
  virtual absl::Status Collect(StepResult* result) = 0;

  absl::Status Execute(const Batch& batch, StepResult* result) {
    Enqueue(batch);
    return Collect(result);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_BATCH_H_
