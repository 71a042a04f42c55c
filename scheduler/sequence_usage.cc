#include "scheduler/sequence_usage.h"

#include <algorithm>
#include <optional>
#include <span>
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
      sequence.IsSwapped() ? cache.swapped.spans : cache.blocks.spans;
  if (!cache.blocks.lengths_known || spans.empty()) {
    return {.most = cache.plan.EntriesAfter(done),
            .mean = static_cast<double>(cache.plan.MeanEntriesAfter(done))};
  }
  int32_t most = 0;
  int64_t sum = 0;
  const int heads = limits.BudgetHeads();
  for (const HeadSpan& span : std::span(spans).first(heads)) {
    const int32_t entries = span.EntriesAfter(done);
    most = std::max(most, entries);
    sum += entries;
  }
  return {.most = most, .mean = static_cast<double>(sum) / heads};
}

void RecordCompression(const CacheReport& report, const EngineLimits& limits, Sequence* sequence) {
  const SequenceBlocks& blocks = sequence->cache.blocks;
  const CachePlan& plan = sequence->cache.plan;
  Usage& usage = sequence->account.usage;
  usage.kv_entries_of_prompt = usage.kv_window_entries_of_prompt = 0;
  // Slabs that state leaves free are returned in the next step (KvCacheManager::PackState).
  const int64_t spare =
      blocks.HasSpareSlab() ? blocks.free_states.size() / blocks.states_a_slab : 0;
  usage.kv_pages_of_prompt = blocks.num_pages - spare;
  usage.heads_kept_whole = 0;
  const std::optional<PageCompaction> compaction =
      plan.retention->PromptCompaction(plan, limits.BudgetLayers());
  const bool guarded = compaction.has_value() && compaction->min_retained_mass > 0.0f;
  const size_t budget_heads = static_cast<size_t>(limits.BudgetHeads());
  for (size_t head = 0; head < blocks.spans.size(); ++head) {
    const HeadSpan& span = blocks.spans[head];
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

void EndPreemption(TimeUs now, Sequence* sequence) {
  const std::optional<Preemption> preemption =
      std::exchange(sequence->account.preemption, std::nullopt);
  if (!preemption.has_value()) return;
  Usage& usage = sequence->account.usage;
  const TimeUs lasted = now - preemption->since;
  (preemption->swapped ? usage.swapped_us : usage.preempted_us) += lasted;
  if (usage.preemption_intervals.size() < kMaxPreemptionIntervals) {
    const TimeUs after = preemption->since - sequence->account.submitted_at;
    usage.preemption_intervals.push_back({after, lasted, preemption->swapped});
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
  EndPreemption(now, sequence);
  const int64_t pages = sequence->cache.blocks.num_pages, done = sequence->progress.num_done;
  account.page_occupancy.Hold(pages, now);
  usage.kv_pages_mean = account.page_occupancy.Mean();
  const HeldEntries held = EntriesOf(*sequence, limits);
  usage.kv_tokens_kept = held.most;
  usage.kv_tokens_evicted = static_cast<int32_t>(done - held.most);
  usage.kv_tokens_kept_mean = held.mean;
  usage.kv_tokens_evicted_mean = static_cast<double>(done) - held.mean;
  usage.kv_bytes = pages * limits.page_bytes;
  usage.kv_bytes_of_full = limits.PagesOfFull(done) * limits.page_bytes;
}

}  // namespace hydrant
