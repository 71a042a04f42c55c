#include "server/requests/request_output.h"

#include <utility>

#include "server/observe/request_log.h"
#include "server/wire/wire_events.h"

namespace hydrant {

void RequestOutput::SetRequest(const Request& request, const OutputOptions& output) {
  request_id_ = request.request_id;
  policy_ = request.cache.policy;
  tenant_ = request.tenant;
  num_samples_ = output.num_samples;
  outputs_ = SampleOutputs(output);
  last_token_at_.resize(output.num_samples);
}

void RequestOutput::Open(v1::Accepted accepted) {
  accepted_ = std::move(accepted);
  open_ = true;
}

void RequestOutput::Refuse(const Refusal& refusal) { EndUnread(refusal); }

void RequestOutput::Abandon(const absl::Status& why) {
  const std::string_view outcome = OutcomeOf(Failed{.status = why, .reason = {}});
  args_.metrics->ended.Add(outcome);
  EndUnread({why, outcome == "deadline" ? "DEADLINE" : "CANCELLED"});
}

void RequestOutput::EndUnread(const Refusal& refusal) {
  if (args_.admission != nullptr) args_.admission->Release();
  if (args_.span != nullptr) args_.span->Refuse(refusal);
  failure_ = RequestFailure{.refusal = refusal};
  open_ = true;
}

void RequestOutput::OnEvent(size_t sample, const Event& event) {
  if (const auto* delta = std::get_if<Delta>(&event.what)) {
    if (delta->token_id.has_value()) ObserveTokens(sample);
    if (dropped_) return;
    progress_.reset();  // a delta supersedes progress
    outputs_.Append(sample, *delta);
  } else if (const auto* progress = std::get_if<Progress>(&event.what)) {
    // Replaces an older progress that was not sent.
    if (outputs_.IsFirstLive(sample)) progress_ = ToWireProgress(*progress);
  } else if (const auto* of_prompt = std::get_if<PromptLogprobs>(&event.what)) {
    if (!dropped_) outputs_.Append(*of_prompt);
  } else if (const auto* entries = std::get_if<Indirect<PromptEntries>>(&event.what)) {
    if (!dropped_) outputs_.Append(**entries);
  } else if (const auto* finished = std::get_if<Finished>(&event.what)) {
    outputs_.End(sample, *finished);
    EndIfAllHave();
  } else if (const auto* failed = std::get_if<Failed>(&event.what)) {
    outputs_.End(sample, *failed);
    EndIfAllHave();
  }
}

void RequestOutput::ObserveTokens(size_t sample) {
  const auto now = std::chrono::steady_clock::now();
  const auto since = [now](auto then) { return std::chrono::duration<double>(now - then).count(); };
  std::optional<std::chrono::steady_clock::time_point>& last = last_token_at_[sample];
  if (last.has_value()) {
    args_.metrics->inter_token_latency.Observe(since(*last));
  } else if (!had_token_) {
    args_.metrics->time_to_first_token.Observe(since(args_.arrived));
  }
  had_token_ = true;
  last = now;
}

void RequestOutput::EndIfAllHave() {
  end_ = outputs_.RequestEnd();
  if (const auto* finished = std::get_if<Finished>(&end_)) {
    if (args_.admission != nullptr) args_.admission->Charge(finished->usage);
    args_.metrics->Ended(policy_, *finished);
    args_.metrics->end_to_end.Observe(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - args_.arrived).count());
    if (args_.span != nullptr) args_.span->End(*finished);
    Log(OutcomeOf(*finished), OutcomeOf(*finished), finished->usage);
    usage_ = ToWireUsage(finished->usage);
  } else if (const auto* failed = std::get_if<Failed>(&end_)) {
    if (args_.admission != nullptr) args_.admission->Charge(failed->usage);
    args_.metrics->Ended(policy_, *failed);
    if (args_.span != nullptr) args_.span->End(*failed);
    Log(OutcomeOf(*failed), failed->reason, failed->usage);
    failure_ = RequestFailure{.refusal = {failed->status, failed->reason, failed->retry_after_us},
                              .usage = ToWireUsage(failed->usage)};
  }
}

void RequestOutput::Log(std::string_view outcome, std::string_view reason,
                        const Usage& usage) const {
  LogRequest({.request_id = request_id_,
              .policy = policy_,
              .tenant = tenant_,
              .outcome = outcome,
              .reason = reason,
              .usage = &usage,
              .samples = num_samples_,
              .trace = ContextOf(args_.span.get())});
}

void RequestOutput::Drop() {
  dropped_ = true;
  outputs_.Drop();
}

bool RequestOutput::HasMessage() const {
  return open_ && (accepted_.has_value() || outputs_.HasNext() ||
                   (progress_.has_value() && !HasEnd()) || usage_.has_value());
}

bool RequestOutput::TakeNext(v1::GenerateResponse* message) {
  if (!HasMessage()) return false;
  if (accepted_.has_value()) {
    *message->mutable_accepted() = *std::exchange(accepted_, std::nullopt);
    return true;
  }
  if (outputs_.TakeNext(message)) return true;
  if (progress_.has_value() && !HasEnd()) {
    *message->mutable_progress() = *std::exchange(progress_, std::nullopt);
  } else {
    *message->mutable_usage() = *std::exchange(usage_, std::nullopt);
  }
  return true;
}

std::optional<RequestFailure> RequestOutput::TakeFailure() {
  if (!open_ || HasMessage() || std::exchange(reported_failure_, true)) return std::nullopt;
  return failure_;
}

}  // namespace hydrant
