#include "server/wire/status_details.h"

#include <algorithm>

#include "engine/text/unicode/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace hydrant {
namespace {

constexpr char kErrorDomain[] = "hydrant";
// A trailer must fit the peer's metadata limit (8 KiB by default); longer messages are cut well
// below it.
constexpr size_t kMaxMessageBytes = 1500;

bool IsFieldCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '[' ||
         c == ']';
}

}  // namespace

std::string_view FieldOf(std::string_view message) {
  const size_t end = message.find(": ");
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view field = message.substr(0, end);
  return std::all_of(field.begin(), field.end(), IsFieldCharacter) ? field : std::string_view();
}

namespace {

// The reason of an error found before the scheduler saw the request.
std::string ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return "UNKNOWN_MODEL";
    case absl::StatusCode::kFailedPrecondition:
      return "NO_CHAT_TEMPLATE";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID";
    case absl::StatusCode::kUnimplemented:
      return FieldOf(std::string(status.message())) == "structured_output" ? "NO_GRAMMARS"
                                                                           : "NO_CONTEXTS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    case absl::StatusCode::kPermissionDenied:
      return "OTHER_TENANT";
    default:
      return "INTERNAL";
  }
}

}  // namespace

Refusal RefusalOf(const absl::Status& status) { return {status, ReasonOf(status)}; }

std::string ToValidUtf8(std::string_view text) {
  std::string pending(text);
  std::string valid;
  DrainUtf8(/*at_end=*/true, &pending, &valid);
  return valid;
}

std::string BoundedMessage(std::string_view message) {
  if (message.size() <= kMaxMessageBytes) return ToValidUtf8(message);
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return ToValidUtf8(message.substr(0, end)) + " ...";
}

grpc::Status ToGrpcStatus(const Refusal& refusal) {
  if (refusal.status.ok()) return grpc::Status::OK;
  const std::string message =
      BoundedMessage({refusal.status.message().data(), refusal.status.message().size()});

  google::rpc::Status rich;
  rich.set_code(static_cast<int>(refusal.status.code()));
  rich.set_message(message);
  if (!refusal.reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(refusal.reason);
    info.set_domain(kErrorDomain);
    rich.add_details()->PackFrom(info);
  }
  const std::string_view field = FieldOf(message);
  if (!field.empty() && absl::IsInvalidArgument(refusal.status)) {
    google::rpc::BadRequest bad;
    auto* violation = bad.add_field_violations();
    violation->set_field(std::string(field));
    violation->set_description(message.substr(field.size() + 2));
    rich.add_details()->PackFrom(bad);
  }
  if (refusal.retry_after_us > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(refusal.retry_after_us / 1'000'000);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(refusal.retry_after_us % 1'000'000 * 1000));
    rich.add_details()->PackFrom(retry);
  }
  return {static_cast<grpc::StatusCode>(refusal.status.code()), message, rich.SerializeAsString()};
}

}  // namespace hydrant
