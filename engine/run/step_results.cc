#include "engine/run/step_results.h"

#include <utility>

#include "engine/cache/prompt_scorer.h"

namespace hydrant {

static_assert(StepResults::kMaxInFlight <= Backend::kEvents);

absl::Status StepResults::Allocate(Backend* backend, const EngineLimits& limits, int hidden_size) {
  backend_ = backend;
  num_heads_ = limits.BudgetHeads();
  hidden_size_ = hidden_size;
  absl::Status status;
  const auto allocate = [&](DeviceBuffer& buffer, size_t bytes) {
    if (!status.ok()) return;
    absl::StatusOr<DeviceBuffer> allocated = backend->AllocateHost(bytes);
    status = allocated.status();
    if (status.ok()) buffer = *std::move(allocated);
  };
  const size_t sampled = limits.MaxSampledRows();
  const size_t rows = limits.max_num_seqs;
  for (Step& step : steps_) {
    allocate(step.tokens, sampled * sizeof(TokenId));
    allocate(step.logprobs, (sampled + limits.prefill_arena_tokens) * sizeof(TokenLogprobs));
    allocate(step.entries, rows * num_heads_ * sizeof(int32_t));
    allocate(step.masses, rows * num_heads_ * sizeof(float));
    allocate(step.observations, rows * kMaxObservations * num_heads_ * sizeof(float));
    allocate(step.embeddings, rows * hidden_size_ * sizeof(float));
  }
  return status;
}

absl::Status StepResults::AllocateRows(int block_size, int64_t table_entries) {
  block_size_ = block_size;
  for (Step& step : steps_) {
    absl::StatusOr<DeviceBuffer> rows = backend_->AllocateHost(table_entries * sizeof(PageIds));
    if (!rows.ok()) return rows.status();
    step.rows = *std::move(rows);
  }
  return absl::OkStatus();
}

void StepResults::Push(const Batch& batch, const OnDevice& left,
                       std::vector<KeptEntries> kept_entries) {
  const int index = (oldest_ + in_flight_) % kMaxInFlight;
  ++in_flight_;
  Step& step = steps_[index];
  step.sampled = batch.sampled.size();
  step.kept_entries = std::move(kept_entries);
  step.compactions = batch.Count<SlotCompaction>();
  step.reports.clear();
  const auto copy = [&]<typename T>(DeviceBuffer& rows, const T* from, size_t count) {
    if (from == nullptr) return false;
    backend_->CopyToHostLater(static_cast<T*>(rows.get()) + step.reports.size() * count, from,
                              count * sizeof(T));
    return true;
  };
  size_t next_row = 0;
  for (const Report& report : left.reports) {
    const size_t rows = next_row;
    if (report.rows != nullptr) {
      const size_t count = num_heads_ * report.row_width;
      backend_->CopyToHostLater(static_cast<PageIds*>(step.rows.get()) + rows, report.rows,
                                count * sizeof(PageIds));
      next_row += count;
    }
    const bool entries = copy(step.entries, report.entries, num_heads_);
    const bool mass = copy(step.masses, report.retained_mass, num_heads_);
    if (report.observations != nullptr) {
      backend_->CopyToHostLater(ObservationsOf(step, step.reports.size()), report.observations,
                                report.num_observations * num_heads_ * sizeof(float));
    }
    step.reports.push_back({entries, rows, report.rows != nullptr ? report.row_width : 0, mass,
                            report.num_observations});
  }
  step.pooled.clear();
  for (size_t i = 0; i < left.embeddings.size(); ++i) {
    step.pooled.push_back(left.embeddings[i] != nullptr);
    if (!step.pooled.back()) continue;
    backend_->CopyToHostLater(static_cast<float*>(step.embeddings.get()) + i * hidden_size_,
                              left.embeddings[i], hidden_size_ * sizeof(float));
  }
  if (step.sampled > 0)
    backend_->CopyToHostLater(step.tokens.get(), left.tokens, step.sampled * sizeof(TokenId));
  step.logprobs_drawn = left.num_logprobs;
  step.logprobs_of_prompts = left.num_prompt_logprobs;
  const size_t logprobs = step.logprobs_drawn + step.logprobs_of_prompts;
  if (logprobs > 0)
    backend_->CopyToHostLater(step.logprobs.get(), left.logprobs, logprobs * sizeof(TokenLogprobs));
  backend_->RecordEvent(index);
}

float* StepResults::ObservationsOf(const Step& step, size_t row) const {
  return static_cast<float*>(step.observations.get()) + row * kMaxObservations * num_heads_;
}

std::vector<PageIds> StepResults::PagesOfRows(const PageIds* rows, int32_t row_width,
                                              std::span<const int32_t> entries) const {
  std::vector<PageIds> pages;
  for (const int32_t held : entries) {
    pages.insert(pages.end(), rows, rows + PagesOf(held, block_size_));
    rows += row_width;
  }
  return pages;
}

CacheReport StepResults::ReadReport(const Step& step, size_t row) const {
  CacheReport report;
  const auto read = [row]<typename T>(const DeviceBuffer& rows, size_t count, std::vector<T>* to) {
    const auto* from = static_cast<const T*>(rows.get()) + row * count;
    to->assign(from, from + count);
  };
  const auto [entries, rows, row_width, mass, observations] = step.reports[row];
  if (entries) read(step.entries, num_heads_, &report.entries);
  if (row_width > 0) {
    report.pages =
        PagesOfRows(static_cast<const PageIds*>(step.rows.get()) + rows, row_width, report.entries);
  }
  if (mass) read(step.masses, num_heads_, &report.retained_mass);
  const float* from = ObservationsOf(step, row);
  report.observations.assign(from, from + observations * num_heads_);
  return report;
}

absl::Status StepResults::Pop(StepResult* result) {
  if (absl::Status status = backend_->WaitForEvent(oldest_); !status.ok()) {
    in_flight_ = 0;
    return status;
  }
  Step& step = steps_[oldest_];
  oldest_ = (oldest_ + 1) % kMaxInFlight;
  --in_flight_;
  const auto* tokens = static_cast<const TokenId*>(step.tokens.get());
  result->tokens.assign(tokens, tokens + step.sampled);
  const auto* logprobs = static_cast<const TokenLogprobs*>(step.logprobs.get());
  const TokenLogprobs* of_prompts = logprobs + step.logprobs_drawn;
  result->logprobs.assign(logprobs, of_prompts);
  result->prompt_logprobs.assign(of_prompts, of_prompts + step.logprobs_of_prompts);
  result->kept_entries = std::exchange(step.kept_entries, {});
  result->embeddings.clear();
  for (size_t i = 0; i < step.pooled.size(); ++i) {
    const float* from = static_cast<const float*>(step.embeddings.get()) + i * hidden_size_;
    result->embeddings.emplace_back(from, from + (step.pooled[i] ? hidden_size_ : 0));
  }
  result->prompt_reports.clear();
  result->compaction_reports.clear();
  for (size_t i = 0; i < step.reports.size(); ++i) {
    const bool compactions = i + step.compactions >= step.reports.size();
    auto& reports = compactions ? result->compaction_reports : result->prompt_reports;
    reports.push_back(ReadReport(step, i));
  }
  return absl::OkStatus();
}

}  // namespace hydrant
