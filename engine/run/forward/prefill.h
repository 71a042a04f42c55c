// Prefill of prompts, layer by layer. The hidden states of all open prompts, and the keys and
// values of the current layer, lie in a fixed arena counted in tokens, outside the pool; attention
// runs from the arena, and only the entries that a request keeps are written into its pages
// ("compress before paging").
//
// Slices at the same layer go through the matrix products as one run of rows, so several short
// prompts, or short suffixes of prompts with a cached prefix, read the weights once. If their
// tokens are not contiguous in the arena, their hidden states are gathered.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_PREFILL_H_
#define HYDRANT_ENGINE_RUN_FORWARD_PREFILL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/compress/prompt_compressor.h"
#include "engine/run/forward/prefix_transfer.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class PrefillRunner {
 public:
  // A pass of the matrix products takes at most limits.prefill_rows rows; act has room for them.
  // page_dtype: the dtype of the pool's pages. Borrows backend, model and act.
  static absl::StatusOr<std::unique_ptr<PrefillRunner>> Create(Backend* backend,
                                                               const Transformer* model,
                                                               const Activations* act,
                                                               const EngineLimits& limits,
                                                               DType page_dtype);

  // Writes the kept entries into the pages of `kv`.
  void Run(std::span<const PrefillSlice> slices, const KvState& kv);

  // Final hidden states of a prompt after its last slice: [tokens, hidden], and the last row.
  const float* Hidden(const PrefillSlice& slice) const {
    return hidden_.data() + static_cast<size_t>(slice.arena_begin) * model_->config().hidden_size;
  }
  const float* LastHidden(const PrefillSlice& slice, const CachePlan& plan) const;
  const PromptCompressor& compressor() const { return *compressor_; }
  PageCutter& cutter() { return compressor_->cutter(); }

 private:
  // A part of a slice, within one layer.
  struct Piece {
    const PrefillSlice* slice;
    int begin;  // tokens of the prompt
    int end;
    int ArenaRow() const { return slice->arena_begin + begin; }
    int rows() const { return end - begin; }
  };

  PrefillRunner(Backend* backend, const Transformer* model, const Activations* act,
                const EngineLimits& limits, DType page_dtype)
      : backend_(backend),
        model_(model),
        act_(act),
        dtype_(backend->ArenaDType(page_dtype, model->config().head_dim)),
        arena_tokens_(limits.prefill_arena_tokens),
        max_rows_(limits.prefill_rows),
        max_positions_(limits.max_model_len) {}
  absl::Status Allocate(const EngineLimits& limits);
  void Begin(const PrefillSlice& slice, const KvState& kv);
  void RunLayer(int layer, std::span<const PrefillSlice* const> slices, const KvState& kv);
  std::vector<std::vector<Piece>> SplitIntoRuns(std::span<const PrefillSlice* const> slices) const;
  void RunRows(int layer, std::span<const Piece> pieces, const KvState& kv);
  enum class Move { kGather, kScatter };
  void MoveHidden(std::span<const Piece> pieces, Move move);
  void Rotate(int layer, const Piece& piece, int row, const KvState& kv);
  void Attend(int layer, std::span<const Piece> pieces, const KvState& kv);
  PrefillAttentionArgs AttentionOf(int layer, const Piece& piece, int row, const KvState& kv) const;
  void AttendToEntries(const GroupLayer& at, const PrefillSlice& slice, const KvState& kv,
                       PrefillAttentionArgs args);
  void BeginLayer(int layer, const PrefillSlice& slice, const KvState& kv);
  void EndLayer(int layer, const PrefillSlice& slice, const KvState& kv);
  // The rows of an arena array from `element` on.
  MutableArenaRows At(const DeviceArray<uint8_t>& array, int64_t element) const {
    return MutableArenaRows(array.data(), dtype_) + element;
  }
  TokenRows KvRows(const DeviceArray<uint8_t>& array, const PrefillSlice& slice) const;
  TokenRows RawQueries(int row) const;
  void Keep(int layer, const PrefillSlice& slice, const KvState& kv);
  bool Echoes(int layer, const PrefillSlice& slice, const KvState& kv) const {
    return !compressor_->EchoPasses(kv.At(layer).group, slice).empty();
  }
  void RotateCachedQueries(int layer, const PrefillSlice& slice, const KvState& kv);
  void RotateForEcho(int layer, const Piece& piece, int row, const KvState& kv);
  void Echo(int layer, const PrefillSlice& slice, const KvState& kv);
  PrefillAttentionArgs AttentionTo(const PrefillSlice& slice, const KvState& kv) const;

  Backend* backend_;
  const Transformer* model_;
  const Activations* act_;
  DType dtype_;  // of k_, v_, later_q_ and the current queries
  int arena_tokens_;
  int max_rows_;
  int max_positions_;
  DeviceArray<TokenId> ids_;        // [arena]
  DeviceArray<int32_t> positions_;  // [arena]
  DeviceArray<float> hidden_;       // [arena, hidden]
  DeviceArray<float> run_hidden_;   // [max_rows, hidden], of a run that is not contiguous
  DeviceArray<uint8_t> k_, v_;      // [kv_heads, arena, head_dim], of the current layer
  // For echoes: [arena] the position right after each token's prompt, and [arena, heads, head_dim]
  // the layer's queries rotated to it.
  DeviceArray<int32_t> later_positions_;
  DeviceArray<uint8_t> later_q_;
  std::unique_ptr<PromptCompressor> compressor_;
  PrefixTransfer prefix_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_PREFILL_H_
