#include "server/generate_stream.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

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

GenerateStream::GenerateStream(Args args)
    : args_(std::move(args)),
      output_({.metrics = args_.metrics, .arrived = args_.arrived, .admission = args_.admission}) {}

bool GenerateStream::EndIfGone() {
  const std::lock_guard lock(mutex_);
  if (!gone_.has_value()) return false;
  output_.Abandon(*gone_);
  End(ToGrpcStatus(output_.TakeFailure()->refusal));
  return true;
}

void GenerateStream::SetRequest(const std::string& request_id, const std::string& policy,
                                RequestHandle first, const OutputOptions& output) {
  const std::lock_guard lock(mutex_);
  first_handle_ = first;
  output_.SetRequest(request_id, policy, output);
}

void GenerateStream::Open(v1::Accepted accepted) {
  const std::lock_guard lock(mutex_);
  output_.Open(std::move(accepted));
  if (gone_.has_value()) Cancel(*gone_);
  Advance();
}

void GenerateStream::Refuse(const Refusal& refusal) {
  const std::lock_guard lock(mutex_);
  output_.Refuse(refusal);
  End(ToGrpcStatus(refusal));
}

void GenerateStream::OnEvent(Event event) {
  const std::lock_guard lock(mutex_);
  const bool had_failed = output_.HasFailedInPart();
  output_.OnEvent(event.handle - first_handle_, event);
  if (output_.HasFailedInPart() && !had_failed)
    Cancel(absl::CancelledError("another sample of the request has failed"));
  // Without a write in flight the bytes are about to leave: one step's output is always allowed.
  if (writing_ && !broken_ && output_.num_bytes() > args_.max_buffered_bytes) CutOffSlowReader();
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

void GenerateStream::Break() {
  broken_ = true;
  output_.Drop();
}

void GenerateStream::CutOffSlowReader() {
  const std::string why = absl::StrCat("the client does not read its stream: more than ",
                                       args_.max_buffered_bytes, " bytes wait to be sent");
  Break();
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
  if (!ok) Break();
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
  Break();
  Cancel(*gone_);
  Advance();
}

void GenerateStream::Cancel(const absl::Status& why) {
  args_.cancel(first_handle_, why);
  spdlog::debug("request {} is to end: {}",
                output_.request_id().empty() ? "(not read yet)" : output_.request_id(),
                std::string(why.message()));
}

// No other call of gRPC follows, and done_ keeps the router's away from the dead call.
void GenerateStream::OnDone() { const std::shared_ptr<GenerateStream> last = std::move(self_); }

void GenerateStream::Advance() {
  if (writing_ || done_) return;
  if (broken_) {
    // The status goes nowhere, but gRPC wants one, and the call must stay until the request has
    // ended.
    if (output_.IsOver()) End(grpc::Status::CANCELLED);
    return;
  }
  // What the client's contract has no word for is left out.
  for (v1::GenerateResponse message; output_.TakeNext(&message); message.Clear()) {
    std::optional<grpc::ByteBuffer> bytes = args_.contract->Translate(message);
    const bool is_last = message.has_usage();
    if (bytes.has_value()) return is_last ? WriteLast(*std::move(bytes)) : Write(*std::move(bytes));
  }
  if (!output_.IsOver()) return;
  if (const auto failure = output_.TakeFailure()) return EndWith(*failure);
  EndWell();
}

// What ends the stream goes out in one piece, and so does what a step brings of several samples.
// The first message never waits for others: gRPC calls its write done when the headers that go with
// it have left, and with the hint they stay until something else is sent on the connection, the
// next keepalive at the latest.
void GenerateStream::Write(grpc::ByteBuffer bytes) {
  in_flight_ = std::move(bytes);
  args_.metrics->sent_bytes += in_flight_.Length();
  grpc::WriteOptions options;
  const bool others_follow = output_.IsOver() || (output_.HasNext() && args_.contract->SaysAll());
  if (others_follow && has_written_) options.set_buffer_hint();
  has_written_ = true;
  writing_ = true;
  StartWrite(&in_flight_, options);
}

void GenerateStream::WriteLast(grpc::ByteBuffer bytes) {
  in_flight_ = std::move(bytes);
  args_.metrics->sent_bytes += in_flight_.Length();
  if (EndGap().count() > 0) {
    writing_ = true;
    StartWrite(&in_flight_);
  } else {
    done_ = true;
    AddLoadReport(grpc::StatusCode::OK);
    StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), grpc::Status::OK);
  }
}

// Nobody asks for it: clients that balance by it look, others pass some 200 bytes by.
void GenerateStream::AddLoadReport(grpc::StatusCode code) {
  if (!args_.load_report) return;
  const auto samples = static_cast<int>(output_.num_samples());
  args_.context->AddTrailingMetadata(kLoadTrailer, args_.load_report(code, samples));
}

void GenerateStream::End(const grpc::Status& status) {
  done_ = true;
  AddLoadReport(status.error_code());
  Finish(status);
}

void GenerateStream::EndWell() {
  const std::chrono::microseconds gap = EndGap();
  if (gap.count() > 0) return EndAfter(gap);
  End(grpc::Status::OK);
}

void GenerateStream::EndWith(const RequestFailure& failure) {
  if (failure.usage.has_value())
    args_.context->AddTrailingMetadata(kUsageTrailer, failure.usage->SerializeAsString());
  End(ToGrpcStatus(failure.refusal));
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

void GenerateStream::EndAfter(std::chrono::microseconds gap) {
  if (end_alarm_.has_value()) return;
  end_alarm_.emplace();
  end_alarm_->Set(std::chrono::system_clock::now() + gap, [weak = weak_from_this()](bool) {
    const std::shared_ptr<GenerateStream> stream = weak.lock();
    if (stream == nullptr) return;
    const std::lock_guard lock(stream->mutex_);
    if (!stream->done_) stream->End(grpc::Status::OK);
  });
}

}  // namespace hydrant
