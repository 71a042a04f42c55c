#include "scheduler/prompt_reuse.h"

#include <algorithm>
#include <span>
#include <variant>

namespace hydrant {

void PromptReuse::Open(Sequence* sequence) {
  const std::span<const PrefixKey> keys = sequence->request.prefix_keys;
  if (keys.empty()) return;
  const PrefixLayout layout = LayoutOf(*sequence);
  const int context = sequence->progress.num_context_tokens;
  const int there = blocks_.NumFilled(keys) * kPrefixBlockTokens;
  const int useful = std::min(there, (context - 1) / kPrefixBlockTokens * kPrefixBlockTokens);
  const int usable = UsableTokens(*sequence);
  std::vector<int32_t> checkpoints =
      layout.Checkpoints(static_cast<int>(keys.size()), usable, there);
  PrefixLease& prefix = sequence->cache.prefix;
  prefix =
      blocks_.Open(layout.KeysBefore(keys, usable), layout.KeysFrom(keys, usable, checkpoints));
  prefix.tokens = usable;
  prefix.checkpoints = std::move(checkpoints);
  blocks_.CountLookup(context, usable);
  sequence->progress.cursor = {0, usable};
  AddReader(sequence);
  if (sequence->progress.prefilled) return;  // preempted: usage is about the first time
  sequence->account.usage.cached_tokens = usable;
  sequence->account.usage.reread_tokens = useful - usable;
}

void PromptReuse::Filled(Sequence* sequence) {
  PrefixLease& prefix = sequence->cache.prefix;
  if (records_filled_) filled_.insert(filled_.end(), prefix.keys.begin(), prefix.keys.end());
  PrefixText text;
  if (sequence->request.publish_kv_events)
    text = {sequence->request.prefix_keys, sequence->progress.Prompt()};
  blocks_.Fill(&prefix, text);
  if (!sequence->SharesPages()) return;
  // A question behind the context may be being read by now, and counts when it has been.
  const int64_t tokens = sequence->phase == Phase::kReading ? sequence->SeenAfterPrefill()
                                                            : sequence->progress.num_seen;
  kv_cache_.Publish(sequence->cache.plan, tokens, sequence->request.prefix_keys,
                    &sequence->cache.blocks);
}

// Steps that were scheduled before may still write the blocks that it was to fill.
void PromptReuse::Abandon(Sequence* sequence) {
  if (!sequence->cache.prefix.fresh.empty()) ledger_.MarkBlocksAbandoned();
  blocks_.Abandon(&sequence->cache.prefix);
}

int PromptReuse::UsableTokens(const Sequence& sequence, const Reader* reader) const {
  const SequenceRequest& request = sequence.request;
  if (request.pooling == EmbeddingPooling::kMean || request.wants_prompt_logprobs) return 0;
  return LayoutOf(sequence).Usable(request.prefix_keys, [&](const PrefixKey& key) {
    return blocks_.IsFilled(key) || (reader != nullptr && reader->fresh.contains(key));
  });
}

void PromptReuse::ListReaders() {
  readers_.clear();
  for (const Sequence* sequence : table_.live()) AddReader(sequence);
}

bool PromptReuse::WaitsForPrefix(const Sequence& sequence) {
  const std::vector<PrefixKey>& keys = sequence.request.prefix_keys;
  if (sequence.request.from != nullptr || keys.empty()) return false;
  for (Reader& reader : readers_) {
    const Sequence& other = *reader.sequence;
    if (other.request.prefix_keys.front() != keys.front()) continue;
    const std::vector<PrefixKey>& fresh = other.cache.prefix.keys;
    if (reader.fresh.empty()) reader.fresh.insert(fresh.begin(), fresh.end());
    const int there = UsableTokens(sequence);
    const int64_t own = static_cast<int64_t>(sequence.PrefillTokens().size()) - there;
    const int64_t spared = UsableTokens(sequence, &reader) - there;
    const int64_t left =
        other.progress.num_seen > 0
            ? 0
            : static_cast<int64_t>(other.PrefillTokens().size()) - other.FirstToken();
    if (spared > 0 && left - spared <= own) return true;
  }
  return false;
}

bool PromptReuse::WaitsForPrompt(const Sequence& sequence) const {
  if (!sequence.request.sample_of.has_value()) return false;
  const Sequence* const parent = table_.Find(*sequence.request.sample_of);
  if (parent == nullptr) return false;
  const std::vector<RequestHandle>& samples = parent->samples;
  return std::find(samples.begin(), samples.end(), sequence.handle) != samples.end();
}

void PromptReuse::ForkSamples(TimeUs now, CacheUpdates* updates) {
  // Samples join the live ones behind their parent, and have none themselves.
  for (size_t i = 0; i < table_.live().size(); ++i) {
    Sequence* const parent = table_.live()[i];
    if (parent->samples.empty() || !parent->IsAtFork() || !parent->cache.IsSettled()) continue;
    // The first tokens are on their way.
    if (parent->progress.num_done < parent->progress.num_seen) continue;
    for (const RequestHandle handle : std::exchange(parent->samples, {})) {
      Sequence* const sample = table_.Find(handle);
      if (sample == nullptr || sample->phase != Phase::kWaiting) continue;
      // A sample without a first token would have to read the prompt's end for it.
      if (sample->progress.NumKnown() == parent->progress.num_seen) continue;
      if (!TryFork(parent, sample, now, updates)) break;
    }
  }
}

bool PromptReuse::TryFork(Sequence* parent, Sequence* sample, TimeUs now, CacheUpdates* updates) {
  SequenceCache& cache = sample->cache;
  const KvCacheManager::OpenArgs args = {
      .plan = &parent->cache.plan,
      .tokens = parent->progress.num_seen,
      .final_tokens = sample->progress.max_total_tokens - 1,
      .pages_kept_free = watermark_pages_,
      .reservation = sample->IsGuaranteed() ? &parent->cache.plan : nullptr};
  if (!kv_cache_.TryFork(args, &parent->cache.blocks, &cache.blocks, updates)) return false;
  if (sample->output.sampling.penalties.Any())
    std::get<SlotFork>(updates->list.back()).prompt = sample->progress.Prompt();
  table_.LeaveQueue(sample);
  cache.plan = parent->cache.plan;
  TrimReservation(sample, &kv_cache_);
  sample->MoveTo(Phase::kRunning);
  sample->progress.num_seen = sample->progress.num_done = parent->progress.num_seen;
  sample->progress.prefilled = true;
  SequenceAccount& account = sample->account;
  if (!account.prefill_started_at.has_value()) account.prefill_started_at = now;
  const Usage own = std::exchange(account.usage, parent->account.usage);
  account.usage.completion_tokens = own.completion_tokens;
  account.usage.cached_tokens = static_cast<int32_t>(parent->progress.num_seen);
  account.usage.reread_tokens = account.usage.probe_tokens = 0;
  account.usage.preemptions = own.preemptions;
  account.usage.preempted_us = own.preempted_us;
  account.usage.preemption_intervals = own.preemption_intervals;
  account.usage.kv_pages_peak = cache.blocks.num_pages;
  table_.AddLive(sample);
  return true;
}

}  // namespace hydrant
