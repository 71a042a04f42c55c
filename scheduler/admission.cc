#include "scheduler/admission.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/ops/prefix_blocks.h"

namespace hydrant {

namespace {

// A preempted sequence comes back when the live ones have room for this many more tokens, and twice
// the tokens that it has to replay; so it is not preempted again at once.
constexpr int64_t kAheadTokens = 64;

// The sequence has the fallback cache of its request instead of the full one.
void UseFallback(const PromptPlan& fallback, Sequence* sequence) {
  sequence->cache.spec = fallback.spec;
  sequence->account.usage.compressed_by = fallback.spec.policy;
}

}  // namespace

std::optional<WaitReason> Admission::TryAdmit(Sequence* sequence, CacheUpdates* updates) {
  const bool was_preempted = sequence->phase != Phase::kWaiting;
  if (was_preempted && !HasRoomToResume(*sequence)) return WaitReason::kPreempted;
  if (parts_.slo->MustLearnFirst(*sequence)) return WaitReason::kTtft;
  if (!parts_.slo->KeepsTpot(*sequence)) return WaitReason::kTpot;
  const std::optional<WaitReason> lacked = TryResolveAndOpen(sequence, updates);
  if (!lacked.has_value() || TryFallback(*lacked, sequence, updates)) return std::nullopt;
  return lacked;
}

std::optional<WaitReason> Admission::TryResolveAndOpen(Sequence* sequence, CacheUpdates* updates) {
  CachePlan& plan = sequence->cache.plan;
  if (plan.resolve_at != ResolveAt::kAdmission) return TryOpen(sequence, updates);
  CachePlan open = std::exchange(plan, ResolveByRoom(*sequence));
  const std::optional<WaitReason> lacked = TryOpen(sequence, updates);
  if (lacked.has_value()) plan = std::move(open);  // decided again at the next try
  return lacked;
}

// A full cache that lacks room becomes the one of policy_under_pressure, where that fits, and so do
// its samples. A sequence that has begun before goes on as it was.
bool Admission::TryFallback(WaitReason lacked, Sequence* sequence, CacheUpdates* updates) {
  const std::shared_ptr<const PromptPlan> fallback = sequence->request.fallback_plan;
  if (fallback == nullptr || sequence->phase != Phase::kWaiting ||
      sequence->request.sample_of.has_value())
    return false;
  if (lacked != WaitReason::kPages && lacked != WaitReason::kBlockTables) return false;
  SequenceProgress& progress = sequence->progress;
  CachePlan whole = std::exchange(sequence->cache.plan, fallback->plan);
  progress.probed = WithProbe(progress, fallback->probe);
  if (!parts_.slo->KeepsTpot(*sequence) || TryResolveAndOpen(sequence, updates).has_value()) {
    sequence->cache.plan = std::move(whole);
    progress.probed.clear();  // the full cache reads none
    return false;
  }
  UseFallback(*fallback, sequence);
  for (const RequestHandle handle : sequence->samples) {
    Sequence* const sample = parts_.table->Find(handle);
    if (sample == nullptr) continue;
    sample->cache.plan = sequence->cache.plan;
    sample->progress.probed = progress.probed;
    UseFallback(*fallback, sample);
  }
  return true;
}

// An open budget becomes the largest with which the sequence's whole life fits into an equal share
// of the free pages among all that wait, or its prompt, where it may be compacted later; and with
// which the target for the time per output token is kept.
CachePlan Admission::ResolveByRoom(const Sequence& sequence) const {
  const int64_t free =
      std::max<int64_t>(0, parts_.kv_cache->NumUnreservedPages() - watermark_pages_);
  const auto waiting = static_cast<int64_t>(parts_.table->queue().size());
  const int64_t last = sequence.progress.max_total_tokens - 1;
  const int64_t tokens =
      sequence.request.on_pressure == OnPressure::kEvict ? sequence.progress.NumKnown() : last;
  const auto fits = [&](const CachePlan& plan) {
    return KvCacheManager::FitsAlone(limits_, plan, last) &&
           parts_.kv_cache->PagesFor(plan, tokens) <= free / waiting &&
           parts_.slo->KeepsTpot(sequence, plan, waiting);
  };
  return Resolve(sequence.cache.plan, {.fits = fits,
                                       .free_pages = free,
                                       .num_waiting = waiting,
                                       .tpot_us = parts_.slo->pacer().Tpot(sequence.request.slo),
                                       .of_prompt = {}});
}

std::optional<WaitReason> Admission::TryOpen(Sequence* sequence, CacheUpdates* updates) {
  if (sequence->IsSwapped()) return TrySwapIn(sequence, updates);
  SequenceCache& cache = sequence->cache;
  KvCacheManager& kv_cache = *parts_.kv_cache;
  KvCacheManager::OpenArgs args = {
      .plan = &cache.plan,
      .prompt_tokens = static_cast<int64_t>(sequence->PrefillTokens().size()),
      .tokens = sequence->progress.NumKnown(),
      .final_tokens = sequence->progress.max_total_tokens - 1,
      .pages_kept_free = KeptFree(),
      .sharable = sequence->SharesPages()};
  const Context* from = sequence->request.from.get();
  const OffloadedCache* offloaded = from == nullptr ? nullptr : parts_.contexts->Use(*from);
  if (from != nullptr) cache.plan = offloaded != nullptr ? from->plan : from->first_plan;
  const CachePlan largest = sequence->IsGuaranteed() ? sequence->LargestPlan() : CachePlan();
  if (sequence->IsGuaranteed()) args.reservation = &largest;
  const std::span<const PrefixKey> keys = sequence->request.prefix_keys;
  if (offloaded != nullptr) {
    args.tokens = from->num_seen;
  } else if (!keys.empty() && sequence->SharesPages()) {
    args.prefix = keys.first(parts_.reuse->UsableTokens(*sequence) / kPrefixBlockTokens);
  }
  const int64_t shared = offloaded == nullptr ? kv_cache.NumSharedWhenOpened(args)
                                              : kv_cache.NumSharedWhenOpened(args, *offloaded);
  if (!FitsLater(*sequence, shared)) return WaitReason::kPages;
  const bool opened = offloaded == nullptr
                          ? kv_cache.TryOpen(args, &cache.blocks, updates)
                          : kv_cache.TrySwapIn(args, *offloaded, &cache.blocks, updates);
  if (!opened) return kv_cache.wait_reason();
  if (offloaded != nullptr) sequence->progress.num_seen = from->num_seen;
  return std::nullopt;
}

// When all of its tokens are known: they are not on the device any more.
std::optional<WaitReason> Admission::TrySwapIn(Sequence* sequence, CacheUpdates* updates) {
  const SequenceProgress& progress = sequence->progress;
  if (progress.NumKnown() <= progress.num_seen) return WaitReason::kArrived;
  if (!FitsLater(*sequence, 0)) return WaitReason::kPages;
  SequenceCache& cache = sequence->cache;
  const KvCacheManager::OpenArgs args = {.plan = &cache.plan,
                                         .tokens = progress.num_seen,
                                         .final_tokens = progress.max_total_tokens - 1,
                                         .pages_kept_free = KeptFree(),
                                         .sharable = false};
  if (!parts_.kv_cache->TrySwapIn(args, cache.swapped, &cache.blocks, updates))
    return parts_.kv_cache->wait_reason();
  parts_.reclaimer->DropSwapped(sequence);
  return std::nullopt;
}

bool Admission::HasRoomToResume(const Sequence& sequence) const {
  const std::vector<Sequence*>& live = parts_.table->live();
  if (live.empty()) return true;
  const SequenceProgress& progress = sequence.progress;
  const int64_t replayed =
      sequence.IsSwapped() ? 0 : progress.NumKnown() - progress.num_context_tokens;
  const int64_t ahead = kAheadTokens + 2 * replayed;
  int64_t room = parts_.kv_cache->NumUnreservedPages() - watermark_pages_;
  room -= parts_.kv_cache->PagesFor(
      sequence.cache.plan, std::min(progress.NumKnown() + ahead, progress.max_total_tokens - 1));
  for (const Sequence* other : live) {
    if (room < 0) return false;
    const SequenceProgress& theirs = other->progress;
    const int64_t seen = std::max<int64_t>(theirs.num_seen, theirs.num_context_tokens);
    room -= parts_.kv_cache->PagesMissing(other->cache.blocks,
                                          std::min(seen + ahead, theirs.max_total_tokens - 1));
  }
  return room >= 0;
}

// Whether the newcomer and the live sequences will find their pages until they end, as far as it
// can be known: a sequence that would be preempted waits instead, and nothing is read twice.
// `shared`: pages that it begins with and others hold already.
bool Admission::FitsLater(const Sequence& newcomer, int64_t shared) {
  const std::vector<Sequence*>& live = parts_.table->live();
  if (live.empty() || !parts_.slo->outputs().IsKnown()) return true;
  forecast_.Clear();
  for (const Sequence* sequence : live) forecast_.Add(HolderOf(*sequence));
  PoolForecast::Holder holder = HolderOf(newcomer);
  // Its samples begin with its pages, and each goes on with pages of its own.
  const auto samples = static_cast<double>(1 + newcomer.samples.size());
  holder.most = holder.pages + samples * (holder.most - holder.pages);
  holder.per_token *= samples;
  if (newcomer.IsGuaranteed()) holder.pages = holder.most;
  forecast_.Add(holder);
  // Each owner of a page counts it; so there are more.
  const int64_t pages =
      parts_.kv_cache->NumPages() + parts_.kv_cache->NumSparedPages() + shared - watermark_pages_;
  return forecast_.Fits(static_cast<double>(pages));
}

// The sequence as it is when its prompt has been read; its other known tokens follow one by one.
PoolForecast::Holder Admission::HolderOf(const Sequence& sequence) const {
  const KvCacheManager& kv_cache = *parts_.kv_cache;
  const SequenceProgress& progress = sequence.progress;
  const SequenceCache& cache = sequence.cache;
  const int64_t seen = std::max<int64_t>(progress.num_seen, progress.num_context_tokens);
  const bool holds = sequence.IsDecoding() && cache.IsSettled();
  const double pages =
      holds ? static_cast<double>(cache.blocks.num_pages) : kv_cache.LikelyPages(cache.plan, seen);
  PoolForecast::Holder holder = {.pages = pages, .most = pages};
  holder.tokens = static_cast<double>(std::max<int64_t>(0, progress.NumKnown() - seen));
  const int64_t most = progress.max_total_tokens - progress.num_prompt_tokens;
  if (most > 0 && !sequence.request.prefill_only &&
      sequence.request.pooling == EmbeddingPooling::kNone)
    holder.tokens +=
        parts_.slo->outputs().RestOf(progress.NumKnown() - progress.num_prompt_tokens, most);
  // A cache that may be shrunk for others gives way to them.
  if (sequence.request.on_pressure == OnPressure::kEvict && CanShrink(cache.plan)) return holder;
  if (sequence.IsGuaranteed()) {
    holder.most = sequence.IsWaiting()
                      ? kv_cache.PagesFor(sequence.LargestPlan(), progress.max_total_tokens - 1)
                      : cache.blocks.num_pages + cache.blocks.reserved_pages;
    if (!sequence.IsWaiting()) holder.pages = holder.most;  // others cannot take them any more
    return holder;
  }
  const int64_t last = seen + static_cast<int64_t>(holder.tokens);
  holder.most = std::max(pages, kv_cache.LikelyPages(cache.plan, last));
  holder.per_token = static_cast<double>(limits_.num_layers) * limits_.num_kv_heads /
                     static_cast<double>(limits_.block_size);
  return holder;
}

}  // namespace hydrant
