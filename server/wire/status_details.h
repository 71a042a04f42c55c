// absl::Status to gRPC status with google.rpc details: ErrorInfo (a stable reason), BadRequest
// (field and problem) and RetryInfo. The codes are the same numbers. Stateless; any thread may
// call.
#ifndef HYDRANT_SERVER_WIRE_STATUS_DETAILS_H_
#define HYDRANT_SERVER_WIRE_STATUS_DETAILS_H_

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "scheduler/request.h"

namespace hydrant {

// A refused request: the status, and a stable reason for programs (docs/guide/api.md lists them).
struct Refusal {
  absl::Status status;
  std::string reason;
  TimeUs retry_after_us = 0;  // 0: retrying does not help
};

// The refusal for an error found before the scheduler saw the request.
Refusal RefusalOf(const absl::Status& status);

// An InvalidArgument with a message "field.name: problem" also gets a BadRequest violation of
// that field.
grpc::Status ToGrpcStatus(const Refusal& refusal);

// "sampling.top_p" for "sampling.top_p: is 2 ..."; empty where the message does not begin with
// a field.
std::string_view FieldOf(std::string_view message);

// Any bytes as a UTF-8 message short enough for a trailer.
std::string BoundedMessage(std::string_view message);

// Replaces every byte that is not valid UTF-8, so that the text fits a proto string.
std::string ToValidUtf8(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_STATUS_DETAILS_H_
