// From a prompt that has been read to the cache that is kept of it, a layer at a time, in four pure
// steps with plain data between them:
//
//   Score   statistics of attention to each key  ->  scores [kv_heads, n], higher stays
//   Budget  scores                               ->  keep [kv_heads]
//   Select  scores, keep                         ->  kept positions of each head
//   Write   kept positions, scores               ->  pages
//
// The plan's scorer ranks (engine/cache/prompt_scorer.h), its life says what is kept of a layer
// (Lifecycle::CutLayer), and what is cut once more, from the pages, when some or all layers have
// been written (Lifecycle::CutPrompt). Nothing here knows one by name.
#ifndef HYDRANT_ENGINE_RUN_COMPRESS_PROMPT_COMPRESSOR_H_
#define HYDRANT_ENGINE_RUN_COMPRESS_PROMPT_COMPRESSOR_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/prefix_layout.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/cache/prompt_statistics.h"
#include "engine/run/compress/page_cutter.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class PromptCompressor {
 public:
  // Borrows the backend. The limits' prefill arena is where slices are placed.
  static absl::StatusOr<std::unique_ptr<PromptCompressor>> Create(Backend* backend,
                                                                  const EngineLimits& limits);

  // What attention is to gather in a pass over the keys.
  using Statistics = std::array<ColumnStatistic, kMaxColumnStatistics>;
  // `layer`: of the model, here and below. Before a layer of the slice is read.
  void Begin(int layer, const PrefillSlice& slice, const KvState& kv);
  // When its tokens before `token` have been: their sums are kept, if that is one of the slice's
  // checkpoints and there are prefix blocks for them.
  void KeepSums(int layer, const PrefillSlice& slice, int token, const KvState& kv);
  // What is gathered while it is: at least one pass, more where other slots want more.
  std::vector<Statistics> Passes(const GroupState& group, const PrefillSlice& slice) const;
  // What is gathered of the echo of the slice's prompt, in the same way; none where no slot wants
  // one.
  std::vector<Statistics> EchoPasses(const GroupState& group, const PrefillSlice& slice) const;
  // When the whole layer has been read: each slot keeps what the plan of its group says.
  void Compress(int layer, const PrefillSlice& slice, const LayerKv& layer_kv, const KvState& kv);
  // The same of a slice that appends: entries and new tokens compete for what each head may hold.
  void Append(int layer, const PrefillSlice& slice, const LayerKv& layer_kv, const KvState& kv);
  // A place for the scores of a layer's entries while attention adds to them.
  ScoreRowsArgs EntryScores(const PagedPrefix& entries);
  // When the last layer has been compressed.
  void Finish(const PrefillSlice& slice, const KvState& kv);

  // For caches that are cut while they live.
  PageCutter& cutter() { return cutter_; }

  // [n, full layers * num_kv_heads] that the scorer of the slot's newest prompt has observed.
  const float* observations(int slot) const {
    return observations_.data() + slot * kMaxObservations * NumHeads();
  }
  // [full layers * num_kv_heads] of the slot's newest prompt (kernels/ops/retained_mass.h).
  const float* retained_mass(int slot) const { return mass_.data() + slot * NumHeads(); }

 private:
  PromptCompressor(Backend* backend, const EngineLimits& limits)
      : backend_(backend), limits_(limits), arena_tokens_(limits.prefill_arena_tokens) {}
  absl::Status Allocate();
  size_t NumHeads() const { return static_cast<size_t>(limits_.BudgetHeads()); }

  struct Gathered : PromptStatistic {
    float* out = nullptr;  // [kv_heads, arena], from the slice on
  };
  static bool SameNumbers(const PromptStatistic& a, const PromptStatistic& b);
  std::vector<Gathered> Shared(const GroupState& group, const PrefillSlice& slice) const;
  std::vector<Gathered> ReceivedBy(const GroupState& group, const PrefillSlice& slice) const;
  std::vector<Gathered> GatheredBy(const GroupState& group, const PrefillSlice& slice) const;
  std::vector<Statistics> PassesOf(const GroupState& group, const PrefillSlice& slice,
                                   bool of_echo) const;
  PrefixLayout LayoutOf(const GroupState& group, const PrefillSlice& slice) const;
  template <typename Move>
  void ForSums(int layer, std::span<const int32_t> blocks, const PrefixLayout& layout, int tokens,
               const PrefillSlice& slice, const KvState& kv, const Move& move) const;
  void TakeShared(const GroupState& group, const PrefillSlice& slice, int slot);
  void CompressSlot(int slot, const GroupLayer& at, const PrefillSlice& slice,
                    const LayerKv& layer_kv, const KvState& kv);
  void FinishSlot(int slot, const KvState& kv);
  PromptLayer LayerOf(int slot, const GroupLayer& at, const PrefillSlice& slice,
                      const LayerKv& layer_kv) const;
  void Select(const PromptLayer& layer, const float* scores);
  void Write(const PromptLayer& layer, const float* scores, const LayerCut& cut, bool everything,
             const GroupState& group);

  Backend* backend_;
  EngineLimits limits_;
  int arena_tokens_;
  std::array<DeviceArray<float>, kMaxColumnStatistics> statistics_;  // [kv_heads, arena] each
  // [kv_heads, arena] each: what is gathered once for several slots, and then copied into
  // statistics_ for one after the other.
  std::vector<DeviceArray<float>> shared_;
  DeviceArray<float> scores_;        // [kv_heads, arena]
  DeviceArray<float> entry_scores_;  // [kv_heads, max_model_len]
  DeviceArray<int32_t> kept_;        // [kv_heads, arena]
  DeviceArray<float> mass_;          // [slots, layers, kv_heads]
  DeviceArray<float> observations_;  // [slots, kMaxObservations, layers, kv_heads]
  PageCutter cutter_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_PROMPT_COMPRESSOR_H_
