#include "server/generate_stream.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/request_log.h"
#include "server/wire_events.h"

namespace hydrant {
namespace {

constexpr char kUsageTrailer[] = "hydrant-usage-bin";
// Where balancers look for the load of the server that has answered (ORCA).
constexpr char kLoadTrailer[] = "endpoint-load-metrics-bin";

}  // namespace

std::shared_ptr<GenerateStream> GenerateStream::Create(Args args) {
  std::shared_ptr<GenerateStream> stream(new GenerateStream(std::move(args)));
  stream->self_ = stream;
  return stream;
}

GenerateStream::GenerateStream(Args args) : args_(std::move(args)) {}

bool GenerateStream::EndIfGone() {
  const std::lock_guard lock(mutex_);
  if (!gone_.has_value()) return false;
  const bool late = absl::IsDeadlineExceeded(*gone_);
  args_.metrics->ended.Add(late ? "deadline" : "cancelled");
  EndUnread({*gone_, late ? "DEADLINE" : "CANCELLED"});
  return true;
}

void GenerateStream::SetRequest(const std::string& request_id, const std::string& policy,
                                RequestHandle first, const OutputOptions& output) {
  const std::lock_guard lock(mutex_);
  request_id_ = request_id;
  policy_ = policy;
  first_handle_ = first;
  outputs_ = SampleOutputs(output);
  last_token_at_.resize(output.num_samples);
}

void GenerateStream::Open(v1::Accepted accepted) {
  const std::lock_guard lock(mutex_);
  accepted_ = std::move(accepted);
  open_ = true;
  if (gone_.has_value()) Cancel(*gone_);
  Advance();
}

void GenerateStream::Refuse(const Refusal& refusal) {
  const std::lock_guard lock(mutex_);
  EndUnread(refusal);
}

void GenerateStream::EndUnread(const Refusal& refusal) {
  if (args_.admission != nullptr) args_.admission->Release();
  if (args_.span != nullptr) args_.span->Refuse(refusal);
  End(ToGrpcStatus(refusal));
}

void GenerateStream::ObserveTokens(size_t index) {
  const auto now = std::chrono::steady_clock::now();
  const auto since = [now](auto then) { return std::chrono::duration<double>(now - then).count(); };
  std::optional<std::chrono::steady_clock::time_point>& last = last_token_at_[index];
  if (last.has_value()) {
    args_.metrics->inter_token_latency.Observe(since(*last));
  } else if (!had_token_) {
    args_.metrics->time_to_first_token.Observe(since(args_.arrived));
  }
  had_token_ = true;
  last = now;
}

void GenerateStream::OnEvent(Event event) {
  const std::lock_guard lock(mutex_);
  const size_t index = event.handle - first_handle_;
  if (const auto* delta = std::get_if<Delta>(&event.what)) {
    Append(index, *delta);
  } else if (const auto* progress = std::get_if<Progress>(&event.what)) {
    // An older one that was not sent is out of date.
    if (outputs_.IsFirstLive(index)) progress_ = ToWireProgress(*progress);
  } else if (const auto* of_prompt = std::get_if<PromptLogprobs>(&event.what)) {
    if (!broken_) outputs_.Append(*of_prompt);
  } else if (const auto* finished = std::get_if<Finished>(&event.what)) {
    outputs_.End(index, *finished);
    EndRequest();
  } else if (const auto* failed = std::get_if<Failed>(&event.what)) {
    const bool first = !outputs_.HasFailed();
    outputs_.End(index, *failed);
    EndRequest();
    if (first && std::holds_alternative<std::monostate>(end_))
      Cancel(absl::CancelledError("another sample of the request has failed"));
  }
}

// Where its last sample has ended. Before the client can hear of it: who has read the end of a
// stream finds it counted.
void GenerateStream::EndRequest() {
  end_ = outputs_.RequestEnd();
  if (const auto* finished = std::get_if<Finished>(&end_)) {
    Charge(finished->usage);
    args_.metrics->Ended(policy_, *finished);
    args_.metrics->end_to_end.Observe(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - args_.arrived).count());
    if (args_.span != nullptr) args_.span->End(*finished);
    LogRequest({.request_id = request_id_,
                .policy = policy_,
                .outcome = OutcomeOf(*finished),
                .reason = OutcomeOf(*finished),
                .usage = &*finished->usage,
                .samples = outputs_.size(),
                .trace = ContextOf(args_.span.get())});
  } else if (const auto* failed = std::get_if<Failed>(&end_)) {
    Charge(failed->usage);
    args_.metrics->Ended(policy_, *failed);
    if (args_.span != nullptr) args_.span->End(*failed);
    LogRequest({.request_id = request_id_,
                .policy = policy_,
                .outcome = OutcomeOf(*failed),
                .reason = failed->reason,
                .usage = &*failed->usage,
                .samples = outputs_.size(),
                .trace = ContextOf(args_.span.get())});
  }
}

