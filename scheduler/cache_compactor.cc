#include "scheduler/cache_compactor.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

namespace hydrant {

namespace {

// A cache that is shrunk keeps this share of its entries, and at least kLeastMean a head on
// average, where its request does not say otherwise.
constexpr double kShrink = 0.75;
constexpr int32_t kLeastMean = 128;

// Entries of each head after the scheduled steps, [full layers * KV heads].
std::vector<int32_t> HeldBy(const Sequence& sequence) {
  const CachePlan& plan = sequence.cache.plan;
  std::vector<int32_t> held(static_cast<size_t>(plan.prompt.num_layers) * plan.prompt.num_kv_heads);
  for (size_t head = 0; head < held.size(); ++head)
    held[head] = sequence.cache.blocks.spans[head].EntriesAfter(sequence.progress.num_seen);
  return held;
}

// The pages that are freed when each head keeps so many entries.
int64_t PagesFreedBy(const Sequence& sequence, std::span<const int32_t> keep, int block_size) {
  int64_t pages = 0;
  for (size_t head = 0; head < keep.size(); ++head)
    pages += sequence.cache.blocks.pages[head] - PagesOf(keep[head], block_size);
  return pages;
}

// Entries that each head keeps of a shrunk plan.
std::vector<int32_t> KeptBy(const CachePlan& shrunk, int64_t tokens) {
  return shrunk.retention->CompactionAfter(shrunk, tokens).keep_of_heads;
}

}  // namespace

bool CacheCompactor::IsCompactionDue(const Sequence& sequence) const {
  return sequence.phase == Phase::kRunning && sequence.MayDecode() &&
         sequence.cache.num_shrunk == sequence.cache.shrinks.size() &&
         sequence.cache.plan.CompactsAfter(sequence.progress.num_seen) &&
         !ledger_.current().Compacts(sequence);
}

void CacheCompactor::Add(SlotCompaction compaction, Sequence* sequence, CacheUpdates* updates) {
  updates->Add(std::move(compaction));
  ledger_.current().compacted.push_back(CacheId::Of(sequence));
}

void CacheCompactor::CompactInPlace(Sequence* sequence, CacheUpdates* updates) {
  if (!IsCompactionDue(*sequence)) return;
  const auto tokens = static_cast<int32_t>(sequence->progress.num_seen);
  Add({sequence->cache.blocks.slot, tokens}, sequence, updates);
}

void CacheCompactor::CompactRunning(CacheUpdates* updates) {
  for (Sequence* sequence : table_.live()) {
    SequenceCache& cache = sequence->cache;
    const int64_t seen = sequence->progress.num_seen;
    if (cache.num_shrunk < cache.shrinks.size()) {  // it reads again, and is compacted as before
      if (sequence->phase != Phase::kRunning || !sequence->MayDecode()) continue;
      const ShrinkAt& again = cache.shrinks[cache.num_shrunk];
      if (again.tokens == seen) Shrink(again.mean, sequence, updates);
      continue;
    }
    if (!IsCompactionDue(*sequence)) continue;
    const PageCompaction compaction = cache.plan.retention->CompactionAfter(cache.plan, seen);
    if (!compaction.then.has_value()) continue;
    Add({cache.blocks.slot, static_cast<int32_t>(seen)}, sequence, updates);
    kv_cache_.Compact(*compaction.then, seen, &cache.blocks);
    TrimReservation(sequence, &kv_cache_);
  }
}

void CacheCompactor::BeginAppend(const TokenRange& range, Sequence* sequence,
                                 CacheUpdates* updates) {
  SequenceCache& cache = sequence->cache;
  CachePlan& plan = cache.plan;
  cache.keep.clear();
  if (sequence->request.from == nullptr) return;
  const std::span full(cache.blocks.spans.data(), static_cast<size_t>(limits_.BudgetHeads()));
  cache.keep = KeepAfterAppend(range, plan, cache.spec, sequence->progress.append_ranges, full);
  if (!cache.keep.empty()) kv_cache_.AnnounceCompaction(range.end, &cache.blocks);
  if (!RaisesBudget(range, plan)) return;
  SlotAppend append = {.slot = cache.blocks.slot,
                       .budget = BudgetAfterAppend(plan, cache.spec, range.end)};
  if (append.budget.cap == plan.cap) return;
  kv_cache_.RaiseCaps(append.budget.cap - plan.cap, sequence->progress.num_seen, &cache.blocks);
  plan.cap = append.budget.cap;
  for (const HeadSpan& span : full) append.caps.push_back(span.cap);
  updates->Add(std::move(append));
}

bool CacheCompactor::TryShrink(CacheUpdates* updates) {
  Sequence* best = nullptr;
  int64_t most = 0;
  int32_t mean = 0;
  for (Sequence* sequence : table_.live()) {
    const int32_t to = ShrinksTo(*sequence);
    if (to == 0) continue;
    const int64_t tokens = sequence->progress.num_seen;
    const CachePlan shrunk = hydrant::Shrink(sequence->cache.plan, tokens, HeldBy(*sequence), to);
    const int64_t freed = PagesFreedBy(*sequence, KeptBy(shrunk, tokens), limits_.block_size);
    if (freed <= most) continue;
    best = sequence;
    most = freed;
    mean = to;
  }
  if (best == nullptr) return false;
  best->cache.shrinks.push_back({best->progress.num_seen, mean});
  ++best->account.usage.shrinks;
  ++num_shrinks_;
  Shrink(mean, best, updates);
  return true;
}

// Entries a head that the cache would be shrunk to, on average; 0: it may not be shrunk now.
int32_t CacheCompactor::ShrinksTo(const Sequence& sequence) const {
  const SequenceCache& cache = sequence.cache;
  if (sequence.request.on_pressure != OnPressure::kEvict || sequence.phase != Phase::kRunning ||
      !sequence.MayDecode() || sequence.progress.num_seen < sequence.progress.num_prompt_tokens ||
      cache.num_shrunk < cache.shrinks.size() || !CanShrink(cache.plan))
    return 0;
  if (!cache.blocks.shared.empty() || ledger_.current().Compacts(sequence) ||
      IsCompactionDue(sequence))
    return 0;
  const int32_t sinks = cache.plan.rule.sinks;
  const int32_t least =
      std::max(static_cast<int32_t>(cache.spec.min_cache_tokens.value_or(kLeastMean)), sinks + 2);
  if (cache.plan.cap <= least) return 0;
  const std::vector<int32_t> held = HeldBy(sequence);
  if (*std::min_element(held.begin(), held.end()) <= sinks) return 0;
  const int64_t sum = std::accumulate(held.begin(), held.end(), int64_t{0});
  const auto mean = static_cast<int32_t>(sum / static_cast<int64_t>(held.size()));
  const auto to = std::max(least, static_cast<int32_t>(mean * kShrink));
  return to < mean ? to : 0;
}

// The compaction follows from the entries that the heads hold, which are the same when the sequence
// reads its prompt again.
void CacheCompactor::Shrink(int32_t mean, Sequence* sequence, CacheUpdates* updates) {
  SequenceCache& cache = sequence->cache;
  const int64_t tokens = sequence->progress.num_seen;
  if (!cache.plan_before.has_value()) cache.plan_before = cache.plan;
  cache.plan = hydrant::Shrink(cache.plan, tokens, HeldBy(*sequence), mean);
  Add({cache.blocks.slot, static_cast<int32_t>(tokens), cache.plan}, sequence, updates);
  kv_cache_.SetCaps(KeptBy(cache.plan, tokens), &cache.blocks);
  sequence->account.usage.policy_report = ReportOf(cache.plan);
  ++cache.num_shrunk;
}

}  // namespace hydrant
