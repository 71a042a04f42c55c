#include "server/requests/unary_call.h"

#include <utility>

#include "server/observe/request_log.h"

namespace hydrant {

std::shared_ptr<UnaryCall> UnaryCall::Create(Args args) {
  std::shared_ptr<UnaryCall> call(new UnaryCall(std::move(args)));
  call->self_ = call;
  return call;
}

void UnaryCall::Refuse(const Refusal& refusal) {
  args_.metrics->Refused(refusal.reason);
  if (args_.admission != nullptr) args_.admission->Release();
  if (args_.span != nullptr) args_.span->Refuse(refusal);
  Finish(ToGrpcStatus(refusal));
}

void UnaryCall::SetRequest(const Request& request, Answer answer) {
  const MutexLock lock(mutex_);
  request_id_ = request.request_id;
  policy_ = request.cache.policy;
  tenant_ = request.tenant;
  answer_ = std::move(answer);
}

void UnaryCall::Open() {
  const MutexLock lock(mutex_);
  open_ = true;
  if (gone_) args_.cancel(absl::CancelledError("the client has gone"));
}

void UnaryCall::OnCancel() {
  const MutexLock lock(mutex_);
  gone_ = true;
  if (open_) args_.cancel(absl::CancelledError("the client has gone"));
}

// An end arrives once, whether or not the client is still connected.
void UnaryCall::OnEvent(Event event) {
  if (const auto* finished = std::get_if<Finished>(&event.what)) return End(*finished);
  if (const auto* failed = std::get_if<Failed>(&event.what)) Fail(*failed);
}

void UnaryCall::End(const Finished& finished) {
  args_.metrics->end_to_end.Observe(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - args_.arrived).count());
  Answer answer;
  {
    const MutexLock lock(mutex_);
    if (args_.admission != nullptr) args_.admission->Charge(finished.usage);
    args_.metrics->Ended(policy_, finished);
    LogRequest({.request_id = request_id_,
                .policy = policy_,
                .tenant = tenant_,
                .outcome = OutcomeOf(finished),
                .reason = OutcomeOf(finished),
                .usage = &*finished.usage,
                .trace = ContextOf(args_.span.get())});
    answer = std::move(answer_);
  }
  std::variant<grpc::ByteBuffer, Refusal> response = answer(finished);
  if (const auto* refusal = std::get_if<Refusal>(&response)) {
    if (args_.span != nullptr) args_.span->Refuse(*refusal);
    return Finish(ToGrpcStatus(*refusal));
  }
  if (args_.span != nullptr) args_.span->End(finished);
  *args_.response = std::get<grpc::ByteBuffer>(response);
  args_.metrics->sent_bytes += args_.response->Length();
  Finish(grpc::Status::OK);
}

void UnaryCall::Fail(const Failed& failed) {
  {
    const MutexLock lock(mutex_);
    if (args_.admission != nullptr) args_.admission->Charge(failed.usage);
    args_.metrics->Ended(policy_, failed);
    if (args_.span != nullptr) args_.span->End(failed);
    LogRequest({.request_id = request_id_,
                .policy = policy_,
                .tenant = tenant_,
                .outcome = OutcomeOf(failed),
                .reason = failed.reason,
                .usage = &*failed.usage,
                .trace = ContextOf(args_.span.get())});
  }
  Finish(ToGrpcStatus({failed.status, failed.reason, failed.retry_after_us}));
}

void UnaryCall::OnDone() { const std::shared_ptr<UnaryCall> last = std::move(self_); }

}  // namespace hydrant
