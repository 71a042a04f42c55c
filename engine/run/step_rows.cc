#include "engine/run/step_rows.h"

#include <algorithm>

namespace hydrant {

absl::Status StepRows::Allocate(Backend& backend, int max_rows) {
  constexpr size_t kAlignment = 64;
  stride_ = (max_rows * sizeof(int32_t) + kAlignment - 1) / kAlignment * kAlignment;
  host_.assign(Offset(7) + max_rows * sizeof(SamplingRow), 0);
  return device_.Allocate(backend, host_.size());
}

void StepRows::AddSampled(int slot, const SampledRow& sampling) {
  Host<int32_t>(4)[num_sampled_] = slot;
  Host<TokenId>(5)[num_sampled_] = kNoToken;
  Host<int32_t>(6)[num_sampled_] = sampling.is_newest ? slot : -1;
  Host<SamplingRow>(7)[num_sampled_] = sampling;
  ++num_sampled_;
  any_penalties_ = any_penalties_ || sampling.penalties.Any();
  any_drawn_ = any_drawn_ || sampling.temperature > 0.0f;
  any_top_k_ = any_top_k_ || sampling.top_k > 0;
  any_top_p_ = any_top_p_ || sampling.top_p < 1.0f;
}

void StepRows::Write(Backend& backend, const Batch& batch, const KvState& kv, int padded_rows) {
  num_sampled_ = 0;
  any_penalties_ = any_drawn_ = any_top_k_ = any_top_p_ = false;
  rows_in_prompt_.clear();
  const std::span<const TokenRun> decoded = batch.Decoded();
  const int rows = static_cast<int>(decoded.size());
  for (int i = 0; i < rows; ++i) {
    const TokenRun& run = decoded[i];
    Host<TokenId>(0)[i] = run.tokens.front();
    Host<int32_t>(1)[i] = run.first_position;
    Host<int32_t>(2)[i] = run.slot;
    Host<int32_t>(3)[i] = kv.plan(run.slot).rule.rolling ? 0 : run.first_position;
    if (run.in_prompt) rows_in_prompt_.push_back(i);
  }
  std::fill(Host<TokenId>(0) + rows, Host<TokenId>(0) + padded_rows, 0);
  std::fill(Host<int32_t>(1) + rows, Host<int32_t>(1) + padded_rows, 0);
  std::fill(Host<int32_t>(2) + rows, Host<int32_t>(2) + padded_rows, -1);
  std::fill(Host<int32_t>(3) + rows, Host<int32_t>(3) + padded_rows, 0);
  for (const SampledRow& row : batch.sampled) AddSampled(batch.runs[row.run].slot, row);
  const int used = std::max(num_sampled_, padded_rows);
  std::fill(Host<int32_t>(4) + num_sampled_, Host<int32_t>(4) + used, -1);
  std::fill(Host<int32_t>(6) + num_sampled_, Host<int32_t>(6) + used, -1);
  std::fill(Host<SamplingRow>(7) + num_sampled_, Host<SamplingRow>(7) + used,
            SamplingRow{.temperature = 0.0f});
  // The last array is the longest: only its used part is copied.
  device_.Write(backend, 0, std::span(host_).first(Offset(7) + used * sizeof(SamplingRow)));
}

}  // namespace hydrant
