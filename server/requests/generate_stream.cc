#include "server/requests/generate_stream.h"

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
// Load balancers read the server's load from this trailer (ORCA).
constexpr char kLoadTrailer[] = "endpoint-load-metrics-bin";

}  // namespace

std::shared_ptr<GenerateStream> GenerateStream::Create(Args args) {
  std::shared_ptr<GenerateStream> stream(new GenerateStream(std::move(args)));
  stream->self_ = stream;
  return stream;
}

GenerateStream::GenerateStream(Args args) : args_(std::move(args)) { AddItem(args_.admission); }

void GenerateStream::AddItem(std::shared_ptr<TenantAccount::Admission> admission) {
  items_.push_back({RequestOutput({.metrics = args_.metrics,
                                   .arrived = args_.arrived,
                                   .admission = std::move(admission),
                                   .span = args_.new_span ? args_.new_span() : nullptr})});
}

void GenerateStream::SetRequests(size_t count, RequestHandle first) {
  const MutexLock lock(mutex_);
  first_handle_ = first;
  while (items_.size() < count) AddItem(nullptr);
}

void GenerateStream::SetAdmission(size_t index,
                                  std::shared_ptr<TenantAccount::Admission> admission) {
  const MutexLock lock(mutex_);
  items_[index].output.SetAdmission(std::move(admission));
}

void GenerateStream::RefuseCall(const Refusal& refusal) {
  const MutexLock lock(mutex_);
  items_.front().output.Refuse(refusal);
  End(ToGrpcStatus(refusal));
}

bool GenerateStream::EndIfGone(size_t index) {
  const MutexLock lock(mutex_);
  if (!gone_.has_value()) return false;
  items_[index].output.Abandon(*gone_);
  MarkDirty(index);
  Advance();
  return true;
}

void GenerateStream::Refuse(size_t index, const Refusal& refusal) {
  const MutexLock lock(mutex_);
  items_[index].output.Refuse(refusal);
  MarkDirty(index);
  Advance();
}

void GenerateStream::SetRequest(size_t index, const Request& request, const OutputOptions& output) {
  const MutexLock lock(mutex_);
  items_[index].output.SetRequest(request, output);
}

void GenerateStream::Open(size_t index, v1::Accepted accepted) {
  const MutexLock lock(mutex_);
  items_[index].output.Open(std::move(accepted));
  if (gone_.has_value()) Cancel(index, *gone_);
  MarkDirty(index);
  Advance();
}

void GenerateStream::OnEvent(Event event) {
  const MutexLock lock(mutex_);
  const size_t place = event.handle - first_handle_;
  const size_t index = place / kMaxSamples;
  RequestOutput& output = items_[index].output;
  const bool had_failed = output.HasFailedInPart();
  num_bytes_ -= output.num_bytes();
  output.OnEvent(place % kMaxSamples, event);
  num_bytes_ += output.num_bytes();
  if (output.HasFailedInPart() && !had_failed)
    Cancel(index, absl::CancelledError("another sample of the request has failed"));
  MarkDirty(index);
  // The limit holds only while a write is in flight; otherwise the bytes are sent next.
  if (writing_ && num_bytes_ > args_.max_buffered_bytes) DisconnectSlowReader();
}

// Queues the request for sending, and counts it when it is over.
void GenerateStream::MarkDirty(size_t index) {
  Item& item = items_[index];
  if (!std::exchange(item.in_line, true)) line_.push_back(index);
  if (!item.output.IsOver() || std::exchange(item.over, true)) return;
  ++num_over_;
  last_over_ = index;
}

void GenerateStream::OnStepEnd(const std::shared_ptr<PendingWrites>& delivery) {
  const MutexLock lock(mutex_);
  if (writing_) {
    overtaken_ = true;
    return;
  }
  Advance();
  if (writing_ && !late_) delivery_ = delivery;
}

// Drops all output: the stream cannot be written any more.
void GenerateStream::Break() {
  broken_ = true;
  num_bytes_ = 0;
  for (Item& item : items_) item.output.Drop();
}

// The client has gone: drops output and cancels the requests.
void GenerateStream::Disconnect(const absl::Status& why) {
  Break();
  if (!gone_.has_value()) gone_ = why;
  gone_source_.request_stop();
  for (size_t index = 0; index < items_.size(); ++index) {
    if (!items_[index].over) Cancel(index, *gone_);
  }
}

void GenerateStream::DisconnectSlowReader() {
  const std::string why = absl::StrCat("the client does not read its stream: more than ",
                                       args_.max_buffered_bytes, " bytes wait to be sent");
  Disconnect(absl::ResourceExhaustedError(why));
  // A status sent with Finish() would wait behind the unread data; the core's cancellation does
  // not.
  grpc_call_cancel_with_status(args_.context->c_call(), GRPC_STATUS_RESOURCE_EXHAUSTED, why.c_str(),
                               nullptr);
}

void GenerateStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  late_ = std::exchange(overtaken_, false);
  if (!ok) Break();
  Advance();
  // Several samples of one step are several messages; the delivery is held until the last.
  if (!writing_ || late_) delivery_.reset();
}

