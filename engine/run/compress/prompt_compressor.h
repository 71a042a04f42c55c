// Compresses a prefilled prompt into its cache, a layer at a time, in four pure steps with plain
// data between them:
//
//   Score   statistics of attention to each key  ->  scores [kv_heads, n], the highest are kept
//   Budget  scores                               ->  keep [kv_heads]
//   Select  scores, keep                         ->  kept positions of each head
//   Write   kept positions, scores               ->  pages
//
// The plan's scorer ranks entries (engine/cache/prompt_scorer.h). Its retention schedule sets how
// many of a layer are kept (RetentionSchedule::CompactLayer), and the compaction of pages after
// some or all layers have been written (RetentionSchedule::PromptCompaction). Nothing here depends
// on a specific policy.
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
#include "engine/run/compress/page_compactor.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class PromptCompressor {
 public:
  // Borrows the backend. Runs lie in the prefill arena of the limits.
  static absl::StatusOr<std::unique_ptr<PromptCompressor>> Create(Backend* backend,
                                                                  const EngineLimits& limits);

  // The statistics that attention gathers in one pass over the keys.
  using Statistics = std::array<ColumnStatistic, kMaxColumnStatistics>;
  // Called before the run enters a layer. Here and below, `layer` is a layer of the model.
  void Begin(int layer, const TokenRun& run, const KvState& kv);
  // Called after the layer's tokens before `token` have run: saves their sums, if `token` is one of
  // the run's checkpoints and has prefix blocks.
  void KeepSums(int layer, const TokenRun& run, int token, const KvState& kv);
  // The passes of a layer's prefill: at least one, more where other slots need more statistics.
  std::vector<Statistics> Passes(const GroupState& group, const TokenRun& run) const;
  // The passes of the echo of the run's prompt; none where no slot needs an echo.
  std::vector<Statistics> EchoPasses(const GroupState& group, const TokenRun& run) const;
  // Where the predicted scores of the run's tokens go, [kv_heads, arena] from its first token on;
  // null: no slot needs them.
  float* PredictedScores(const GroupState& group, const TokenRun& run) const;
  // Called after the whole layer has run: writes the kept entries of each slot, by its plan in the
  // layer's group.
  void Compress(int layer, const TokenRun& run, const LayerKv& layer_kv, const KvState& kv);
  // Scratch for the statistics of a turn's echo over the layer's entries: zeroed, and set as outputs
  // of the pass.
  void BeginTurnEcho(const PagedPrefix& entries, Statistics* pass);
  // As Compress() for an appended run: entries and new tokens compete for each head's slots.
  // Predicted scores of its tokens are in PredictedScores().
  void Append(int layer, const TokenRun& run, const LayerKv& layer_kv, const KvState& kv);
  // Scratch for the scores of a layer's entries while attention adds to them.
  ScoreRowsArgs EntryScores(const PagedPrefix& entries);
  // Called after the run has left the last layer.
  void Finish(const TokenRun& run, const KvState& kv);

  // For compactions while decoding.
  PageCompactor& page_compactor() { return page_compactor_; }

  // [n, budget layers * num_kv_heads] observations of the scorer of the slot's newest prompt.
  const float* observations(int slot) const {
    return observations_.data() + slot * kMaxObservations * NumHeads();
  }
  // [budget layers * num_kv_heads] of the slot's newest prompt (kernels/ops/retained_mass.h).
  const float* retained_mass(int slot) const { return mass_.data() + slot * NumHeads(); }

 private:
  PromptCompressor(Backend* backend, const EngineLimits& limits)
      : backend_(backend), limits_(limits), arena_tokens_(limits.prefill_arena_tokens) {}
  absl::Status Allocate();
  size_t NumHeads() const { return static_cast<size_t>(limits_.BudgetHeads()); }

  struct Gathered : PromptStatistic {
    float* out = nullptr;  // [kv_heads, arena], from the run's first token on
  };
  static bool SameNumbers(const PromptStatistic& a, const PromptStatistic& b);
  std::vector<Gathered> Shared(const GroupState& group, const TokenRun& run) const;
  std::vector<Gathered> ReceivedBy(const GroupState& group, const TokenRun& run) const;
  std::vector<Gathered> GatheredBy(const GroupState& group, const TokenRun& run) const;
  std::vector<Statistics> PassesOf(const GroupState& group, const TokenRun& run,
                                   bool of_echo) const;
  PrefixLayout LayoutOf(const GroupState& group, const TokenRun& run) const;
  template <typename Move>
  void ForSums(int layer, std::span<const int32_t> blocks, const PrefixLayout& layout, int tokens,
               const TokenRun& run, const KvState& kv, const Move& move) const;
  // The array of a place (PromptStatistic::place), from the run's first token on.
  float* ArrayOf(int place, const TokenRun& run) const {
    return (place == kPredictedScores ? scores_ : statistics_[place]).data() + run.arena_begin;
  }
  void TakeShared(const GroupState& group, const TokenRun& run, int slot);
  const float* ScoreTurn(const EchoScore& score, const GroupLayer& at, const TokenRun& run,
                         const LayerKv& layer_kv);
  void CompressSlot(int slot, const GroupLayer& at, const TokenRun& run, const LayerKv& layer_kv,
                    const KvState& kv);
  void FinishSlot(int slot, const KvState& kv);
  PromptLayer LayerOf(int slot, const GroupLayer& at, const TokenRun& run,
                      const LayerKv& layer_kv) const;
  void Select(const PromptLayer& layer, const float* scores);
  void Write(const PromptLayer& layer, const float* scores, const LayerCompaction& compaction,
             bool everything, const GroupState& group);

  Backend* backend_;
  EngineLimits limits_;
  int arena_tokens_;
  std::array<DeviceArray<float>, kMaxColumnStatistics> statistics_;  // [kv_heads, arena] each
  // [kv_heads, arena] each: statistics gathered once for several slots, then copied to statistics_
  // for one slot after another.
  std::vector<DeviceArray<float>> shared_;
  DeviceArray<float> scores_;                       // [kv_heads, arena], predicted before others
  std::array<DeviceArray<float>, 2> entry_scores_;  // [kv_heads, max_model_len] each
  DeviceArray<int32_t> kept_;                       // [kv_heads, arena]
  DeviceArray<float> mass_;                         // [slots, layers, kv_heads]
  DeviceArray<float> observations_;                 // [slots, kMaxObservations, layers, kv_heads]
  PageCompactor page_compactor_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_PROMPT_COMPRESSOR_H_
