#include "server/orca_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/wire_message.h"

namespace hydrant {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxStreams = 256;
constexpr milliseconds kShortest{100}, kDefault{1000}, kLongest{3'600'000};

absl::StatusOr<milliseconds> ReadInterval(const grpc::ByteBuffer& bytes) {
  xds::service::orca::v3::OrcaLoadReportRequest request;
  HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &request));
  const google::protobuf::Duration& asked = request.report_interval();
  if (asked.seconds() < 0 || asked.nanos() < 0)
    return absl::InvalidArgumentError("report_interval: must not be negative");
  const std::chrono::seconds whole(std::min(asked.seconds(), kLongest.count()));
  const auto interval = whole + std::chrono::nanoseconds(asked.nanos());
  if (interval.count() == 0) return kDefault;
  return std::clamp(std::chrono::ceil<milliseconds>(interval), kShortest, kLongest);
}

grpc::Status Leaving() {
  return ToGrpcStatus({absl::UnavailableError("the server is shutting down"), "DRAINING"});
}

}  // namespace

// One client's reports: a write is under way, or the next is waited for, or it has ended.
class LoadStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                         public std::enable_shared_from_this<LoadStream> {
 public:
  explicit LoadStream(OrcaService* owner) : owner_(owner) {}

  void Begin(milliseconds interval) {
    const std::lock_guard lock(mutex_);
    interval_ = interval;
    if (!end_.has_value()) Write();
  }

  void End(const grpc::Status& why) {
    const std::lock_guard lock(mutex_);
    if (end_.has_value()) return;
    end_ = why;
    if (!writing_) Finish(*end_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
    if (end_.has_value()) return Finish(*end_);
    alarm_.emplace();
    alarm_->Set(std::chrono::system_clock::now() + interval_, [weak = weak_from_this()](bool) {
      if (const std::shared_ptr<LoadStream> stream = weak.lock(); stream != nullptr) stream->Next();
    });
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override { owner_->Remove(shared_from_this()); }

 private:
  void Next() {
    const std::lock_guard lock(mutex_);
    if (!end_.has_value()) Write();
  }

  // REQUIRES: mutex_ held.
  void Write() {
    report_ = ToWire(owner_->service_->LoadReport());
    writing_ = true;
    StartWrite(&report_);
  }

  OrcaService* const owner_;

  std::mutex mutex_;
  // Guarded by mutex_.
  milliseconds interval_{0};
  grpc::ByteBuffer report_;  // in flight
  bool writing_ = false;
  std::optional<grpc::Status> end_;
  std::optional<grpc::Alarm> alarm_;  // for the next
};

grpc::ServerWriteReactor<grpc::ByteBuffer>* OrcaService::StreamCoreMetrics(
    grpc::CallbackServerContext*, const grpc::ByteBuffer* bytes) {
  const auto stream = std::make_shared<LoadStream>(this);
  std::optional<Refusal> refusal = Add(stream);
  const absl::StatusOr<milliseconds> interval = ReadInterval(*bytes);
  if (!refusal.has_value() && !interval.ok()) refusal = Refusal{interval.status(), "INVALID"};
  if (refusal.has_value()) {
    stream->End(ToGrpcStatus(*refusal));
  } else {
    stream->Begin(*interval);
  }
  return stream.get();
}

std::optional<Refusal> OrcaService::Add(const std::shared_ptr<LoadStream>& stream) {
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);  // a refused one too, until gRPC is done with it
  if (ends_) return Refusal{absl::UnavailableError("the server is shutting down"), "DRAINING"};
  if (streams_.size() <= kMaxStreams) return std::nullopt;
  return Refusal{absl::ResourceExhaustedError(absl::StrCat(
                     "too many streams of load reports: ", kMaxStreams, " at a time at most")),
                 "QUEUE_FULL"};
}

void OrcaService::Remove(const std::shared_ptr<LoadStream>& stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

void OrcaService::EndAll() {
  std::set<std::shared_ptr<LoadStream>> streams;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    streams = streams_;
  }
  for (const std::shared_ptr<LoadStream>& stream : streams) stream->End(Leaving());
}

}  // namespace hydrant
