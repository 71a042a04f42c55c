// Reading prompts, layer by layer. The hidden states of every open prompt, and the keys and values
// of the layer at work, lie in a fixed arena counted in tokens, outside the pool; attention runs
// from the arena, and only the entries that a request keeps are written into its pages ("compress
// before paging").
//
// Slices that are at the same layer and lie side by side in the arena go through the matrix
// products as one run of rows.
#ifndef HYDRANT_ENGINE_PREFILL_H_
#define HYDRANT_ENGINE_PREFILL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/batch.h"
#include "engine/device_array.h"
#include "engine/kv_state.h"
#include "engine/llama_model.h"
#include "kernels/backend.h"

namespace hydrant {

class PrefillRunner {
 public:
  // max_rows: what one pass of the matrix products takes at most, a multiple of kQueryTile; act
  // holds as many. Borrows everything.
  static absl::StatusOr<std::unique_ptr<PrefillRunner>> Create(Backend* backend,
                                                               const LlamaModel* model,
                                                               const Activations* act,
                                                               int arena_tokens, int max_rows);

  // Leaves what is kept in the pages of `kv`.
  void Run(std::span<const PrefillSlice> slices, const KvState& kv);

  // The final hidden state of a prompt whose last slice has run: [hidden].
  const float* LastHidden(const PrefillSlice& slice) const;

 private:
  // A part of a slice, within one layer.
  struct Piece {
    const PrefillSlice* slice;
    int begin;  // tokens of the prompt
    int end;
    int ArenaRow() const { return slice->arena_begin + begin; }
    int rows() const { return end - begin; }
  };

  PrefillRunner(Backend* backend, const LlamaModel* model, const Activations* act, int arena_tokens,
                int max_rows)
      : backend_(backend),
        model_(model),
        act_(act),
        arena_tokens_(arena_tokens),
        max_rows_(max_rows) {}
  absl::Status Allocate();
  void Begin(const PrefillSlice& slice);
  void RunLayer(int layer, std::span<const PrefillSlice* const> slices, const KvState& kv);
  std::vector<std::vector<Piece>> SplitIntoRuns(std::span<const PrefillSlice* const> slices) const;
  void RunRows(int layer, std::span<const Piece> pieces, const KvState& kv);
  void Attend(const Piece& piece, int row, const KvState& kv);
  void ClearColumnSums(const PrefillSlice& slice, const CachePlan& plan);
  const float* PromptScores(const PrefillSlice& slice, const CachePlan& plan);
  const float* KCenterScores(const PrefillSlice& slice, const CachePlan& plan);
  void BuildSubGen(int layer, const PrefillSlice& slice, const KvState& kv);
  void Compress(int layer, const PrefillSlice& slice, const KvState& kv);

  Backend* backend_;
  const LlamaModel* model_;
  const Activations* act_;
  int arena_tokens_;
  int max_rows_;
  DeviceArray<TokenId> ids_;        // [arena]
  DeviceArray<int32_t> positions_;  // [arena]
  DeviceArray<float> hidden_;       // [arena, hidden]
  DeviceArray<float> k_, v_;        // [kv_heads, arena, head_dim], of the layer at work
  DeviceArray<float> column_sums_;  // [kv_heads, arena]
  DeviceArray<float> pooled_;       // [kv_heads, arena]
  DeviceArray<int32_t> kept_;       // [kv_heads, arena]
  DeviceArray<int32_t> keep_;       // [kv_heads]
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_PREFILL_H_
