#include "scheduler/serving_view.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hydrant {

namespace {

std::string Begin(const std::string& text) { return text.substr(0, kMostViewedBytes); }

std::optional<int32_t> UnlessAny(int32_t entries) {
  return entries == kNoCap ? std::nullopt : std::optional(entries);
}

int32_t MeanBudget(const CachePlan& plan) {
  const std::vector<int32_t>& layers = plan.layer_budgets;
  if (layers.empty()) return plan.budget;
  const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  return static_cast<int32_t>(sum / static_cast<int64_t>(layers.size()));
}

int64_t PagesMaybeShared(const SequenceSpace& space) {
  return std::accumulate(space.shared.begin(), space.shared.end(), int64_t{0});
}

// Of pages that may have several owners, `singles` have one. Which of them are whose only a look at
// each page would tell, so they are divided evenly.
void DivideSingles(int64_t singles, std::vector<SequenceView>* sequences) {
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

}  // namespace

SequenceView Scheduler::ViewOf(const Sequence& sequence, TimeUs now) const {
  const SequenceSpace& space = sequence.space;
  const bool is_live = !sequence.IsWaiting();
  SequenceView view{
      .handle = sequence.handle,
      .request_id = Begin(sequence.request_id),
      .tenant = Begin(sequence.tenant->name),
      .policy = Begin(sequence.spec.policy),
      .priority = sequence.priority,
      .state = sequence.state,
      .is_swapped = sequence.IsSwapped(),
      .age_us = now - sequence.submitted_at,
      .budget = UnlessAny(MeanBudget(sequence.plan)),
      .most_entries = UnlessAny(sequence.plan.cap),
      .prompt_tokens = sequence.num_prompt_tokens,
      .completion_tokens = sequence.usage.completion_tokens,
      .pages = space.num_pages,
      .own_pages = space.num_pages - PagesMaybeShared(space),
      .host_pages = static_cast<int64_t>(sequence.swapped.host_pages.size()),
      .full_pages = limits_.PagesOfFull(std::max(sequence.num_seen, sequence.NumKnown())),
      .preemptions = sequence.usage.preemptions,
      .swaps = sequence.usage.swaps,
      .shrinks = sequence.usage.shrinks};
  if (is_live) view.prompt_tokens_read = static_cast<int32_t>(PromptTokensRead(sequence));
  if (sequence.num_done > 0) {
    const HeldEntries held = EntriesOf(sequence);
    view.kept = static_cast<int32_t>(std::lround(held.mean));
    view.fullest = held.most;
    view.evicted = static_cast<int32_t>(sequence.num_done) - view.kept;
  }
  return view;
}

ServingView Scheduler::View(TimeUs now) const {
  ServingView view;
  view.at = now;
  view.stats = Stats();
  view.context_pages = contexts_.NumHostPages();
  view.host_pages = limits_.num_host_pages;
  view.evicted_entries = evicted_entries_;
  view.shared_pages = space_.NumSharedPages();
  int64_t singles = view.stats.pages_total - view.stats.pages_free - view.shared_pages;
  for (const Sequence* sequence : live_) {
    const SequenceView& one = view.live.emplace_back(ViewOf(*sequence, now));
    view.evicted_entries += static_cast<uint64_t>(one.evicted);
    singles -= one.own_pages;
  }
  DivideSingles(singles, &view.live);
  std::stable_sort(view.live.begin(), view.live.end(),
                   [](const SequenceView& a, const SequenceView& b) { return a.pages > b.pages; });
  for (size_t i = kMostViewedLive; i < view.live.size(); ++i)
    view.pages_of_others += view.live[i].own_pages;
  view.live.resize(std::min(view.live.size(), kMostViewedLive));
  for (const Sequence* sequence : waiting_.InOrder()) {
    if (view.waiting.size() == kMostViewedWaiting) break;
    view.waiting.push_back(ViewOf(*sequence, now));
  }
  return view;
}

}  // namespace hydrant
