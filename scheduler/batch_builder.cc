#include "scheduler/batch_builder.h"

#include <span>
#include <utility>

namespace hydrant {

namespace {

// Constraints on the token that follows `num_tokens` tokens, where that token is not known.
void EditLogits(const Sequence& sequence, int64_t num_tokens, SampledRow* row, Batch* batch) {
  const SequenceProgress& progress = sequence.progress;
  LogitsProcessor* const logits = sequence.output.logits.get();
  if (logits == nullptr || num_tokens < progress.NumKnown()) return;
  const int64_t prompt = progress.num_prompt_tokens;
  const std::span<const TokenId> output = std::span(progress.tokens).subspan(prompt);
  if (logits->Edit(num_tokens - prompt, output, row)) batch->masks.push_back(logits);
}

}  // namespace

void BatchBuilder::AddDecode(TimeUs now, Batch* batch) {
  StepRecord& step = ledger_.current();
  for (Sequence* sequence : table_.live()) {
    SequenceProgress& progress = sequence->progress;
    const int64_t pages = sequence->cache.space.num_pages;
    PageTime& page_time = sequence->account.page_time;
    if (pages != page_time.pages()) page_time.Hold(pages, now);
    if (sequence->phase == Phase::kResuming) {
      sequence->MoveTo(Phase::kRunning);
      continue;
    }
    if (sequence->phase != Phase::kRunning || !sequence->MayDecode()) continue;
    const auto position = static_cast<int32_t>(progress.num_seen++);
    const bool known = position < progress.NumKnown();
    batch->decode.push_back({.slot = sequence->cache.space.slot,
                             .token = known ? progress.tokens[position] : kNoToken,
                             .position = position,
                             .sampling = sequence->output.sampling,
                             .in_prompt = position < progress.num_prompt_tokens});
    SampledRow& row = batch->decode.back().sampling;
    row.position = position + 1;
    EditLogits(*sequence, position + 1, &row, batch);
    step.decode.push_back({CacheId::Of(sequence), position + 1, row.logprobs});
    step.work += {.rows = 1, .pages = static_cast<double>(pages)};
  }
}

void BatchBuilder::AddPrefill(TimeUs now, Batch* batch) {
  reading_.clear();
  open_prompts_.clear();
  more_samples_ = 0;
  for (Sequence* sequence : table_.live()) {
    if (sequence->phase != Phase::kReading || sequence->output.waits_for_mask) continue;
    reading_.push_back(sequence);
    open_prompts_.push_back({static_cast<int>(sequence->PrefillTokens().size()),
                             sequence->progress.cursor, sequence->FirstToken()});
  }
  if (reading_.empty()) return;
  const RunningLoad decoding = batch->decode.empty() ? RunningLoad() : slo_.DecodingLoad();
  const double budget = slo_.pacer().PromptTokens(decoding) * limits_.num_layers;
  const PrefillCosts costs = {slo_.pacer().step_time().AttentionScale()};
  for (const PrefillRun& run : PlanPrefill(open_prompts_, limits_.num_layers, budget, costs)) {
    Sequence* const sequence = reading_[run.prompt];
    PrefillSlice& slice = batch->prefill.emplace_back(SliceOf(run, *sequence));
    if (slice.EndsPrompt(limits_.num_layers))
      EditLogits(*sequence, slice.sampling.position, &slice.sampling, batch);
    Advance(slice, AddSamples(sequence, &slice, batch), sequence);
    std::optional<TimeUs>& started_at = sequence->account.prefill_started_at;
    if (!started_at.has_value()) started_at = now;
  }
}

PrefillSlice BatchBuilder::SliceOf(const PrefillRun& run, const Sequence& sequence) const {
  const SequenceProgress& progress = sequence.progress;
  const SequenceCache& cache = sequence.cache;
  PrefillSlice slice = {
      .slot = cache.space.slot,
      .prompt = sequence.PrefillTokens(),
      .arena_begin = cache.space.arena_begin,
      .layer_begin = run.layer_begin,
      .layer_end = run.layer_end,
      .token_begin = run.token_begin,
      .token_end = run.token_end,
      .sampling = sequence.output.sampling,
      .whole_prompt = progress.Prompt(),
      .pooling = sequence.request.pooling,
      .prompt_logprobs = sequence.request.wants_prompt_logprobs && !progress.prefilled,
      .first_token = sequence.FirstToken(),
      .num_seen = static_cast<int32_t>(progress.num_seen)};
  if (slice.Appends()) {
    slice.keep = cache.keep;
  } else {
    slice.cached_blocks = cache.prefix.cached;
    slice.new_blocks = cache.prefix.fresh;
    slice.checkpoints = cache.prefix.checkpoints;
  }
  slice.sampling.position = static_cast<int32_t>(sequence.SeenAfterReading());
  return slice;
}

// First tokens of samples that wait for the prompt, where this slice ends it: as many as could be
// forked.
std::vector<RequestHandle> BatchBuilder::AddSamples(Sequence* sequence, PrefillSlice* slice,
                                                    Batch* batch) {
  std::vector<RequestHandle> samples;
  std::vector<SampledRow>& rows = sequence->output.sample_rows;
  rows.clear();
  if (sequence->samples.empty() || !slice->EndsPrompt(limits_.num_layers) ||
      sequence->SeenAfterReading() != sequence->progress.num_prompt_tokens)
    return samples;
  for (const RequestHandle handle : sequence->samples) {
    const Sequence* const sample = table_.Find(handle);
    if (sample == nullptr || more_samples_ == space_.NumFreeSlots()) continue;
    if (!sample->IsWaiting() || sample->progress.NumKnown() > sample->progress.num_prompt_tokens)
      continue;
    samples.push_back(handle);
    SampledRow& row = rows.emplace_back(sample->output.sampling);
    row.position = slice->sampling.position;
    EditLogits(*sample, row.position, &row, batch);
    ++more_samples_;
  }
  slice->more_samples = rows;
  return samples;
}

void BatchBuilder::Advance(const PrefillSlice& slice, std::vector<RequestHandle> samples,
                           Sequence* sequence) {
  SequenceProgress& progress = sequence->progress;
  SequenceCache& cache = sequence->cache;
  const bool layer_done = slice.token_end == static_cast<int>(slice.prompt.size());
  progress.cursor = {layer_done ? slice.layer_end : slice.layer_begin,
                     layer_done ? slice.first_token : slice.token_end};
  const bool ends = slice.EndsPrompt(limits_.num_layers);
  const int64_t seen = sequence->SeenAfterReading();
  StepRecord& step = ledger_.current();
  step.work += WorkOf(slice);
  step.prefill.push_back(
      {{CacheId::Of(sequence), ends ? seen : kNoIndex, ends && slice.sampling.logprobs},
       std::move(samples),
       {slice.token_begin, slice.ScoredEnd(limits_.num_layers)}});
  if (!ends) return;
  space_.CloseArena(&cache.space);
  sequence->MoveTo(Phase::kRunning);
  progress.num_seen = seen;
  if (!cache.keep.empty()) space_.CutTo(cache.keep, seen, &cache.space);
}

StepWork BatchBuilder::WorkOf(const PrefillSlice& slice) const {
  const double layers =
      static_cast<double>(slice.layer_end - slice.layer_begin) / limits_.num_layers;
  StepWork work = ReadingWork(slice.token_begin, slice.token_end, slice.num_seen);
  work.prompt_tokens *= layers;
  work.prompt_pairs *= layers;
  return work;
}

}  // namespace hydrant
