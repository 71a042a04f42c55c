#include "engine/step_results.h"

#include <utility>

namespace hydrant {

static_assert(StepResults::kMostInFlight <= Backend::kMarks);

absl::Status StepResults::Allocate(Backend* backend, int max_rows, int num_heads) {
  backend_ = backend;
  num_heads_ = num_heads;
  absl::Status status;
  const auto allocate = [&](DeviceBuffer& buffer, size_t bytes) {
    if (!status.ok()) return;
    absl::StatusOr<DeviceBuffer> allocated = backend->AllocateHost(bytes);
    status = allocated.status();
    if (status.ok()) buffer = *std::move(allocated);
  };
  const size_t rows = max_rows;
  for (Step& step : steps_) {
    allocate(step.tokens, rows * sizeof(TokenId));
    allocate(step.entries, rows * num_heads_ * sizeof(int32_t));
    allocate(step.masses, rows * num_heads_ * sizeof(float));
  }
  return status;
}

void StepResults::Push(const Batch& batch, int num_layers, const TokenId* tokens,
                       std::span<const Compressed> compressed) {
  const int index = (oldest_ + in_flight_) % kMostInFlight;
  ++in_flight_;
  Step& step = steps_[index];
  step.decoded = batch.decode.size();
  step.prompts.clear();
  size_t rows = step.decoded;
  for (size_t i = 0; i < batch.prefill.size(); ++i) {
    const auto& [entries, mass] = compressed[i];
    step.prompts.push_back({.ends = batch.prefill[i].EndsPrompt(num_layers),
                            .has_entries = entries != nullptr,
                            .has_mass = mass != nullptr});
    if (step.prompts.back().ends) ++rows;
    const size_t row = i * num_heads_;
    if (entries != nullptr) {
      backend_->CopyToHostLater(static_cast<int32_t*>(step.entries.get()) + row, entries,
                                num_heads_ * sizeof(int32_t));
    }
    if (mass != nullptr) {
      backend_->CopyToHostLater(static_cast<float*>(step.masses.get()) + row, mass,
                                num_heads_ * sizeof(float));
    }
  }
  if (rows > 0) backend_->CopyToHostLater(step.tokens.get(), tokens, rows * sizeof(TokenId));
  backend_->Mark(index);
}

absl::Status StepResults::Pop(StepResult* result) {
  if (absl::Status status = backend_->WaitFor(oldest_); !status.ok()) {
    in_flight_ = 0;
    return status;
  }
  const Step& step = steps_[oldest_];
  oldest_ = (oldest_ + 1) % kMostInFlight;
  --in_flight_;
  const auto* tokens = static_cast<const TokenId*>(step.tokens.get());
  result->decode_tokens.assign(tokens, tokens + step.decoded);
  result->prefill_tokens.clear();
  result->prompt_reports.clear();
  const TokenId* next = tokens + step.decoded;
  for (size_t i = 0; i < step.prompts.size(); ++i) {
    const Prompt& prompt = step.prompts[i];
    result->prefill_tokens.push_back(prompt.ends ? *next++ : kNoToken);
    PromptReport& report = result->prompt_reports.emplace_back();
    const auto* entries = static_cast<const int32_t*>(step.entries.get()) + i * num_heads_;
    const auto* mass = static_cast<const float*>(step.masses.get()) + i * num_heads_;
    if (prompt.has_entries) report.entries.assign(entries, entries + num_heads_);
    if (prompt.has_mass) report.retained_mass.assign(mass, mass + num_heads_);
  }
  return absl::OkStatus();
}

}  // namespace hydrant
