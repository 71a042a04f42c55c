#include "engine/step_results.h"

#include <utility>

namespace hydrant {

static_assert(StepResults::kMostInFlight <= Backend::kMarks);

absl::Status StepResults::Allocate(Backend* backend, int max_rows) {
  backend_ = backend;
  for (Step& step : steps_) {
    absl::StatusOr<DeviceBuffer> buffer = backend->AllocateHost(max_rows * sizeof(TokenId));
    if (!buffer.ok()) return buffer.status();
    step.tokens = *std::move(buffer);
  }
  return absl::OkStatus();
}

void StepResults::Push(const Batch& batch, int num_layers, const TokenId* tokens) {
  const int index = (oldest_ + in_flight_) % kMostInFlight;
  ++in_flight_;
  Step& step = steps_[index];
  step.decoded = batch.decode.size();
  step.ends_prompt.clear();
  size_t rows = step.decoded;
  for (const PrefillSlice& slice : batch.prefill) {
    step.ends_prompt.push_back(slice.EndsPrompt(num_layers));
    if (step.ends_prompt.back()) ++rows;
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
  const TokenId* next = tokens + step.decoded;
  for (const bool ends : step.ends_prompt) {
    result->prefill_tokens.push_back(ends ? *next++ : kNoToken);
  }
  return absl::OkStatus();
}

}  // namespace hydrant
