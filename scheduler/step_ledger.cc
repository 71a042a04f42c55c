#include "scheduler/step_ledger.h"

#include "kernels/check.h"

namespace hydrant {

// Keeps the vectors' memory.
void StepLedger::Begin(TimeUs now) {
  current_.decoded.clear();
  current_.parts.clear();
  current_.compacted.clear();
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

bool StepLedger::IsCompactedInFlight(const Sequence& sequence) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const StepRecord& step) { return step.Compacts(sequence); });
}

bool StepLedger::SwapsInFlight() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [](const StepRecord& step) { return step.swaps; });
}

ResultReader::ResultReader(const StepRecord& step, const StepResult& result)
    : next_(result.tokens.data()),
      next_logprobs_(result.logprobs.data()),
      next_kept_entries_(result.kept_entries.data()),
      next_of_prompts_(result.prompt_logprobs.data()) {
  size_t tokens = 0, logprobs = 0, kept_entries = 0, of_prompts = 0;
  const auto add = [&](const ScheduledToken& row, size_t count) {
    tokens += count;
    if (row.logprobs) logprobs += count;
    if (row.kept_entries) ++kept_entries;
  };
  for (const ScheduledToken& row : step.decoded) add(row, 1);
  for (const ScheduledPart& part : step.parts) {
    if (part.EndsRun()) add(part, 1 + part.samples.size());
    of_prompts += part.scored.end - part.scored.begin;
  }
  HYDRANT_CHECK(result.tokens.size() == tokens);
  HYDRANT_CHECK(result.logprobs.size() == logprobs);
  HYDRANT_CHECK(result.kept_entries.size() == kept_entries);
  HYDRANT_CHECK(result.prompt_logprobs.size() == of_prompts);
  HYDRANT_CHECK(result.prompt_reports.size() == step.parts.size());
  HYDRANT_CHECK(result.compaction_reports.size() == step.compacted.size());
}

}  // namespace hydrant
