#include "engine/run/step_rows.h"

#include <algorithm>

namespace hydrant {

absl::Status StepRows::Allocate(Backend& backend, int max_rows) {
  constexpr size_t kAlignment = 64;
  stride_ = (max_rows * sizeof(int32_t) + kAlignment - 1) / kAlignment * kAlignment;
  host_.assign(Offset(6) + max_rows * sizeof(SamplingRow), 0);
  return device_.Allocate(backend, host_.size());
}

void StepRows::AddSampled(int slot, const SamplingRow& sampling) {
  Host<int32_t>(4)[num_sampled_] = slot;
  Host<TokenId>(5)[num_sampled_] = kNoToken;
  Host<SamplingRow>(6)[num_sampled_] = sampling;
  ++num_sampled_;
  any_penalties_ = any_penalties_ || sampling.penalties.Any();
  any_drawn_ = any_drawn_ || sampling.temperature > 0.0f;
  any_top_k_ = any_top_k_ || sampling.top_k > 0;
  any_top_p_ = any_top_p_ || sampling.top_p < 1.0f;
}

void StepRows::Write(Backend& backend, const Batch& batch, const KvState& kv, int num_layers,
                     int padded_rows) {
  num_sampled_ = 0;
  any_penalties_ = any_drawn_ = any_top_k_ = any_top_p_ = false;
  rows_in_prompt_.clear();
  num_more_ = 0;
  const int rows = static_cast<int>(batch.decode.size());
  for (int i = 0; i < rows; ++i) {
    const DecodeRow& row = batch.decode[i];
    Host<TokenId>(0)[i] = row.token;
    Host<int32_t>(1)[i] = row.position;
    Host<int32_t>(2)[i] = row.slot;
    Host<int32_t>(3)[i] = kv.plan(row.slot).rule.rolling ? 0 : row.position;
    if (row.in_prompt) rows_in_prompt_.push_back(i);
  }
  std::fill(Host<TokenId>(0) + rows, Host<TokenId>(0) + padded_rows, 0);
  std::fill(Host<int32_t>(1) + rows, Host<int32_t>(1) + padded_rows, 0);
  std::fill(Host<int32_t>(2) + rows, Host<int32_t>(2) + padded_rows, -1);
  std::fill(Host<int32_t>(3) + rows, Host<int32_t>(3) + padded_rows, 0);
  batch.ForEachSampled(num_layers,
                       [this](int slot, const SampledRow& row) { AddSampled(slot, row); });
  for (const PrefillSlice& slice : batch.prefill)
    num_more_ += static_cast<int>(slice.more_samples.size());
  const int used = std::max(num_sampled_, padded_rows);
  std::fill(Host<int32_t>(4) + num_sampled_, Host<int32_t>(4) + used, -1);
  std::fill(Host<SamplingRow>(6) + num_sampled_, Host<SamplingRow>(6) + used,
            SamplingRow{.temperature = 0.0f});
  // The last array is the longest: only its used part is copied.
  device_.Write(backend, 0, std::span(host_).first(Offset(6) + used * sizeof(SamplingRow)));
}

}  // namespace hydrant
