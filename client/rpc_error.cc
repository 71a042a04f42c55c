#include "client/rpc_error.h"

#include <fmt/format.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace hydrant {

const char* CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL:
      return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::UNKNOWN:
      return "UNKNOWN";
    case grpc::StatusCode::ABORTED:
      return "ABORTED";
    case grpc::StatusCode::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::StatusCode::DATA_LOSS:
      return "DATA_LOSS";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    default:
      return "ERROR";
  }
}

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::Status rich;
  google::rpc::ErrorInfo info;
  if (!rich.ParseFromString(status.error_details())) return {};
  for (const auto& detail : rich.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return {};
}

bool WasLost(const grpc::Status& status) {
  // A proxy says INTERNAL or UNKNOWN where the replica behind it has gone.
  const grpc::StatusCode code = status.error_code();
  return (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::INTERNAL ||
          code == grpc::StatusCode::UNKNOWN) &&
         ReasonOf(status).empty();
}

namespace {

// " [QUEUE_FULL, retry in 1.5 s]"
std::string Details(const grpc::Status& status) {
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return {};
  std::string words;
  for (const auto& detail : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) words += info.reason();
    if (detail.UnpackTo(&retry)) {
      const double seconds =
          static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
      words += fmt::format("{}retry in {:.1f} s", words.empty() ? "" : ", ", seconds);
    }
  }
  return words.empty() ? words : fmt::format(" [{}]", words);
}

}  // namespace

std::string DescribeError(const grpc::Status& status, const std::string& address) {
  const std::string details = Details(status);
  // The server's own refusals carry details; without them nobody answered.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && details.empty()) {
    return fmt::format("no server at {}; start one with: hydrantd --model MODEL --listen {}",
                       address, address);
  }
  return fmt::format("{}: {}{}", CodeName(status.error_code()), status.error_message(), details);
}

int ExitCodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return 0;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
      return 2;
    case grpc::StatusCode::UNAVAILABLE:
      return 3;
    default:
      return 1;
  }
}

}  // namespace hydrant
