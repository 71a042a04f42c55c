// Queries, keys and values of runs that are committed later (Commit::kLater), of all layers, in
// device memory: the entries of the first tokens are appended once the host knows how many are
// kept. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_HELD_RUNS_H_
#define HYDRANT_ENGINE_RUN_FORWARD_HELD_RUNS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cache/engine_limits.h"
#include "engine/run/compress/prompt_compressor.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class HeldRuns {
 public:
  // Room for limits.max_held_tokens tokens in each slot. dtype: of all rows. Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits, int num_heads, int head_dim,
                        DType dtype);

  // Copies rotated queries [rows, heads, head_dim] of the slot's tokens from `first` on.
  void SaveQueries(int layer, int slot, int first, int rows, ArenaRows queries);
  // Copies keys and values of the slot's first `num_tokens` tokens.
  void SaveKv(int layer, int slot, int num_tokens, const LayerKv& from);

  // Copies predicted scores, [kv_heads, stride], of the slot's first `num_tokens` tokens; and back.
  void SaveScores(int layer, int slot, int num_tokens, const float* scores, int64_t stride);
  void LoadScores(int layer, int slot, int num_tokens, float* scores, int64_t stride) const;

  ArenaRows Queries(int layer, int slot) const { return At(q_, RowOf(layer, slot) * num_heads_); }
  // Keys and values of a slot, shaped like the arena's `from`.
  LayerKv Kv(int layer, int slot, const LayerKv& from) const;

 private:
  // Rows of queries are [layers, slots, max_tokens]; keys and values have a head in between.
  int64_t RowOf(int layer, int slot) const {
    return (int64_t{layer} * num_slots_ + slot) * max_tokens_;
  }
  int64_t HeadStride() const { return int64_t{num_slots_} * max_tokens_ * head_dim_; }
  MutableArenaRows At(const DeviceArray<uint8_t>& array, int64_t row) const {
    return MutableArenaRows(array.data(), dtype_) + row * head_dim_;
  }
  float* ScoresAt(int layer, int slot, int64_t head) const {
    return scores_.data() +
           ((layer * int64_t{num_kv_heads_} + head) * num_slots_ + slot) * max_tokens_;
  }
  MutableArenaRows KvAt(const DeviceArray<uint8_t>& array, int layer, int slot) const {
    return At(array, (int64_t{layer} * num_kv_heads_ * num_slots_ + slot) * max_tokens_);
  }

  Backend* backend_ = nullptr;
  DType dtype_ = DType::kF32;
  int num_slots_ = 0;
  int max_tokens_ = 0;
  int num_heads_ = 0;
  int num_kv_heads_ = 0;
  int head_dim_ = 0;
  DeviceArray<uint8_t> q_;      // [layers, slots, max_tokens, heads, head_dim]
  DeviceArray<uint8_t> k_, v_;  // [layers, kv_heads, slots, max_tokens, head_dim]
  DeviceArray<float> scores_;   // [layers, kv_heads, slots, max_tokens]; empty without a predictor
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_HELD_RUNS_H_
