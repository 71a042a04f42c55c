// The part of Scheduler by which sequences need not read what another has read or is reading:
// samples of one prompt, and prompts that begin alike.
#include <algorithm>
#include <utility>
#include <variant>

#include "scheduler/scheduler.h"

namespace hydrant {

// Where one does not fit, it and those after it read the prompt themselves.
void Scheduler::ForkSamples(TimeUs now) {
  // Samples join behind the one that they are forked from, and have none themselves.
  for (size_t i = 0; i < live_.size(); ++i) {
    Sequence* parent = live_[i];
    if (parent->samples.empty() || !parent->IsAtFork() || !parent->IsSettled()) continue;
    if (parent->num_done < parent->num_seen) continue;  // the first tokens are on their way
    for (const RequestHandle handle : std::exchange(parent->samples, {})) {
      const auto it = sequences_.find(handle);
      if (it == sequences_.end() || it->second->state != SequenceState::kWaiting) continue;
      // What has no first token would have to read the prompt's end for it.
      if (it->second->NumKnown() == parent->num_seen) continue;
      if (!TryFork(parent, it->second.get(), now)) break;
    }
  }
}

bool Scheduler::TryFork(Sequence* parent, Sequence* sample, TimeUs now) {
  const CacheSpace::OpenArgs args = {.plan = &parent->plan,
                                     .tokens = parent->num_seen,
                                     .final_tokens = sample->max_total_tokens - 1,
                                     .pages_kept_free = watermark_pages_,
                                     .promised = sample->IsPromised() ? &parent->plan : nullptr};
  if (!space_.TryFork(args, &parent->space, &sample->space, &batch_)) return false;
  if (sample->sampling.penalties.Any())
    std::get<SlotFork>(batch_.list.back()).prompt = sample->Prompt();
  queued_tokens_ -= sample->NumKnown();
  waiting_.Erase(sample);
  SetBeginBy(sample, std::nullopt);
  sample->plan = parent->plan;
  LowerPromise(sample);
  sample->state = SequenceState::kRunning;
  sample->num_seen = sample->num_done = parent->num_seen;
  sample->was_read = true;
  if (!sample->prefill_started_at.has_value()) sample->prefill_started_at = now;
  const Usage own = std::exchange(sample->usage, parent->usage);
  sample->usage.completion_tokens = own.completion_tokens;
  sample->usage.cached_tokens = static_cast<int32_t>(parent->num_seen);
  sample->usage.reread_tokens = sample->usage.probe_tokens = 0;
  sample->usage.preemptions = own.preemptions;
  sample->usage.preempted_us = own.preempted_us;
  sample->usage.away = own.away;
  sample->usage.kv_pages_peak = sample->space.num_pages;
  GoLive(sample);
  return true;
}

// A sample whose prompt another is to read.
bool Scheduler::WaitsForPrompt(const Sequence& sequence) const {
  if (!sequence.sample_of.has_value()) return false;
  const auto parent = sequences_.find(*sequence.sample_of);
  if (parent == sequences_.end()) return false;
  const std::vector<RequestHandle>& samples = parent->second->samples;
  return std::find(samples.begin(), samples.end(), sequence.handle) != samples.end();
}

// The first tokens of those samples that wait for the prompt, where this slice ends it: as many as
// could be forked.
std::vector<RequestHandle> Scheduler::AddSamples(Sequence* sequence, PrefillSlice* slice) {
  std::vector<RequestHandle> samples;
  sequence->sample_rows.clear();
  if (sequence->samples.empty() || !slice->EndsPrompt(limits_.num_layers) ||
      SeenAfter(*sequence) != sequence->num_prompt_tokens)
    return samples;
  for (const RequestHandle handle : sequence->samples) {
    const auto it = sequences_.find(handle);
    if (it == sequences_.end() || more_samples_ == space_.NumFreeSlots()) continue;
    const Sequence& sample = *it->second;
    if (!sample.IsWaiting() || sample.NumKnown() > sample.num_prompt_tokens) continue;
    samples.push_back(handle);
    SampledRow& row = sequence->sample_rows.emplace_back(sample.sampling);
    row.position = slice->sampling.position;
    EditLogits(sample, row.position, &row);
    ++more_samples_;
  }
  slice->more_samples = sequence->sample_rows;
  return samples;
}

// The first token of another sample of a prompt. `parent`: that has read it; null: it has ended.
void Scheduler::SampledFirst(RequestHandle handle, const Sequence* parent, TokenId token,
                             const TokenLogprobs* logprobs, TimeUs now) {
  const auto it = sequences_.find(handle);
  if (it == sequences_.end()) return;
  Sequence* sample = it->second.get();
  if (!sample->IsWaiting() || sample->NumKnown() > sample->num_prompt_tokens) return;
  if (parent != nullptr && !sample->prefill_started_at.has_value())
    sample->prefill_started_at = parent->prefill_started_at;
  Sampled(sample, sample->num_prompt_tokens, token, logprobs, now);
}

PrefixLayout Scheduler::LayoutOf(const Sequence& sequence) const {
  return {sequence.plan, static_cast<int>(sequence.PrefillTokens().size()), limits_};
}

// What need not be read of an admitted prompt: what is there of it, with what its plan asks of it.
void Scheduler::OpenPrefix(Sequence* sequence) {
  const std::span<const PrefixKey> keys = sequence->prefix_keys;
  if (keys.empty()) return;
  const PrefixLayout layout = LayoutOf(*sequence);
  const int there = prefix_cache_.NumFilled(keys) * kPrefixBlockTokens;
  const int useful =
      std::min(there, (sequence->num_context_tokens - 1) / kPrefixBlockTokens * kPrefixBlockTokens);
  const int usable = UsableTokens(*sequence, nullptr);
  std::vector<int32_t> checkpoints =
      layout.Checkpoints(static_cast<int>(keys.size()), usable, there);
  sequence->prefix = prefix_cache_.Open(layout.KeysBefore(keys, usable),
                                        layout.KeysFrom(keys, usable, checkpoints));
  sequence->prefix.tokens = usable;
  sequence->prefix.checkpoints = std::move(checkpoints);
  prefix_cache_.CountLookup(sequence->num_context_tokens, usable);
  sequence->cursor = {0, usable};
  if (sequence->was_read) return;  // it comes back: usage is about the first time
  sequence->usage.cached_tokens = usable;
  sequence->usage.reread_tokens = useful - usable;
}

// Steps that were scheduled before may still write what it was to fill.
void Scheduler::AbandonPrefix(Sequence* sequence) {
  if (!sequence->prefix.fresh.empty()) blocks_under_way_ = static_cast<int>(in_flight_.size());
  prefix_cache_.Abandon(&sequence->prefix);
}

// Tokens of an unread prompt that need not be read, by the blocks that are there, and those that
// `reader` will leave; null: nobody.
int Scheduler::UsableTokens(const Sequence& sequence, const PrefixReader* reader) const {
  if (sequence.pooling == EmbeddingPooling::kMean || sequence.wants_prompt_logprobs) return 0;
  return LayoutOf(sequence).Usable(sequence.prefix_keys, [&](const PrefixKey& key) {
    return prefix_cache_.IsFilled(key) || (reader != nullptr && reader->fresh.contains(key));
  });
}

void Scheduler::ListPrefixReaders() {
  prefix_readers_.clear();
  for (const Sequence* sequence : live_) AddPrefixReader(sequence);
}

void Scheduler::AddPrefixReader(const Sequence* sequence) {
  if (!sequence->prefix.keys.empty()) prefix_readers_.push_back({sequence, {}});
}

// Whether it is sooner done when a prompt that begins alike, and is being read, has been read: the
// two share the engine, so it is where what that one has left to read, less what need not be read
// twice then, is no more than its own.
bool Scheduler::WaitsForPrefix(const Sequence& sequence) {
  if (sequence.from != nullptr || sequence.prefix_keys.empty()) return false;
  for (PrefixReader& reader : prefix_readers_) {
    const Sequence& other = *reader.sequence;
    if (other.prefix_keys.front() != sequence.prefix_keys.front()) continue;
    const std::vector<PrefixKey>& fresh = other.prefix.keys;
    if (reader.fresh.empty()) reader.fresh.insert(fresh.begin(), fresh.end());
    const int there = UsableTokens(sequence, nullptr);
    const int64_t own = static_cast<int64_t>(sequence.PrefillTokens().size()) - there;
    const int64_t spared = UsableTokens(sequence, &reader) - there;
    const int64_t left = other.num_seen > 0 ? 0
                                            : static_cast<int64_t>(other.PrefillTokens().size()) -
                                                  other.FirstToken();
    if (spared > 0 && left - spared <= own) return true;
  }
  return false;
}

}  // namespace hydrant
