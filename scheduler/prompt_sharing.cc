// The part of Scheduler by which sequences need not read what another has read or is reading:
// samples of one prompt, and prompts that begin alike.
#include <algorithm>
#include <utility>

#include "engine/cache/prompt_statistics.h"
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
                                     .pages_kept_free = watermark_pages_};
  if (!space_.TryFork(args, &parent->space, &sample->space, &batch_)) return false;
  if (sample->sampling.penalties.Any()) batch_.forks.back().prompt = sample->Prompt();
  queued_tokens_ -= sample->NumKnown();
  waiting_.erase(sample->arrival);
  sample->plan = parent->plan;
  sample->state = SequenceState::kRunning;
  sample->num_seen = sample->num_done = parent->num_seen;
  sample->was_read = true;
  if (!sample->prefill_started_at.has_value()) sample->prefill_started_at = now;
  const Usage own = std::exchange(sample->usage, parent->usage);
  sample->usage.completion_tokens = own.completion_tokens;
  sample->usage.cached_tokens = static_cast<int32_t>(parent->num_seen);
  sample->usage.reread_tokens = sample->usage.probe_tokens = 0;
  sample->usage.preemptions = own.preemptions;
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
    sequence->sample_rows.push_back(sample.sampling);
    sequence->sample_rows.back().position = slice->sampling.position;
    ++more_samples_;
  }
  slice->more_samples = sequence->sample_rows;
  return samples;
}

// The first token of another sample of a prompt. `parent`: that has read it; null: it has ended.
void Scheduler::SampledFirst(RequestHandle handle, const Sequence* parent, TokenId token,
                             TimeUs now) {
  const auto it = sequences_.find(handle);
  if (it == sequences_.end()) return;
  Sequence* sample = it->second.get();
  if (!sample->IsWaiting() || sample->NumKnown() > sample->num_prompt_tokens) return;
  if (parent != nullptr && !sample->prefill_started_at.has_value())
    sample->prefill_started_at = parent->prefill_started_at;
  Sampled(sample, sample->num_prompt_tokens, token, now);
}

// What need not be read of an admitted prompt: what is there of it, but not what its plan asks
// something of, nor its last token, from which the next one follows.
void Scheduler::OpenPrefix(Sequence* sequence) {
  if (sequence->prefix_keys.empty()) return;
  const int there = prefix_cache_.NumFilled(sequence->prefix_keys);
  const int useful = std::min(there, (sequence->num_context_tokens - 1) / kPrefixBlockTokens);
  const int usable = UsableBlocks(*sequence, there);
  sequence->prefix =
      prefix_cache_.Open(sequence->prefix_keys, usable, sequence->num_context_tokens);
  sequence->cursor = {0, sequence->FirstToken()};
  if (sequence->was_read) return;  // it comes back: usage is about the first time
  sequence->usage.cached_tokens = sequence->FirstToken();
  sequence->usage.reread_tokens = (useful - usable) * kPrefixBlockTokens;
}

// Of so many blocks that are there of an unread prompt, those that need not be read.
int Scheduler::UsableBlocks(const Sequence& sequence, int there) const {
  if (sequence.pooling == EmbeddingPooling::kMean) return 0;
  const int first_wanted =
      std::min(FirstQuery(sequence.plan, static_cast<int>(sequence.PrefillTokens().size())),
               sequence.num_context_tokens - 1);
  return std::min(there, first_wanted / kPrefixBlockTokens);
}

void Scheduler::ListPrefixReaders() {
  prefix_readers_.clear();
  for (const Sequence* sequence : live_) {
    if (!sequence->prefix.fresh.empty()) prefix_readers_.push_back(sequence);
  }
}

// Whether it is sooner done when a prompt that begins alike, and is being read, has been read: the
// two share the engine, so it is where what that one has left to read, less what need not be read
// twice then, is no more than its own.
bool Scheduler::WaitsForPrefix(const Sequence& sequence) const {
  if (sequence.from != nullptr || sequence.prefix_keys.empty()) return false;
  const auto own = static_cast<int64_t>(sequence.PrefillTokens().size());
  for (const Sequence* other : prefix_readers_) {
    const PrefixLease& lease = other->prefix;
    if (other->prefix_keys.front() != sequence.prefix_keys.front()) continue;
    const auto coming = static_cast<int>(
        std::min(lease.cached.size() + lease.fresh.size(), sequence.prefix_keys.size()));
    const auto begin = other->prefix_keys.begin();
    const auto alike = static_cast<int>(
        std::mismatch(begin, begin + coming, sequence.prefix_keys.begin()).first - begin);
    const int there = UsableBlocks(sequence, prefix_cache_.NumFilled(sequence.prefix_keys));
    const int64_t spared = int64_t{UsableBlocks(sequence, alike) - there} * kPrefixBlockTokens;
    const int64_t left = other->num_seen > 0 ? 0
                                             : static_cast<int64_t>(other->PrefillTokens().size()) -
                                                   other->FirstToken();
    if (spared > 0 && left - spared <= own - int64_t{there} * kPrefixBlockTokens) return true;
  }
  return false;
}

}  // namespace hydrant