void GenerateStream::Charge(const Usage& usage) {
  if (args_.admission != nullptr) args_.admission->Charge(usage);
}

void GenerateStream::OnStepEnd(const std::shared_ptr<Delivery>& delivery) {
  const std::lock_guard lock(mutex_);
  if (writing_) {
    overtaken_ = true;
    return;
  }
  Advance();
  if (writing_ && !late_) delivery_ = delivery;
}

void GenerateStream::Append(size_t index, const Delta& delta) {
  if (delta.token_id.has_value()) ObserveTokens(index);
  if (broken_) return;
  progress_.reset();  // what it said is behind us
  outputs_.Append(index, delta);
  // Without a write in flight the bytes are about to leave: one step's output is always allowed.
  if (writing_ && outputs_.num_bytes() > args_.max_buffered_bytes) CutOffSlowReader();
}

void GenerateStream::CutOffSlowReader() {
  const std::string why = absl::StrCat("the client does not read its stream: more than ",
                                       args_.max_buffered_bytes, " bytes wait to be sent");
  broken_ = true;
  outputs_.Drop();
  Cancel(absl::ResourceExhaustedError(why));
  // A status sent with Finish() would wait behind the unread data; the core's cancellation does
  // not.
  grpc_call_cancel_with_status(args_.context->c_call(), GRPC_STATUS_RESOURCE_EXHAUSTED, why.c_str(),
                               nullptr);
}

void GenerateStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  late_ = std::exchange(overtaken_, false);
  if (!ok) broken_ = true;
  Advance();
  // What a step brings of several samples is several messages.
  if (!writing_ || late_) delivery_.reset();
}

// A client that gives up at its deadline is heard of at about the time when the server's own
// passes. That one began a trip later, and gRPC lengthens it: rounds up by 1 %, and sends the time
// of an earlier call again where that is at most 3 % longer.
bool GenerateStream::DeadlineHasPassed() const {
  const auto left = args_.context->deadline() - std::chrono::system_clock::now();
  const auto given = left + (std::chrono::steady_clock::now() - args_.arrived);
  const auto trip = std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(50), given / 10);
  return left <= trip + given / 25;
}

void GenerateStream::OnCancel() {
  const std::lock_guard lock(mutex_);
  gone_ = DeadlineHasPassed() ? absl::DeadlineExceededError("the call's deadline has passed")
                              : absl::CancelledError("the client has gone");
  broken_ = true;
  Cancel(*gone_);
  Advance();
}

void GenerateStream::Cancel(const absl::Status& why) {
  args_.cancel(first_handle_, why);
  spdlog::debug("request {} is to end: {}", request_id_.empty() ? "(not read yet)" : request_id_,
                std::string(why.message()));
}

// No other call of gRPC follows, and done_ keeps the router's away from the dead call.
void GenerateStream::OnDone() { const std::shared_ptr<GenerateStream> last = std::move(self_); }

void GenerateStream::Advance() {
  if (!open_ || writing_ || done_) return;
  if (broken_) {
    // The status goes nowhere, but gRPC wants one, and the call must stay until the request has
    // ended.
    if (std::holds_alternative<std::monostate>(end_)) return;
    return End(grpc::Status::CANCELLED);
  }
  for (v1::GenerateResponse message; TakeNextMessage(&message); message.Clear()) {
    if (!Translate(message)) continue;
    writing_ = true;
    const grpc::WriteOptions options = HowToWrite();
    has_written_ = true;
    return StartWrite(&in_flight_, options);
  }
  if (const auto* finished = std::get_if<Finished>(&end_)) {
    FinishWithUsage(*finished);
  } else if (const auto* failed = std::get_if<Failed>(&end_)) {
    FinishWithFailure(*failed);
  }
}

