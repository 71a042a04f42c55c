// The forward pass of a step's runs, from token ids to final hidden states. Decoded tokens pass all
// layers at once. The other runs pass them in parts: their hidden states lie in a fixed arena
// counted in tokens, outside the pool; only the entries that a request keeps are written into its
// pages ("compress before paging").
//
// Parts at the same layer go through the matrix products as one set of rows, so several short
// prompts, or short suffixes of prompts with a cached prefix, read the weights once. If their
// tokens are not contiguous in the arena, their hidden states are gathered.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_FORWARD_H_
#define HYDRANT_ENGINE_RUN_FORWARD_FORWARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/forward/attention_mixer.h"
#include "engine/run/forward/mixer.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class Forward {
 public:
  // A pass of the matrix products takes at most limits.prefill_rows rows; act has room for them.
  // page_dtype: the dtype of the pool's pages; predictor: as for AttentionMixer. Borrows backend,
  // model and act.
  static absl::StatusOr<std::unique_ptr<Forward>> Create(Backend* backend, const Transformer* model,
                                                         const Activations* act,
                                                         const EngineLimits& limits,
                                                         DType page_dtype,
                                                         const ScorePredictor* predictor);

  // Decodes rows of tokens. REQUIRES: ids hold no kNoToken
  void Decode(const DecodedRows& rows, const KvState& kv);
  // Processes parts of runs, and writes the kept entries into the pages of `kv`.
  void Read(std::span<const TokenRun> runs, const KvState& kv);
  // Appends the first tokens of a run that was committed later. REQUIRES: no pass is under way
  void CommitHeld(const SlotCommit& commit, const KvState& kv);

  // Final hidden states: [rows, hidden] of the last Decode(), and [tokens, hidden] of a run that
  // has ended.
  const float* DecodedHidden() const { return decoded_hidden_.data(); }
  const float* Hidden(const TokenRun& run) const {
    return hidden_.data() + static_cast<size_t>(run.arena_begin) * model_->config().hidden_size;
  }

  // Called with a layer's input, [tokens, hidden] on the device from the run's first token on,
  // before the layer's first part runs. It is complete if that part is the whole run.
  using LayerObserver = std::function<void(int layer, const TokenRun& run, const float* hidden)>;
  void SetObserver(LayerObserver observer) { observer_ = std::move(observer); }

  AttentionMixer& attention() { return *attention_; }
  const AttentionMixer& attention() const { return *attention_; }

 private:
  // Either decoded rows, or runs in the order of their places in the arena.
  struct Pass {
    int layer_begin = 0;
    int layer_end = 0;
    const DecodedRows* decoded = nullptr;
    std::span<const TokenRun* const> runs = {};
  };

  Forward(Backend* backend, const Transformer* model, const Activations* act,
          const EngineLimits& limits)
      : backend_(backend),
        model_(model),
        act_(act),
        arena_tokens_(limits.prefill_arena_tokens),
        max_rows_(limits.prefill_rows) {}
  absl::Status Allocate(const EngineLimits& limits, DType page_dtype,
                        const ScorePredictor* predictor);
  // All layers of this model have the same mixer.
  Mixer& MixerOf(int /*layer*/) { return *attention_; }
  void RunLayers(const Pass& pass, const KvState& kv);
  bool RunRows(int layer, const RowSet& rows, bool prepared, const KvState& kv);
  void Embed(const TokenRun& run, const KvState& kv);
  std::vector<std::vector<RunPiece>> SplitIntoSets(std::span<const TokenRun* const> runs) const;
  void RunPieces(int layer, std::span<const RunPiece> pieces, const KvState& kv);
  enum class Move { kGather, kScatter };
  void MoveHidden(std::span<const RunPiece> pieces, Move move);

  Backend* backend_;
  const Transformer* model_;
  const Activations* act_;
  int arena_tokens_;
  int max_rows_;
  DeviceArray<TokenId> ids_;           // [arena]
  DeviceArray<int32_t> positions_;     // [arena]
  DeviceArray<float> hidden_;          // [arena, hidden]
  DeviceArray<float> gathered_;        // [max_rows, hidden], of rows that are not contiguous
  DeviceArray<float> decoded_hidden_;  // [max_num_seqs, hidden]
  std::unique_ptr<AttentionMixer> attention_;
  LayerObserver observer_;  // null: none
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_FORWARD_H_
