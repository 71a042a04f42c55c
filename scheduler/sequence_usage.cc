#include "scheduler/sequence_usage.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/mass_summary.h"

namespace hydrant {

HeldEntries EntriesOf(const Sequence& sequence, const EngineLimits& limits) {
  const int64_t done = sequence.progress.num_done;
  const SequenceCache& cache = sequence.cache;
  if (limits.BudgetLayers() == 0) {
    const auto all = static_cast<int32_t>(std::min<int64_t>(done, limits.Window()));
    return {.most = all, .mean = static_cast<double>(all)};
  }
  const std::vector<HeadSpan>& spans =
      sequence.IsSwapped() ? cache.swapped.spans : cache.space.spans;
  if (!cache.space.lengths_known || spans.empty()) {
    return {.most = cache.plan.EntriesAfter(done),
            .mean = static_cast<double>(cache.plan.MeanEntriesAfter(done))};
  }
  int32_t most = 0;
  int64_t sum = 0;
  const int heads = limits.BudgetHeads();
  for (int head = 0; head < heads; ++head) {
    const int32_t entries = spans[head].EntriesAfter(done);
    most = std::max(most, entries);
    sum += entries;
  }
  return {.most = most, .mean = static_cast<double>(sum) / heads};
}

void RecordCompression(const CacheReport& report, const EngineLimits& limits, Sequence* sequence) {
  const SequenceSpace& space = sequence->cache.space;
  const CachePlan& plan = sequence->cache.plan;
  Usage& usage = sequence->account.usage;
  usage.kv_entries_of_prompt = usage.kv_window_entries_of_prompt = 0;
  // Slabs that state leaves free are returned in the next step (CacheSpace::PackState).
  const int64_t spare = space.HasSpareSlab() ? space.free_states.size() / space.states_a_slab : 0;
  usage.kv_pages_of_prompt = space.num_pages - spare;
  usage.heads_kept_whole = 0;
  const std::optional<PageCut> cut = plan.life->CutPrompt(plan, limits.BudgetLayers());
  const bool guarded = cut.has_value() && cut->min_retained_mass > 0.0f;
  const size_t budget_heads = static_cast<size_t>(limits.BudgetHeads());
  for (size_t head = 0; head < space.spans.size(); ++head) {
    const HeadSpan& span = space.spans[head];
    const int32_t entries = span.EntriesAfter(sequence->progress.num_context_tokens);
    usage.kv_entries_of_prompt += entries;
    if (head >= budget_heads) {
      usage.kv_window_entries_of_prompt += entries;
    } else if (guarded && span.dropped == 0) {
      ++usage.heads_kept_whole;
    }
  }
  if (!report.retained_mass.empty()) usage.retained_mass = Summarize(report.retained_mass);
  usage.policy_report = ReportOf(plan);
}

void EndAbsence(TimeUs now, Sequence* sequence) {
  const std::optional<Absence> absence = std::exchange(sequence->account.absence, std::nullopt);
  if (!absence.has_value()) return;
  Usage& usage = sequence->account.usage;
  const TimeUs lasted = now - absence->since;
  (absence->swapped ? usage.swapped_us : usage.preempted_us) += lasted;
  if (usage.away.size() < kMostTimesAway) {
    const TimeUs after = absence->since - sequence->account.submitted_at;
    usage.away.push_back({after, lasted, absence->swapped});
  }
}

void CloseUsage(const EngineLimits& limits, TimeUs now, Sequence* sequence) {
  SequenceAccount& account = sequence->account;
  Usage& usage = account.usage;
  const TimeUs prefill_start = account.prefill_started_at.value_or(now);
  const TimeUs first_token = account.first_token_at.value_or(now);
  usage.submitted_at = account.submitted_at;
  usage.queue_us = prefill_start - account.submitted_at;
  usage.prefill_us = first_token - prefill_start;
  usage.decode_us = now - first_token;
  EndAbsence(now, sequence);
  const int64_t pages = sequence->cache.space.num_pages, done = sequence->progress.num_done;
  account.page_time.Hold(pages, now);
  usage.kv_pages_mean = account.page_time.Mean();
  const HeldEntries held = EntriesOf(*sequence, limits);
  usage.kv_tokens_kept = held.most;
  usage.kv_tokens_evicted = static_cast<int32_t>(done - held.most);
  usage.kv_tokens_kept_mean = held.mean;
  usage.kv_tokens_evicted_mean = static_cast<double>(done) - held.mean;
  usage.kv_bytes = pages * limits.page_bytes;
  usage.kv_bytes_of_full = limits.PagesOfFull(done) * limits.page_bytes;
}

}  // namespace hydrant
