#include "scheduler/delivery.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant {

namespace {

Failed EngineFault(absl::Status status) {
  return {.status = std::move(status), .reason = "ENGINE_FAULT"};
}

}  // namespace

// A scan every quarter of the interval is near enough.
void Delivery::SendProgress(TimeUs now) {
  if (now < next_progress_scan_) return;
  next_progress_scan_ = now + std::max<TimeUs>(1, options_.progress_interval_us / 4);
  const auto send = [&](Sequence* sequence, int32_t queue_position, int32_t done) {
    SequenceAccount& account = sequence->account;
    if (now - account.last_event_at < options_.progress_interval_us) return;
    account.last_event_at = now;
    Send(*sequence, Progress{queue_position, done, sequence->progress.num_prompt_tokens,
                             account.usage.compressed_by});
  };
  int32_t queue_position = 0;
  longest_wait_us_ = 0;
  for (Sequence* sequence : table_.queue().InOrder()) {
    send(sequence, ++queue_position, 0);
    if (!sequence->account.prefill_started_at.has_value())
      longest_wait_us_ = std::max(longest_wait_us_, now - sequence->account.submitted_at);
  }
  for (Sequence* sequence : table_.live())
    send(sequence, 0, static_cast<int32_t>(sequence->PromptTokensRead(limits_.num_layers)));
}

void Delivery::SendKeptEntries(const KeptEntries& kept, Sequence* sequence) {
  if (std::exchange(sequence->output.kept_entries_sent, true)) return;
  PromptEntries entries = {.kept = kept, .token_texts = {}};
  bool first = true;
  for (const TokenId token : sequence->progress.Prompt()) {
    entries.token_texts.push_back(tokenizer_.TokenBytes(token, /*skip_special=*/false, first));
    first = false;
  }
  Send(*sequence, std::move(entries));
}

std::optional<Ending> Delivery::Sampled(int64_t index, TokenId token, const TokenLogprobs* logprobs,
                                        TimeUs now, Sequence* sequence) {
  SequenceProgress& progress = sequence->progress;
  if (!sequence->IsWaiting() || sequence->IsSwapped()) progress.num_done = index;
  const bool is_known = index < progress.NumKnown();
  if (token == kNoToken && !is_known && sequence->output.logits != nullptr) {
    std::optional<Ending> ending = WithoutToken(index, sequence);
    if (ending.has_value()) return ending;
  }
  if (token >= tokenizer_.VocabSize()) {  // kNoToken, or an id of the model's padding
    return EngineFault(absl::InternalError(
        token == kNoToken ? absl::StrCat("no finite logit at position ", index)
                          : absl::StrCat("sampled id ", token, " is not in the vocabulary")));
  }
  if (is_known) return std::nullopt;
  slo_.ObserveFirstToken(sequence, now);
  if (sequence->request.prefill_only) return Finished{.reason = FinishReason::kLength};
  return Deliver(token, logprobs, now, sequence);
}

// Constraints left no token to sample: the text is complete, of a model without an id that says so,
// or no allowed text continues it. Unset: the constraints are not the reason.
std::optional<Ending> Delivery::WithoutToken(int64_t index, Sequence* sequence) {
  const LogitsProcessor& logits = *sequence->output.logits;
  if (logits.IsComplete()) {
    std::string text = sequence->output.text.Finish();
    if (!text.empty()) Send(*sequence, Delta{.text = std::move(text)});
    return Finished{.reason = FinishReason::kStop};
  }
  const absl::Status none = logits.CheckSomeTokenAllowed(index);
  if (none.ok()) return std::nullopt;
  return Failed{.status = none, .reason = absl::IsInternal(none) ? "ENGINE_FAULT" : "INVALID"};
}

std::optional<Ending> Delivery::Deliver(TokenId token, const TokenLogprobs* logprobs, TimeUs now,
                                        Sequence* sequence) {
  ++generation_tokens_;
  SequenceProgress& progress = sequence->progress;
  OutputProcessor& text = sequence->output.text;
  OutputProcessor::Output output = text.Push(token);
  if (sequence->output.logits != nullptr) sequence->output.logits->Accept(token);
  sequence->account.usage.completion_tokens = text.num_tokens();
  const bool full_length = progress.NumKnown() + 1 >= progress.max_total_tokens;
  if (full_length && !output.ends) output.text += text.Finish();
  Delta delta{.text = std::move(output.text)};
  if (output.deliver_id) {
    table_.AddToken(sequence, token);
    delta.token_id = token;
    if (logprobs != nullptr) delta.logprobs = *logprobs;
  }
  if (output.deliver_id || !delta.text.empty()) {
    sequence->account.last_event_at = now;
    Send(*sequence, std::move(delta));
  }
  if (output.ends) return Finished{.reason = FinishReason::kStop};
  if (full_length) return Finished{.reason = FinishReason::kLength};
  return std::nullopt;
}

Ending Delivery::Pooled(const std::vector<float>& embedding, TimeUs now, Sequence* sequence) {
  SequenceProgress& progress = sequence->progress;
  if (!sequence->IsWaiting()) progress.num_done = progress.num_context_tokens;
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(embedding.begin(), embedding.end(), is_finite))
    return EngineFault(absl::InternalError("the hidden states of the prompt are not finite"));
  slo_.ObserveFirstToken(sequence, now);
  return Finished{.reason = FinishReason::kLength, .embedding = embedding};
}

void Delivery::SendEnd(Ending ending, std::shared_ptr<const Context> context,
                       const Sequence& sequence) {
  const Usage& usage = sequence.account.usage;
  if (Failed* failed = std::get_if<Failed>(&ending)) {
    failed->usage = usage;
    Send(sequence, std::move(*failed));
    return;
  }
  Finished& finished = std::get<Finished>(ending);
  finished.matched_stop = sequence.output.text.matched_stop();
  finished.matched_token_id = sequence.output.text.matched_token_id();
  finished.usage = usage;
  finished.context = std::move(context);
  Send(sequence, std::move(finished));
}

}  // namespace hydrant
