#include "server/apis/orca_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "kernels/mutex.h"
#include "kernels/status_macros.h"
#include "server/wire/wire_message.h"

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

// One client's reports: a write is in flight, or an alarm is set, or the stream has ended.
class LoadStream final : public LongLivedStream {
 public:
  LoadStream(LongLivedStreams* owner, Service* service)
      : LongLivedStream(owner), service_(service) {}

  void Begin(milliseconds interval) {
    const MutexLock lock(mutex());
    interval_ = interval;
    Next();
  }

 private:
  void OnWritten() override HYDRANT_REQUIRES(mutex()) {
    alarm_.emplace();
    alarm_->Set(std::chrono::system_clock::now() + interval_, [weak = weak_from_this()](bool) {
      const auto stream = std::static_pointer_cast<LoadStream>(weak.lock());
      if (stream == nullptr) return;
      const MutexLock lock(stream->mutex());
      stream->Next();
    });
  }
  void Next() HYDRANT_REQUIRES(mutex()) {
    if (CanWrite()) Write(ToWire(service_->LoadReport()));
  }

  Service* const service_;

  milliseconds interval_ HYDRANT_GUARDED_BY(mutex()){0};
  std::optional<grpc::Alarm> alarm_ HYDRANT_GUARDED_BY(mutex());  // for the next report
};

}  // namespace

OrcaService::OrcaService(hydrant::Service* service)
    : service_(service), streams_(kMaxStreams, "load reports") {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* OrcaService::StreamCoreMetrics(
    grpc::CallbackServerContext*, const grpc::ByteBuffer* bytes) {
  const auto stream = std::make_shared<LoadStream>(&streams_, service_);
  std::optional<Refusal> refusal = streams_.Add(stream);
  const absl::StatusOr<milliseconds> interval = ReadInterval(*bytes);
  if (!refusal.has_value() && !interval.ok()) refusal = Refusal{interval.status(), "INVALID"};
  if (refusal.has_value()) {
    stream->End(ToGrpcStatus(*refusal));
  } else {
    stream->Begin(*interval);
  }
  return stream.get();
}

}  // namespace hydrant