// A client that gives up at its deadline cancels at about the time when the server's own deadline
// passes. The server's began one trip later, and gRPC lengthens it: it rounds up by 1 % and resends
// the timeout of an earlier call where that is at most 3 % longer.
bool GenerateStream::DeadlineHasPassed() const {
  const auto left = args_.context->deadline() - std::chrono::system_clock::now();
  const auto given = left + (std::chrono::steady_clock::now() - args_.arrived);
  const auto trip = std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(50), given / 10);
  return left <= trip + given / 25;
}

void GenerateStream::OnCancel() {
  const MutexLock lock(mutex_);
  Disconnect(DeadlineHasPassed() ? absl::DeadlineExceededError("the call's deadline has passed")
                                 : absl::CancelledError("the client has gone"));
  Advance();
}

void GenerateStream::Cancel(size_t index, const absl::Status& why) {
  args_.cancel(FirstHandle(index), why);
  const std::string& id = items_[index].output.request_id();
  spdlog::debug("request {} is to end: {}", id.empty() ? "(not read yet)" : id,
                std::string(why.message()));
}

// gRPC makes no further call, and done_ keeps the router's calls away from the dead call.
void GenerateStream::OnDone() { const std::shared_ptr<GenerateStream> last = std::move(self_); }

void GenerateStream::Advance() {
  if (writing_ || done_) return;
  if (broken_) {
    // gRPC requires a status although the client does not get it, and the call must live until all
    // requests have ended.
    if (IsOver()) End(grpc::Status::CANCELLED);
    return;
  }
  while (HasNext()) {
    if (SendNext()) return;
  }
  if (IsOver()) EndOk();
}

// True: the first request in line_ has output.
bool GenerateStream::HasNext() {
  while (!line_.empty() && !items_[line_.front()].output.HasNext()) {
    items_[line_.front()].in_line = false;
    line_.pop_front();
  }
  return !line_.empty();
}

// False: the client's contract has no equivalent for the message. REQUIRES: HasNext()
bool GenerateStream::SendNext() {
  const size_t index = line_.front();
  line_.pop_front();
  line_.push_back(index);
  RequestOutput& output = items_[index].output;
  v1::GenerateResponse message;
  std::optional<grpc::ByteBuffer> bytes;
  num_bytes_ -= output.num_bytes();
  if (output.TakeNext(&message)) {
    bytes = args_.contract->Translate(index, message);
  } else if (const std::optional<RequestFailure> failure = output.TakeFailure()) {
    bytes = args_.contract->TranslateFailure(index, *failure);
    if (!bytes.has_value()) {
      EndWith(*failure);
      return true;
    }
  }
  num_bytes_ += output.num_bytes();
  if (!bytes.has_value()) return false;
  if (IsOver() && !HasNext()) {
    WriteLast(*bytes);
  } else {
    Write(*bytes);
  }
  return true;
}

// The messages at the end of a stream are sent together, as are those of several samples of one
// step. The first message never gets the buffer hint: gRPC calls its write done when its headers
// have left, and with the hint they stay until the next write on the connection, at the latest the
// next keepalive.
void GenerateStream::Write(const grpc::ByteBuffer& bytes) {
  in_flight_ = bytes;
  args_.metrics->sent_bytes += in_flight_.Length();
  grpc::WriteOptions options;
  const bool others_follow = IsOver() || (HasNext() && args_.contract->SendsEveryMessage());
  if (others_follow && has_written_) options.set_buffer_hint();
  has_written_ = true;
  writing_ = true;
  StartWrite(&in_flight_, options);
}

void GenerateStream::WriteLast(const grpc::ByteBuffer& bytes) {
  in_flight_ = bytes;
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

// Sent without request: clients that balance load read it; for others it is some 200 bytes.
void GenerateStream::AddLoadReport(grpc::StatusCode code) {
  if (!args_.load_report) return;
  const auto samples = static_cast<int>(items_[last_over_].output.num_samples());
  args_.context->AddTrailingMetadata(kLoadTrailer, args_.load_report(code, samples));
}

void GenerateStream::End(const grpc::Status& status) {
  done_ = true;
  AddLoadReport(status.error_code());
  Finish(status);
}

void GenerateStream::EndOk() {
  const std::chrono::microseconds gap = EndGap();
  if (gap.count() > 0) return EndAfter(gap);
  End(grpc::Status::OK);
}

void GenerateStream::EndWith(const RequestFailure& failure) {
  if (failure.usage.has_value())
    args_.context->AddTrailingMetadata(kUsageTrailer, failure.usage->SerializeAsString());
  End(ToGrpcStatus(failure.refusal));
}

// gRPC closes a connection past its age, or of a server that shuts down, as soon as its last stream
// has ended. A client that then answers a message (with a window update or a ping) gets a broken
// connection and drops unread data. So the status follows the last message when the client is
// quiet: after a fiftieth of the stream's duration, at least 1 ms and at most 20 ms.
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
    const MutexLock lock(stream->mutex_);
    if (!stream->done_) stream->End(grpc::Status::OK);
  });
}

}  // namespace hydrant
