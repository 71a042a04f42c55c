// The part of Scheduler that takes pages from one sequence for another.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/scheduler.h"

namespace hydrant {

namespace {

// A preempted sequence comes back when the live ones have room for this many tokens, and twice what
// it has to replay.
constexpr int64_t kAheadTokens = 64;
// A cache that is cut for others keeps this share of what it holds, and no less than so many
// entries a head, on average, where its request does not say.
constexpr double kShrink = 0.75;
constexpr int32_t kLeastMean = 128;

// [full layers * KV heads] when the scheduled steps have run.
std::vector<int32_t> HeldBy(const Sequence& sequence) {
  const CachePlan& plan = sequence.plan;
  std::vector<int32_t> held(static_cast<size_t>(plan.prompt.num_layers) * plan.prompt.num_kv_heads);
  for (size_t head = 0; head < held.size(); ++head)
    held[head] = sequence.space.spans[head].EntriesAfter(sequence.num_seen);
  return held;
}

// The pages that come home when it is cut so.
int64_t FreedBy(const Sequence& sequence, std::span<const int32_t> keep, int block_size) {
  int64_t pages = 0;
  for (size_t head = 0; head < keep.size(); ++head)
    pages += sequence.space.pages[head] - PagesOf(keep[head], block_size);
  return pages;
}

// What each of its heads keeps.
std::vector<int32_t> KeptBy(const CachePlan& shrunk, int64_t tokens) {
  return shrunk.life->CutAfter(shrunk, tokens).keep_of_heads;
}

}  // namespace

// Of those that allow it, the one that this frees the most pages of; false: of none it frees any.
bool Scheduler::TryShrink() {
  Sequence* best = nullptr;
  int64_t most = 0;
  int32_t mean = 0;
  for (Sequence* sequence : live_) {
    const int32_t to = ShrinksTo(*sequence);
    if (to == 0) continue;
    const int64_t tokens = sequence->num_seen;
    const CachePlan shrunk = Shrink(sequence->plan, tokens, HeldBy(*sequence), to);
    const int64_t freed = FreedBy(*sequence, KeptBy(shrunk, tokens), limits_.block_size);
    if (freed <= most) continue;
    best = sequence;
    most = freed;
    mean = to;
  }
  if (best == nullptr) return false;
  best->shrinks.push_back({best->num_seen, mean});
  ++best->usage.shrinks;
  ++totals_.shrinks;
  ShrinkNow(best, mean);
  return true;
}

// The entries a head that it would be cut to, on average; 0: it may not be cut now.
int32_t Scheduler::ShrinksTo(const Sequence& sequence) const {
  if (sequence.on_pressure != OnPressure::kEvict || sequence.state != SequenceState::kRunning ||
      !sequence.MayDecode() || sequence.num_seen < sequence.num_prompt_tokens ||
      sequence.num_shrunk < sequence.shrinks.size() || !MayShrink(sequence.plan))
    return 0;
  const SequenceSpace& space = sequence.space;
  if (!space.shared.empty() || Names(cut_, sequence) || IsCutNow(sequence)) return 0;
  const int32_t sinks = sequence.plan.rule.sinks;
  const int32_t least = std::max(
      static_cast<int32_t>(sequence.spec.min_cache_tokens.value_or(kLeastMean)), sinks + 2);
  if (sequence.plan.cap <= least) return 0;
  const std::vector<int32_t> held = HeldBy(sequence);
  if (*std::min_element(held.begin(), held.end()) <= sinks) return 0;
  const int64_t sum = std::accumulate(held.begin(), held.end(), int64_t{0});
  const auto mean = static_cast<int32_t>(sum / static_cast<int64_t>(held.size()));
  const auto to = std::max(least, static_cast<int32_t>(mean * kShrink));
  return to < mean ? to : 0;
}

// What it is cut to follows from what its heads hold, which is the same when it reads its prompt
// again.
void Scheduler::ShrinkNow(Sequence* sequence, int32_t mean) {
  const int64_t tokens = sequence->num_seen;
  if (!sequence->plan_before.has_value()) sequence->plan_before = sequence->plan;
  sequence->plan = Shrink(sequence->plan, tokens, HeldBy(*sequence), mean);
  batch_.Add(SlotCut{sequence->space.slot, static_cast<int32_t>(tokens), sequence->plan});
  space_.Cap(KeptBy(sequence->plan, tokens), &sequence->space);
  cut_.push_back(CacheOf(sequence));
  sequence->usage.policy_report = ReportOf(sequence->plan);
  ++sequence->num_shrunk;
}

// Of those that were promised nothing and are behind the first such, which goes on while it is not
// the only one: one of the last class; of these who was preempted least often, so that nobody is
// twice while another has not been once; then whose pages cost the least work; then the last. Null:
// all were promised what they hold.
Sequence* Scheduler::PickVictim() const {
  const auto cost = [&](const Sequence& sequence) {
    const auto pages = static_cast<double>(std::max<int64_t>(1, sequence.space.num_pages));
    return std::tuple(-sequence.priority, sequence.usage.preemptions + sequence.usage.swaps,
                      WorkLostBy(sequence) / pages);
  };
  Sequence* first = nullptr;
  Sequence* victim = nullptr;
  for (Sequence* sequence : live_) {
    if (sequence->IsPromised()) continue;
    if (first == nullptr) {
      first = sequence;
    } else if (victim == nullptr || cost(*sequence) <= cost(*victim)) {
      victim = sequence;
    }
  }
  return victim != nullptr ? victim : first;
}

// Microseconds until it would be where it is; nothing where its cache is kept.
double Scheduler::WorkLostBy(const Sequence& sequence) const {
  if (MaySwapOut(sequence)) return 0;
  const double done = static_cast<double>(PromptTokensRead(sequence)) / sequence.num_prompt_tokens;
  const auto replayed =
      static_cast<double>(std::max<int64_t>(0, sequence.num_seen - sequence.num_prompt_tokens));
  return done * pacer_.ReadingUs(sequence.prompt_work) +
         replayed * pacer_.step_time().Marginal({.rows = 1});
}

void Scheduler::Preempt(Sequence* sequence) {
  if (TrySwapOut(sequence)) {
    ++sequence->usage.swaps;
    ++totals_.swaps;
  } else {
    ForgetUpdates(*sequence);
    sequence->keep.clear();
    sequence->cursor = PrefillCursor();
    sequence->num_seen = sequence->num_done = 0;
    sequence->num_shrunk = 0;
    if (sequence->plan_before.has_value()) {
      sequence->plan = *std::exchange(sequence->plan_before, std::nullopt);
    }
    ++sequence->usage.preemptions;
    ++totals_.preemptions;
  }
  space_.Release(&sequence->space);
  AbandonPrefix(sequence);
  live_.erase(std::find(live_.begin(), live_.end(), sequence));
  sequence->state = SequenceState::kPreempted;
  queued_tokens_ += sequence->NumKnown();
  waiting_.Add(sequence);
  preempted_in_step_ = true;
  wait_reason_ = WaitReason::kPages;
}

// Of the batch at work. An earlier sequence in the same slot, which has ended, keeps its own.
void Scheduler::ForgetUpdates(const Sequence& sequence) {
  const int slot = sequence.space.slot;
  std::vector<CacheUpdate>& list = batch_.list;
  const auto opened = std::find_if(list.rbegin(), list.rend(), [&](const CacheUpdate& update) {
    return std::holds_alternative<SlotSetup>(update) && SlotOf(update) == slot;
  });
  const auto first = opened == list.rend() ? list.begin() : std::prev(opened.base());
  list.erase(std::remove_if(first, list.end(),
                            [&](const CacheUpdate& update) { return SlotOf(update) == slot; }),
             list.end());
  std::erase_if(cut_, [&](const CacheId& cache) { return cache.IsOf(sequence); });
}

// Its cache is what the steps in flight will have left, and the step at work changes nothing of it.
bool Scheduler::MaySwapOut(const Sequence& sequence) const {
  const SequenceSpace& space = sequence.space;
  if (swapped_pages_ + space.NumDataPages() > limits_.num_swap_pages) return false;
  if (sequence.state != SequenceState::kRunning || !sequence.IsSettled() ||
      sequence.NextRead() != nullptr || !sequence.samples.empty())
    return false;
  // One that ends while it is away could not be kept.
  if (!sequence.keep_as.handle.empty() && sequence.num_done < sequence.num_seen) return false;
  const auto changes_it = [&](const CacheUpdate& update) {
    return SlotOf(update) == space.slot && !std::holds_alternative<SlotDecision>(update) &&
           !std::holds_alternative<TableRow>(update);
  };
  if (std::any_of(batch_.list.begin(), batch_.list.end(), changes_it)) return false;
  const auto cuts_it = [&](const StepInFlight& step) {  // what is left will be reported
    return Names(step.cut, sequence);
  };
  return std::none_of(in_flight_.begin(), in_flight_.end(), cuts_it);
}

bool Scheduler::TrySwapOut(Sequence* sequence) {
  if (!MaySwapOut(*sequence)) return false;
  if (!space_.TrySwapOut(sequence->space, &sequence->swapped, &batch_)) return false;
  swapped_pages_ += static_cast<int64_t>(sequence->swapped.host_pages.size());
  return true;
}

// Once all of its tokens are known, as they are not on the device any more.
bool Scheduler::TrySwapIn(Sequence* sequence) {
  if (sequence->NumKnown() <= sequence->num_seen || !FitsLater(*sequence, 0)) return false;
  const CacheSpace::OpenArgs args = {.plan = &sequence->plan,
                                     .tokens = sequence->num_seen,
                                     .final_tokens = sequence->max_total_tokens - 1,
                                     .pages_kept_free = live_.empty() ? 0 : watermark_pages_,
                                     .others_may_follow = false};
  if (!space_.TrySwapIn(args, sequence->swapped, &sequence->space, &batch_)) {
    wait_reason_ = space_.wait_reason();
    return false;
  }
  DropSwapped(sequence);
  return true;
}

// Steps run in their order, so what the step at work reads of it may be given away.
void Scheduler::DropSwapped(Sequence* sequence) {
  swapped_pages_ -= static_cast<int64_t>(sequence->swapped.host_pages.size());
  space_.Drop(&sequence->swapped);
}

bool Scheduler::HasRoomToComeBack(const Sequence& sequence) const {
  if (live_.empty()) return true;
  const int64_t replayed =
      sequence.IsSwapped() ? 0 : sequence.NumKnown() - sequence.num_context_tokens;
  const int64_t ahead = kAheadTokens + 2 * replayed;
  int64_t room = space_.NumUnpromisedPages() - watermark_pages_;
  room -= space_.PagesFor(sequence.plan,
                          std::min(sequence.NumKnown() + ahead, sequence.max_total_tokens - 1));
  for (const Sequence* other : live_) {
    if (room < 0) return false;
    const int64_t seen = std::max<int64_t>(other->num_seen, other->num_context_tokens);
    room -= space_.PagesMissing(other->space, std::min(seen + ahead, other->max_total_tokens - 1));
  }
  return room >= 0;
}

}  // namespace hydrant
