#include "client/rpc_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/loopback.h"

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
  // A proxy reports INTERNAL or UNKNOWN if its replica has gone.
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

// A phrase from an error of gRPC or OpenSSL for a failed connection, and advice for the user, with
// {} for the address.
struct Cause {
  const char* sign;
  const char* advice;
};
constexpr char kHungUp[] =
    "what listens at {} hung up at once; a server with TLS wants --tls-ca FILE, and perhaps "
    "--tls-certificate and --tls-key";
constexpr Cause kCauses[] = {
    {"certificate verify failed",
     "the certificate of the server at {} is not signed by the CA of --tls-ca, or has expired; "
     "give the CA that signed it"},
    {"is not in peer certificate",
     "the certificate of the server at {} is for another name; connect by one that is in it"},
    {"wrong version number", "the server at {} does not speak TLS; leave --tls-ca out"},
    {"socket closed", kHungUp},
    {"connection reset", kHungUp},
    {"failed parsing http/2", "what listens at {} is no gRPC server; is it the port of --listen?"},
    {"dns resolution failed", "no machine is known by the name in {}; check it"},
    {"http proxy returned",
     "the proxy of grpc_proxy, https_proxy or http_proxy does not connect to {}; no_proxy names "
     "hosts that go without"},
};

// In lower case, with blanks for underscores: TLS libraries spell the same error differently.
std::string Plain(const std::string& message) {
  std::string plain = absl::AsciiStrToLower(message);
  std::replace(plain.begin(), plain.end(), '_', ' ');
  return plain;
}

bool GoesByProxy(const std::string& address) {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  return !IsOnThisMachine(address) &&
         (is_set("grpc_proxy") || is_set("https_proxy") || is_set("http_proxy"));
}

// The text for UNAVAILABLE without details: the connection failed, or it was lost.
std::string DescribeUnreachable(const std::string& message, const std::string& address) {
  const std::string plain = Plain(message);
  const bool connected = plain.find("failed to connect") == std::string::npos &&
                         plain.find("dns resolution") == std::string::npos;
  if (connected) return fmt::format("the connection to {} was lost: {}", address, message);
  for (const Cause& cause : kCauses) {
    if (plain.find(cause.sign) != std::string::npos)
      return fmt::format(fmt::runtime(cause.advice), address);
  }
  const bool nobody = plain.find("connection refused") != std::string::npos ||
                      plain.find("no such file") != std::string::npos;
  if (!nobody) return fmt::format("{} cannot be reached: {}", address, message);
  if (GoesByProxy(address)) {
    return fmt::format(
        "no server at {}, or no proxy (grpc_proxy, https_proxy, http_proxy) on the way to it; "
        "no_proxy names hosts that go without",
        address);
  }
  return fmt::format("no server at {}; start one with: hydrantd --model MODEL --listen {}", address,
                     address);
}

}  // namespace

std::string DescribeError(const grpc::Status& status, const std::string& address) {
  const std::string details = Details(status);
  // A refusal of the server has details.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && details.empty())
    return DescribeUnreachable(status.error_message(), address);
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
