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
    const int64_t pages = sequence->cache.blocks.num_pages;
    PageOccupancy& page_occupancy = sequence->account.page_occupancy;
    if (pages != page_occupancy.pages()) page_occupancy.Hold(pages, now);
    if (sequence->phase == Phase::kResuming) {
      sequence->MoveTo(Phase::kRunning);
      continue;
    }
    if (sequence->phase != Phase::kRunning || !sequence->MayDecode()) continue;
    const auto position = static_cast<int32_t>(progress.num_seen++);
    const bool known = position < progress.NumKnown();
    const TokenId* token = known ? &progress.tokens[position] : kNewestToken.data();
    batch->runs.push_back({.slot = sequence->cache.blocks.slot,
                           .in_prompt = position < progress.num_prompt_tokens,
                           .tokens = {token, 1},
                           .first_position = position});
    SampledRow& row = batch->AddSampled(sequence->output.sampling);
    row.position = position + 1;
    row.kept_entries = sequence->ReportsKeptEntries(row.position);
    EditLogits(*sequence, position + 1, &row, batch);
    step.decoded.push_back({CacheId::Of(sequence), position + 1, row.logprobs, row.kept_entries});
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
  const RunningLoad decoding = batch->runs.empty() ? RunningLoad() : slo_.DecodingLoad();
  const double budget = slo_.pacer().PromptTokens(decoding) * limits_.num_layers;
  const PrefillCosts costs = {slo_.pacer().step_time().AttentionScale()};
  for (const PromptPart& next : PlanPrefill(open_prompts_, limits_.num_layers, budget, costs)) {
    Sequence* const sequence = reading_[next.prompt];
    const TokenRun& run = batch->runs.emplace_back(RunOf(next.part, *sequence));
    std::vector<RequestHandle> samples;
    if (run.Ends(limits_.num_layers)) samples = AddSamples(*sequence, batch);
    Advance(run, std::move(samples), sequence);
    std::optional<TimeUs>& started_at = sequence->account.prefill_started_at;
    if (!started_at.has_value()) started_at = now;
  }
}

TokenRun BatchBuilder::RunOf(const RunPart& part, const Sequence& sequence) const {
  const SequenceProgress& progress = sequence.progress;
  const SequenceCache& cache = sequence.cache;
  TokenRun run = {.slot = cache.blocks.slot,
                  .commit = progress.num_seen > 0 ? Commit::kAppend : Commit::kCompress,
                  .in_prompt = true,
                  .tokens = sequence.PrefillTokens(),
                  .first_position = static_cast<int32_t>(progress.num_seen),
                  .part = part,
                  .arena_begin = cache.blocks.arena_begin};
  if (run.commit == Commit::kAppend) {
    run.turn = sequence.Turn();
    return run;
  }
  run.prompt = {.whole_prompt = progress.Prompt(),
                .penalties = sequence.output.sampling.penalties.Any(),
                .pooling = sequence.request.pooling,
                .logprobs = sequence.request.wants_prompt_logprobs && !progress.prefilled,
                .first_token = sequence.FirstToken(),
                .cached_blocks = cache.prefix.cached,
                .new_blocks = cache.prefix.fresh,
                .checkpoints = cache.prefix.checkpoints};
  return run;
}

// The newest run of the batch ends: its token is sampled, and first tokens of samples that wait for
// the prompt, as many as could be forked. Returns these.
std::vector<RequestHandle> BatchBuilder::AddSamples(const Sequence& sequence, Batch* batch) {
  const auto position = static_cast<int32_t>(sequence.SeenAfterPrefill());
  const auto sample = [&](const Sequence& other) -> SampledRow& {
    SampledRow& row = batch->AddSampled(other.output.sampling);
    row.position = position;
    EditLogits(other, position, &row, batch);
    return row;
  };
  sample(sequence).kept_entries = sequence.ReportsKeptEntries(position);
  std::vector<RequestHandle> samples;
  if (position != sequence.progress.num_prompt_tokens) return samples;
  for (const RequestHandle handle : sequence.samples) {
    const Sequence* const other = table_.Find(handle);
    if (other == nullptr || more_samples_ == kv_cache_.NumFreeSlots()) continue;
    if (!other->IsWaiting() || other->progress.NumKnown() > other->progress.num_prompt_tokens)
      continue;
    sample(*other).is_newest = false;
    samples.push_back(handle);
    ++more_samples_;
  }
  return samples;
}

void BatchBuilder::Advance(const TokenRun& run, std::vector<RequestHandle> samples,
                           Sequence* sequence) {
  SequenceProgress& progress = sequence->progress;
  SequenceCache& cache = sequence->cache;
  const RunPart& part = run.part;
  progress.cursor = run.EndsLayer() ? PrefillCursor{part.layer_end, run.prompt.first_token}
                                    : PrefillCursor{part.layer_begin, part.token_end};
  const bool ends = run.Ends(limits_.num_layers);
  const int64_t seen = sequence->SeenAfterPrefill();
  StepRecord& step = ledger_.current();
  step.work += WorkOf(run);
  step.parts.push_back(
      {{CacheId::Of(sequence), ends ? seen : kNoIndex, ends && sequence->output.sampling.logprobs,
        ends && sequence->ReportsKeptEntries(seen)},
       std::move(samples),
       {part.token_begin, run.ScoredEnd(limits_.num_layers)}});
  if (!ends) return;
  kv_cache_.CloseArena(&cache.blocks);
  sequence->MoveTo(Phase::kRunning);
  progress.num_seen = seen;
  if (run.CompactsTurn()) KvCacheManager::AwaitTurnReport(&cache.blocks);
}

StepWork BatchBuilder::WorkOf(const TokenRun& run) const {
  const double layers =
      static_cast<double>(run.part.layer_end - run.part.layer_begin) / limits_.num_layers;
  StepWork work = ReadingWork(run.part.token_begin, run.part.token_end, run.first_position);
  work.prompt_tokens *= layers;
  work.prompt_pairs *= layers;
  return work;
}

}  // namespace hydrant
