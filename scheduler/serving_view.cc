#include "scheduler/serving_view.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "scheduler/sequence_usage.h"

namespace hydrant {

namespace {

std::string Begin(const std::string& text) { return text.substr(0, kMaxViewedBytes); }

std::optional<int32_t> LimitOrUnset(int32_t entries) {
  return entries == kNoCap ? std::nullopt : std::optional(entries);
}

int32_t MeanBudget(const CachePlan& plan) {
  const std::vector<int32_t>& layers = plan.layer_budgets;
  if (layers.empty()) return plan.budget;
  const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  return static_cast<int32_t>(sum / static_cast<int64_t>(layers.size()));
}

int64_t PagesMaybeShared(const SequenceBlocks& blocks) {
  return std::accumulate(blocks.shared.begin(), blocks.shared.end(), int64_t{0});
}

// `singles` of the pages that may be shared have one owner. Their owners would take a look at each
// page, so they are divided evenly.
void DivideSharedPages(int64_t singles, std::vector<SequenceView>* sequences) {
  int64_t maybe_shared = 0;
  for (const SequenceView& one : *sequences) maybe_shared += one.pages - one.own_pages;
  for (SequenceView& one : *sequences) {
    if (maybe_shared == 0) return;
    const int64_t maybe = one.pages - one.own_pages;
    const int64_t part = singles * maybe / maybe_shared;
    one.own_pages += part;
    singles -= part;
    maybe_shared -= maybe;
  }
}

SequenceView ViewOf(const Sequence& sequence, const EngineLimits& limits, TimeUs now) {
  const SequenceProgress& progress = sequence.progress;
  const SequenceCache& cache = sequence.cache;
  const SequenceBlocks& blocks = cache.blocks;
  const Usage& usage = sequence.account.usage;
  SequenceView view{
      .handle = sequence.handle,
      .request_id = Begin(sequence.request.request_id),
      .tenant = Begin(sequence.tenant->name),
      .policy = Begin(cache.spec.policy),
      .priority = sequence.request.priority,
      .phase = sequence.phase,
      .age_us = now - sequence.account.submitted_at,
      .budget = LimitOrUnset(MeanBudget(cache.plan)),
      .most_entries = LimitOrUnset(cache.plan.cap),
      .prompt_tokens = progress.num_prompt_tokens,
      .completion_tokens = usage.completion_tokens,
      .pages = blocks.num_pages,
      .own_pages = blocks.num_pages - PagesMaybeShared(blocks),
      .host_pages = static_cast<int64_t>(cache.swapped.host_pages.size()),
      .full_pages = limits.PagesOfFull(std::max(progress.num_seen, progress.NumKnown())),
      .preemptions = usage.preemptions,
      .swaps = usage.swaps,
      .shrinks = usage.shrinks};
  if (!sequence.IsWaiting())
    view.prompt_tokens_read = static_cast<int32_t>(sequence.PromptTokensRead(limits.num_layers));
  if (progress.num_done > 0) {
    const HeldEntries held = EntriesOf(sequence, limits);
    view.kept = static_cast<int32_t>(std::lround(held.mean));
    view.fullest = held.most;
    view.evicted = static_cast<int32_t>(progress.num_done) - view.kept;
  }
  return view;
}

}  // namespace

ServingView MakeView(const SchedulerState& state, const ServingStats& stats,
                     uint64_t evicted_entries, TimeUs now) {
  ServingView view;
  view.at = now;
  view.stats = stats;
  view.context_pages = state.contexts.NumHostPages();
  view.host_pages = state.limits.num_host_pages;
  view.evicted_entries = evicted_entries;
  view.shared_pages = state.kv_cache.NumSharedPages();
  int64_t singles = stats.pages_total - stats.pages_free - view.shared_pages;
  std::vector<const Sequence*> most_pages_first(state.table.live().begin(),
                                                state.table.live().end());
  std::ranges::stable_sort(most_pages_first, std::greater(), [](const Sequence* sequence) {
    return sequence->cache.blocks.num_pages;
  });
  view.live.reserve(most_pages_first.size());
  for (const Sequence* sequence : most_pages_first) {
    const SequenceView& one = view.live.emplace_back(ViewOf(*sequence, state.limits, now));
    view.evicted_entries += static_cast<uint64_t>(one.evicted);
    singles -= one.own_pages;
  }
  DivideSharedPages(singles, &view.live);
  for (size_t i = kMaxViewedLive; i < view.live.size(); ++i)
    view.pages_of_others += view.live[i].own_pages;
  view.live.resize(std::min(view.live.size(), kMaxViewedLive));
  for (const Sequence* sequence : state.table.queue().InOrder()) {
    if (view.waiting.size() == kMaxViewedWaiting) break;
    view.waiting.push_back(ViewOf(*sequence, state.limits, now));
  }
  return view;
}

}  // namespace hydrant
