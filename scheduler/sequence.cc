#include "scheduler/sequence.h"

#include <algorithm>
#include <utility>

namespace hydrant {

namespace {

SampledRow ToSampledRow(const SamplingParams& sampling) {
  SampledRow row =
      SamplingRow{.temperature = static_cast<float>(sampling.temperature),
                  .top_p = static_cast<float>(sampling.top_p),
                  .min_p = static_cast<float>(sampling.min_p),
                  .top_k = std::max(0, sampling.top_k),
                  .seed = sampling.seed.value_or(0),
                  .penalties = {.repetition = static_cast<float>(sampling.repetition_penalty),
                                .presence = static_cast<float>(sampling.presence_penalty),
                                .frequency = static_cast<float>(sampling.frequency_penalty)}};
  row.logprobs = sampling.logprobs;
  return row;
}

SequenceRequest ToSequenceRequest(CheckedRequest* checked, TimeUs now, uint64_t arrival) {
  Request& request = checked->request;
  return {
      .request_id = std::move(request.request_id),
      .order = {now + request.priority * QueueOrder::kLevelUs, arrival},
      .deadline = request.deadline,
      .slo = request.slo,
      .priority = request.priority,
      .on_pressure = request.on_pressure,
      .largest_cap = checked->largest_cap,
      .pooling = request.pooling,
      .prefill_only = request.prefill_only,
      .wants_prompt_logprobs = request.sampling.prompt_logprobs && !request.sample_of.has_value(),
      .wants_kept_entries = request.report_kept_entries && !request.sample_of.has_value(),
      .publish_kv_events = request.publish_kv_events,
      .prefix_keys = std::move(checked->prefix_keys),
      .from = std::move(request.from),
      .sample_of = request.sample_of,
      .keep_as = std::move(request.keep_as),
      .fallback_plan = std::move(checked->fallback_plan),
      .salt = std::move(request.cache_salt)};
}

// Tokens that a broken stream had delivered come out of the text here and are dropped; text that it
// had held back stays.
void Resume(const std::vector<TokenId>& delivered, Sequence* sequence) {
  for (const TokenId id : delivered) {
    sequence->output.text.Push(id);
    sequence->progress.tokens.push_back(id);
    if (sequence->output.logits != nullptr) sequence->output.logits->Accept(id);
  }
  sequence->progress.num_resumed = sequence->output.text.num_tokens();
}

}  // namespace

std::vector<TokenId> WithProbe(const SequenceProgress& progress,
                               const std::vector<TokenId>& probe) {
  if (probe.empty()) return {};
  std::vector<TokenId> probed(progress.tokens.begin(),
                              progress.tokens.begin() + progress.num_context_tokens);
  probed.insert(probed.end(), probe.begin(), probe.end());
  return probed;
}

std::unique_ptr<Sequence> MakeSequence(RequestHandle handle, CheckedRequest checked, TimeUs now,
                                       uint64_t arrival, const Tokenizer& tokenizer) {
  Request& request = checked.request;
  auto sequence = std::make_unique<Sequence>(Sequence{
      .handle = handle,
      .progress = {.num_prompt_tokens = static_cast<int32_t>(request.prompt.size()),
                   .num_context_tokens = static_cast<int32_t>(checked.plan.prompt.tokens),
                   .max_total_tokens = checked.max_total_tokens,
                   .tokens = std::move(request.prompt)},
      .cache = {.plan = checked.plan, .spec = std::move(request.cache)},
      .output = {.sampling = ToSampledRow(request.sampling),
                 .logits = LogitsProcessor::Create(request.sampling, request.stopping, tokenizer),
                 .text =
                     OutputProcessor(&tokenizer, request.stopping, request.skip_special_tokens)},
      .account = {.last_event_at = now, .submitted_at = now}});
  sequence->request = ToSequenceRequest(&checked, now, arrival);
  SequenceProgress& progress = sequence->progress;
  const Context* from = sequence->request.from.get();
  if (from != nullptr) progress.append_ranges = from->append_ranges;
  const int64_t seen = from != nullptr ? from->num_seen : progress.num_context_tokens;
  // One token costs less in a decode row.
  if (progress.num_prompt_tokens - seen > 1)
    progress.append_ranges.push_back({static_cast<int32_t>(seen), progress.num_prompt_tokens});
  progress.probed = WithProbe(progress, checked.probe);
  Resume(request.resume_token_ids, sequence.get());
  sequence->account.usage.policy = sequence->cache.spec.policy;
  sequence->account.usage.prompt_tokens = progress.num_prompt_tokens;
  sequence->account.usage.recalled_tokens = request.recalled_tokens;
  sequence->account.usage.completion_tokens = progress.num_resumed;
  return sequence;
}

std::shared_ptr<const Context> ContextOf(const Sequence& sequence) {
  const SequenceProgress& progress = sequence.progress;
  const SequenceCache& cache = sequence.cache;
  const KeepAs& keep_as = sequence.request.keep_as;
  const Context* from = sequence.request.from.get();
  auto context = std::make_shared<Context>(
      Context{.id = {sequence.request.salt, keep_as.handle},
              .tokens = progress.tokens,
              .num_seen = progress.num_seen,
              .append_ranges = progress.append_ranges,
              .spec = cache.spec,
              .first_plan = from != nullptr ? from->first_plan : cache.plan,
              .plan = cache.plan,
              .pages = cache.blocks.NumDataPages(),
              .retained_mass = sequence.account.usage.retained_mass,
              .created_at = keep_as.created_at,
              .expires_at = keep_as.expires_at,
              .pinned = keep_as.pinned});
  for (const HeadSpan& span : cache.blocks.spans)
    context->entries += span.EntriesAfter(progress.num_seen);
  return context;
}

int64_t Sequence::PromptTokensRead(int num_layers) const {
  const SequenceProgress& p = progress;
  if (IsDecoding())
    return std::min<int64_t>(std::max(p.num_seen, int64_t{p.num_context_tokens}),
                             p.num_prompt_tokens);
  if (p.num_seen > 0) return p.num_seen;
  const int64_t first = FirstToken();
  const auto reading = static_cast<int64_t>(PrefillTokens().size()) - first;
  const int64_t done = p.cursor.layer * reading + p.cursor.token - first;
  return done * p.num_prompt_tokens / (reading * num_layers);
}

std::optional<TurnRun> Sequence::Turn() const {
  const TokenRange* range = NextAppend();
  const bool goes_on = request.from != nullptr || !request.keep_as.handle.empty();
  if (range == nullptr || !goes_on || !cache.plan.ScoresTurns()) return std::nullopt;
  return TurnRun{.scored_end = ScoredEnd(*range, cache.plan, progress.append_ranges),
                 .keep = cache.keep};
}

bool Sequence::DrawsNext() const {
  const TokenRange* read = NextAppend();
  const int64_t seen = read != nullptr            ? read->end
                       : phase == Phase::kReading ? progress.num_context_tokens
                                                  : progress.num_seen + 1;
  return seen == progress.NumKnown();
}

bool Sequence::IsAtFork() const {
  if (phase != Phase::kRunning || progress.num_seen == 0) return false;
  return progress.num_seen == progress.num_prompt_tokens ||
         (progress.num_seen + 1 == progress.num_prompt_tokens && NextAppend() == nullptr);
}

bool Sequence::MayDecode() const {
  if (output.waits_for_mask || !cache.IsSettled() || NextAppend() != nullptr) return false;
  if (!samples.empty() && IsAtFork()) return false;
  // A sequence whose cache is kept ends with all of its tokens known, and some constraints need the
  // last token before they allow the next: these sequences do not run ahead.
  const bool waits =
      !request.keep_as.handle.empty() || (output.logits != nullptr && output.logits->NeedsOutput());
  if (waits && progress.num_seen >= progress.NumKnown()) return false;
  return progress.num_seen + 1 < progress.max_total_tokens;
}

}  // namespace hydrant
