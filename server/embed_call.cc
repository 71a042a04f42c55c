#include "server/embed_call.h"

#include <utility>

#include "server/request_conversion.h"
#include "server/request_log.h"
#include "server/wire_events.h"
#include "server/wire_message.h"

namespace hydrant {
namespace {

// Of the cache of such a request (ConvertEmbedRequest).
constexpr char kPolicy[] = "local";

}  // namespace

std::shared_ptr<EmbedCall> EmbedCall::Create(Args args) {
  std::shared_ptr<EmbedCall> call(new EmbedCall(std::move(args)));
  call->self_ = call;
  return call;
}

void EmbedCall::Refuse(const Refusal& refusal) {
  args_.metrics->Refused(refusal.reason);
  Finish(ToGrpcStatus(refusal));
}

void EmbedCall::SetRequest(v1::EmbedRequest wire, const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  wire_ = std::move(wire);
  request_id_ = request_id;
}

void EmbedCall::Open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  if (gone_) args_.cancel(absl::CancelledError("the client has gone"));
}

void EmbedCall::OnCancel() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  if (open_) args_.cancel(absl::CancelledError("the client has gone"));
}

// An end comes once, whether the client is still there or not.
void EmbedCall::OnEvent(Event event) {
  if (const auto* finished = std::get_if<Finished>(&event.what)) return Answer(*finished);
  if (const auto* failed = std::get_if<Failed>(&event.what)) Fail(*failed);
}

void EmbedCall::Answer(const Finished& finished) {
  args_.metrics->Ended(kPolicy, finished);
  args_.metrics->end_to_end.Observe(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - args_.arrived).count());
  v1::EmbedResponse response;
  {
    const std::lock_guard lock(mutex_);
    LogRequest({.request_id = request_id_,
                .policy = kPolicy,
                .outcome = OutcomeOf(finished),
                .reason = OutcomeOf(finished),
                .usage = &finished.usage});
    const std::vector<float> embedding = ConvertEmbedding(wire_, finished.embedding);
    response.mutable_embedding()->Assign(embedding.begin(), embedding.end());
    response.set_request_id(request_id_);
  }
  *response.mutable_usage() = ToWireUsage(finished.usage);
  *args_.response = ToWire(response);
  args_.metrics->sent_bytes += args_.response->Length();
  Finish(grpc::Status::OK);
}

void EmbedCall::Fail(const Failed& failed) {
  args_.metrics->Ended(kPolicy, failed);
  {
    const std::lock_guard lock(mutex_);
    LogRequest({.request_id = request_id_,
                .policy = kPolicy,
                .outcome = OutcomeOf(failed),
                .reason = failed.reason,
                .usage = &failed.usage});
  }
  Finish(ToGrpcStatus({failed.status, failed.reason, failed.retry_after_us}));
}

void EmbedCall::OnDone() { const std::shared_ptr<EmbedCall> last = std::move(self_); }

}  // namespace hydrant
