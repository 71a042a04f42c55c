#include "scheduler/step_ledger.h"

#include "kernels/check.h"

namespace hydrant {

// Keeps the vectors' memory.
void StepLedger::Begin(TimeUs now) {
  current_.decode.clear();
  current_.prefill.clear();
  current_.cut.clear();
  current_.swaps = false;
  current_.work = StepWork();
  current_.scheduled_at = now;
}

void StepLedger::Commit() { in_flight_.push_back(std::move(current_)); }

void StepLedger::RemoveOldest() {
  current_ = std::move(in_flight_.front());
  current_.ended.clear();
  in_flight_.pop_front();
  if (steps_with_blocks_ > 0) --steps_with_blocks_;
}

void StepLedger::Clear() {
  in_flight_.clear();
  steps_with_blocks_ = 0;
}

void StepLedger::KeepEnded(std::unique_ptr<Sequence> sequence) {
  if (!in_flight_.empty()) in_flight_.back().ended.push_back(std::move(sequence));
}

bool StepLedger::CutInFlight(const Sequence& sequence) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const StepRecord& step) { return step.Cuts(sequence); });
}

bool StepLedger::SwapsInFlight() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [](const StepRecord& step) { return step.swaps; });
}

LogprobReader::LogprobReader(const StepRecord& step, const StepResult& result)
    : next_(result.logprobs.data()), next_of_prompts_(result.prompt_logprobs.data()) {
  const auto wants = [](const ScheduledToken& row) { return row.logprobs; };
  next_of_samples_ = next_ + std::ranges::count_if(step.decode, wants) +
                     std::ranges::count_if(step.prefill, wants);
  size_t of_samples = 0, of_prompts = 0;
  for (const ScheduledSlice& slice : step.prefill) {
    if (slice.logprobs) of_samples += slice.samples.size();
    of_prompts += slice.scored.end - slice.scored.begin;
  }
  HYDRANT_CHECK(result.logprobs.size() == next_of_samples_ - next_ + of_samples);
  HYDRANT_CHECK(result.prompt_logprobs.size() == of_prompts);
}

}  // namespace hydrant
