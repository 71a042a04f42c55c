#include "engine/run/forward/held_runs.h"

#include "kernels/check.h"

namespace hydrant {

absl::Status HeldRuns::Allocate(Backend* backend, const EngineLimits& limits, int num_heads,
                                int head_dim, DType dtype) {
  backend_ = backend;
  dtype_ = dtype;
  num_slots_ = limits.max_num_seqs;
  max_tokens_ = limits.max_held_tokens;
  num_heads_ = num_heads;
  num_kv_heads_ = limits.num_kv_heads;
  head_dim_ = head_dim;
  const size_t rows = static_cast<size_t>(limits.num_layers) * num_slots_ * max_tokens_;
  absl::Status status;
  const auto allocate = [&](DeviceArray<uint8_t>& array, int heads) {
    if (status.ok()) status = array.Allocate(*backend, BytesOf(dtype, rows * heads * head_dim));
  };
  allocate(q_, num_heads);
  allocate(k_, num_kv_heads_);
  allocate(v_, num_kv_heads_);
  if (status.ok() && limits.score_predictor != 0)
    status = scores_.Allocate(*backend, rows * num_kv_heads_);
  return status;
}

void HeldRuns::SaveQueries(int layer, int slot, int first, int rows, ArenaRows queries) {
  HYDRANT_CHECK(first + rows <= max_tokens_);
  const int64_t width = int64_t{num_heads_} * head_dim_;
  const MutableArenaRows to = At(q_, (RowOf(layer, slot) + first) * num_heads_);
  backend_->CopyOnDevice(to.data, queries.data, BytesOf(dtype_, rows * width));
}

void HeldRuns::SaveKv(int layer, int slot, int num_tokens, const LayerKv& from) {
  const LayerKv to = Kv(layer, slot, from);
  const MutableArenaRows k = KvAt(k_, layer, slot), v = KvAt(v_, layer, slot);
  const size_t bytes = BytesOf(dtype_, int64_t{num_tokens} * head_dim_);
  for (int64_t head = 0; head < num_kv_heads_; ++head) {
    backend_->CopyOnDevice((k + head * to.head_stride).data,
                           (from.k + head * from.head_stride).data, bytes);
    backend_->CopyOnDevice((v + head * to.head_stride).data,
                           (from.v + head * from.head_stride).data, bytes);
  }
}

void HeldRuns::SaveScores(int layer, int slot, int num_tokens, const float* scores,
                          int64_t stride) {
  for (int64_t head = 0; head < num_kv_heads_; ++head) {
    backend_->CopyOnDevice(ScoresAt(layer, slot, head), scores + head * stride,
                           num_tokens * sizeof(float));
  }
}

void HeldRuns::LoadScores(int layer, int slot, int num_tokens, float* scores,
                          int64_t stride) const {
  for (int64_t head = 0; head < num_kv_heads_; ++head) {
    backend_->CopyOnDevice(scores + head * stride, ScoresAt(layer, slot, head),
                           num_tokens * sizeof(float));
  }
}

LayerKv HeldRuns::Kv(int layer, int slot, const LayerKv& from) const {
  LayerKv held = from;
  held.k = KvAt(k_, layer, slot);
  held.v = KvAt(v_, layer, slot);
  held.head_stride = HeadStride();
  return held;
}

}  // namespace hydrant