// False: the client's contract has no word for it.
bool GenerateStream::Translate(const v1::GenerateResponse& message) {
  std::optional<grpc::ByteBuffer> bytes = args_.contract->Translate(message);
  if (!bytes.has_value()) return false;
  in_flight_ = *std::move(bytes);
  args_.metrics->sent_bytes += in_flight_.Length();
  return true;
}

// What ends the stream goes out in one piece, and so does what a step brings of several samples.
// The first message never waits for others: gRPC calls its write done when the headers that go with
// it have left, and with the hint they stay until something else is sent on the connection, the
// next keepalive at the latest.
grpc::WriteOptions GenerateStream::HowToWrite() const {
  grpc::WriteOptions options;
  const bool others_follow = (outputs_.HasNext() && args_.contract->SaysAll()) ||
                             !std::holds_alternative<std::monostate>(end_);
  if (others_follow && has_written_) options.set_buffer_hint();
  return options;
}

bool GenerateStream::TakeNextMessage(v1::GenerateResponse* message) {
  if (accepted_.has_value()) {
    *message->mutable_accepted() = *std::move(accepted_);
    accepted_.reset();
    return true;
  }
  if (outputs_.TakeNext(message)) return true;
  if (progress_.has_value() && std::holds_alternative<std::monostate>(end_)) {
    *message->mutable_progress() = *std::move(progress_);
    progress_.reset();
    return true;
  }
  return false;
}

// Nobody asks for it: clients that balance by it look, others pass some 200 bytes by.
void GenerateStream::AddLoadReport(grpc::StatusCode code) {
  if (!args_.load_report) return;
  const int samples = first_handle_ == 0 ? 0 : static_cast<int>(outputs_.size());
  args_.context->AddTrailingMetadata(kLoadTrailer, args_.load_report(code, samples));
}

void GenerateStream::End(const grpc::Status& status) {
  done_ = true;
  AddLoadReport(status.error_code());
  Finish(status);
}

void GenerateStream::FinishWithUsage(const Finished& finished) {
  const std::chrono::microseconds gap = EndGap();
  if (usage_sent_) return FinishAfter(gap);
  v1::GenerateResponse message;
  *message.mutable_usage() = ToWireUsage(finished.usage);
  usage_sent_ = true;
  if (!Translate(message)) {
    if (gap.count() > 0) return FinishAfter(gap);
    End(grpc::Status::OK);
  } else if (gap.count() > 0) {
    writing_ = true;
    StartWrite(&in_flight_);
  } else {
    done_ = true;
    AddLoadReport(grpc::StatusCode::OK);
    StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), grpc::Status::OK);
  }
}

// gRPC closes a connection that is past its age, or of a server that leaves, as soon as the last of
// its streams has ended. A client that answers a message just then (with a window update, a ping)
// hears that the connection is broken, and drops what it has not read yet. So the status follows
// the last message when the client has gone quiet: a fiftieth of the stream's time later, which
// nobody notices, but 1 ms at least and 20 ms at most.
std::chrono::microseconds GenerateStream::EndGap() const {
  if (args_.connections_close == nullptr || !*args_.connections_close) return {};
  const auto lasted = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - args_.arrived);
  return std::clamp<std::chrono::microseconds>(lasted / 50, std::chrono::milliseconds(1),
                                               std::chrono::milliseconds(20));
}

void GenerateStream::FinishAfter(std::chrono::microseconds gap) {
  if (end_alarm_.has_value()) return;
  end_alarm_.emplace();
  end_alarm_->Set(std::chrono::system_clock::now() + gap, [weak = weak_from_this()](bool) {
    const std::shared_ptr<GenerateStream> stream = weak.lock();
    if (stream == nullptr) return;
    const std::lock_guard lock(stream->mutex_);
    if (!stream->done_) stream->End(grpc::Status::OK);
  });
}

void GenerateStream::FinishWithFailure(const Failed& failed) {
  args_.context->AddTrailingMetadata(kUsageTrailer, ToWireUsage(failed.usage).SerializeAsString());
  End(ToGrpcStatus({failed.status, failed.reason, failed.retry_after_us}));
}

}  // namespace hydrant
