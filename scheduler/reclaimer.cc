#include "scheduler/reclaimer.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace hydrant {

Reclaimer::Growth Reclaimer::Grow(int64_t tokens, TimeUs now, Sequence* sequence,
                                  CacheUpdates* updates) {
  SequenceBlocks& blocks = sequence->cache.blocks;
  if (tokens <= blocks.capacity) return Growth::kGrown;
  const std::vector<Sequence*>& live = parts_.table->live();
  while (!parts_.kv_cache->TryGrow(tokens, &blocks, updates)) {
    if (live.size() > 1 && parts_.compactor->TryShrink(updates)) continue;
    Sequence* const victim = live.size() > 1 ? PickVictim(*updates) : nullptr;
    if (victim == nullptr) {
      ForgetUpdates(*sequence, updates);
      return Growth::kTooLarge;
    }
    Preempt(victim, updates);
    victim->account.page_occupancy.Hold(0, now);
    victim->account.preemption = {.since = now, .swapped = victim->IsSwapped()};
    if (victim == sequence) return Growth::kPreempted;
  }
  int64_t& peak = sequence->account.usage.kv_pages_peak;
  peak = std::max(peak, blocks.num_pages);
  return Growth::kGrown;
}

// Sequences without reserved pages, and not the first of them unless it is the only one. Order:
// lowest priority, fewest preemptions, least work lost a page, newest. Null: there is none.
Sequence* Reclaimer::PickVictim(const CacheUpdates& updates) const {
  const auto cost = [&](const Sequence& sequence) {
    const auto pages = static_cast<double>(std::max<int64_t>(1, sequence.cache.blocks.num_pages));
    const Usage& usage = sequence.account.usage;
    return std::tuple(-sequence.request.priority, usage.preemptions + usage.swaps,
                      WorkLostBy(sequence, updates) / pages);
  };
  Sequence* first = nullptr;
  Sequence* victim = nullptr;
  for (Sequence* sequence : parts_.table->live()) {
    if (sequence->IsGuaranteed()) continue;
    if (first == nullptr) {
      first = sequence;
    } else if (victim == nullptr || cost(*sequence) <= cost(*victim)) {
      victim = sequence;
    }
  }
  return victim != nullptr ? victim : first;
}

// Microseconds until the sequence would be where it is; 0 where its cache moves to host memory.
double Reclaimer::WorkLostBy(const Sequence& sequence, const CacheUpdates& updates) const {
  if (MaySwapOut(sequence, updates)) return 0;
  const SequenceProgress& progress = sequence.progress;
  const double done = static_cast<double>(sequence.PromptTokensRead(limits_.num_layers)) /
                      progress.num_prompt_tokens;
  const auto replayed =
      static_cast<double>(std::max<int64_t>(0, progress.num_seen - progress.num_prompt_tokens));
  const Pacer& pacer = parts_.slo->pacer();
  return done * pacer.ReadingUs(sequence.latency.prompt_work) +
         replayed * pacer.step_time().Marginal({.rows = 1});
}

void Reclaimer::Preempt(Sequence* sequence, CacheUpdates* updates) {
  const bool swapped = TrySwapOut(sequence, updates);
  if (swapped) {
    ++sequence->account.usage.swaps;
    ++num_swaps_;
  } else {
    Release(sequence, updates);
    ++sequence->account.usage.preemptions;
    ++num_preemptions_;
  }
  parts_.kv_cache->Release(&sequence->cache.blocks);
  parts_.reuse->Abandon(sequence);
  parts_.table->Requeue(sequence, swapped ? Phase::kSwapped : Phase::kPreempted);
}

// It will read its prompt again from the start.
void Reclaimer::Release(Sequence* sequence, CacheUpdates* updates) {
  ForgetUpdates(*sequence, updates);
  SequenceCache& cache = sequence->cache;
  cache.keep.clear();
  cache.num_shrunk = 0;
  if (cache.plan_before.has_value()) cache.plan = *std::exchange(cache.plan_before, std::nullopt);
  sequence->progress.cursor = PrefillCursor();
  sequence->progress.num_seen = sequence->progress.num_done = 0;
}

// Removes its updates from the batch. An earlier sequence in the same slot, which has ended, keeps
// its own.
void Reclaimer::ForgetUpdates(const Sequence& sequence, CacheUpdates* updates) {
  const int slot = sequence.cache.blocks.slot;
  std::vector<CacheUpdate>& list = updates->list;
  const auto opened = std::find_if(list.rbegin(), list.rend(), [&](const CacheUpdate& update) {
    return std::holds_alternative<SlotSetup>(update) && SlotOf(update) == slot;
  });
  const auto first = opened == list.rend() ? list.begin() : std::prev(opened.base());
  list.erase(std::remove_if(first, list.end(),
                            [&](const CacheUpdate& update) { return SlotOf(update) == slot; }),
             list.end());
  std::erase_if(parts_.ledger->current().compacted,
                [&](const CacheId& cache) { return cache.IsOf(sequence); });
}

// Its cache is final after the steps in flight, and the step that is being scheduled changes
// nothing of it.
bool Reclaimer::MaySwapOut(const Sequence& sequence, const CacheUpdates& updates) const {
  const SequenceBlocks& blocks = sequence.cache.blocks;
  if (swapped_pages_ + blocks.NumDataPages() > limits_.num_swap_pages) return false;
  if (sequence.phase != Phase::kRunning || !sequence.cache.IsSettled() ||
      sequence.NextAppend() != nullptr || !sequence.samples.empty())
    return false;
  // A sequence that ends while it is swapped could not be kept.
  if (!sequence.request.keep_as.handle.empty() &&
      sequence.progress.num_done < sequence.progress.num_seen)
    return false;
  const auto changes_it = [&](const CacheUpdate& update) {
    return SlotOf(update) == blocks.slot && !std::holds_alternative<SlotPlan>(update) &&
           !std::holds_alternative<TableRow>(update);
  };
  if (std::any_of(updates.list.begin(), updates.list.end(), changes_it)) return false;
  return !parts_.ledger->IsCompactedInFlight(sequence);  // its lengths will be reported
}

bool Reclaimer::TrySwapOut(Sequence* sequence, CacheUpdates* updates) {
  SequenceCache& cache = sequence->cache;
  if (!MaySwapOut(*sequence, *updates)) return false;
  if (!parts_.kv_cache->TrySwapOut(cache.blocks, &cache.swapped, updates)) return false;
  swapped_pages_ += static_cast<int64_t>(cache.swapped.host_pages.size());
  return true;
}

void Reclaimer::DropSwapped(Sequence* sequence) {
  swapped_pages_ -= static_cast<int64_t>(sequence->cache.swapped.host_pages.size());
  parts_.kv_cache->Drop(&sequence->cache.swapped);
}

}  // namespace hydrant
