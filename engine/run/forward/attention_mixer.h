// Attention of a step's runs to the keys and values of their sequences, with the eviction that goes
// with it. A decoded token attends to the pages and its entry is written there. The keys and values
// of other runs lie in a fixed arena, of the current layer alone; attention runs from the arena,
// and what is kept of it is written into pages when the layer is complete.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_ATTENTION_MIXER_H_
#define HYDRANT_ENGINE_RUN_FORWARD_ATTENTION_MIXER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/run/compress/prompt_compressor.h"
#include "engine/run/forward/held_runs.h"
#include "engine/run/forward/mixer.h"
#include "engine/run/forward/prefix_transfer.h"
#include "engine/run/forward/score_predictor.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class AttentionMixer final : public Mixer {
 public:
  // page_dtype: the dtype of the pool's pages. predictor: null if limits.score_predictor is 0.
  // Borrows backend, model and act.
  static absl::StatusOr<std::unique_ptr<AttentionMixer>> Create(
      Backend* backend, const Transformer* model, const Activations* act,
      const EngineLimits& limits, DType page_dtype, const ScorePredictor* predictor);

  // Called before a part of a run enters the first layer.
  void Begin(const TokenRun& run, const KvState& kv);
  // Called after a run has left the last layer.
  void End(const TokenRun& run, const KvState& kv);
  void BeginLayer(int layer, const TokenRun& run, const KvState& kv) override;
  void EndLayer(int layer, const TokenRun& run, const KvState& kv) override;
  void Mix(int layer, const RowSet& rows, bool prepared, const KvState& kv) override;
  void CommitHeld(int layer, const TokenRun& run, const KvState& kv) override;

  const PromptCompressor& compressor() const { return *compressor_; }
  PageCompactor& page_compactor() { return compressor_->page_compactor(); }

 private:
  AttentionMixer(Backend* backend, const Transformer* model, const Activations* act,
                 const EngineLimits& limits, DType page_dtype)
      : backend_(backend),
        model_(model),
        act_(act),
        dtype_(backend->ArenaDType(page_dtype, model->config().head_dim)),
        arena_tokens_(limits.prefill_arena_tokens),
        max_rows_(limits.prefill_rows),
        max_positions_(limits.max_model_len) {}
  absl::Status Allocate(const EngineLimits& limits, const ScorePredictor* predictor);
  void MixDecoded(int layer, const RowSet& rows, bool prepared, const KvState& kv);
  void Predict(int layer, const float* hidden, int rows, float* scores, int64_t stride);
  void PredictPieces(int layer, const RowSet& rows, const KvState& kv);
  void Rotate(int layer, const RunPiece& piece, int row, const KvState& kv);
  void Attend(int layer, std::span<const RunPiece> pieces, const KvState& kv);
  PrefillAttentionArgs AttentionOf(int layer, const RunPiece& piece, int row,
                                   const KvState& kv) const;
  PrefillAttentionArgs AttentionTo(int layer, const LayerKv& layer_kv, const KvState& kv) const;
  PagedPrefix EntriesBefore(const GroupLayer& at, const TokenRun& run, const KvState& kv) const;
  void AttendToEntries(const GroupLayer& at, const TokenRun& run, const KvState& kv,
                       PrefillAttentionArgs args);
  // The rows of an arena array from `element` on.
  MutableArenaRows At(const DeviceArray<uint8_t>& array, int64_t element) const {
    return MutableArenaRows(array.data(), dtype_) + element;
  }
  LayerKv ArenaKv(int layer, const TokenRun& run) const;
  TokenRows KvRows(const DeviceArray<uint8_t>& array, const TokenRun& run) const;
  TokenRows RawQueries(int row) const;
  bool Echoes(int layer, const TokenRun& run, const KvState& kv) const {
    return !compressor_->EchoPasses(kv.At(layer).group, run).empty();
  }
  void RotateCachedQueries(int layer, const TokenRun& run, const KvState& kv);
  void RotateForEcho(int layer, const RunPiece& piece, int row, const KvState& kv);
  void Echo(int layer, const TokenRun& run, const KvState& kv);

  Backend* backend_;
  const Transformer* model_;
  const Activations* act_;
  DType dtype_;  // of k_, v_, later_q_ and the current queries
  int arena_tokens_;
  int max_rows_;
  int max_positions_;
  DeviceArray<uint8_t> k_, v_;                // [kv_heads, arena, head_dim], of the current layer
  DeviceArray<float> decoded_k_, decoded_v_;  // [max_num_seqs, kv_dim]
  // Empty without a score predictor.
  DeviceArray<float> predictor_weights_, predictor_biases_;
  DeviceArray<float> decoded_scores_;  // [kv_heads, max_num_seqs]
  // For echoes: [arena] the position right after each token's prompt, and [arena, heads, head_dim]
  // the layer's queries rotated to it.
  DeviceArray<int32_t> later_positions_;
  DeviceArray<uint8_t> later_q_;
  std::unique_ptr<PromptCompressor> compressor_;
  PrefixTransfer prefix_;
  HeldRuns held_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_ATTENTION_MIXER_H_
