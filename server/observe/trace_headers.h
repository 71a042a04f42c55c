// Metadata sent to the collector with each batch of spans, in the format of OpenTelemetry's
// environment variables. The values are secrets: errors never repeat the text.
#ifndef HYDRANT_SERVER_OBSERVE_TRACE_HEADERS_H_
#define HYDRANT_SERVER_OBSERVE_TRACE_HEADERS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hydrant {

using TraceHeaders = std::map<std::string, std::string>;

// "key=value,key=value", percent-encoded. Keys become lower case; the last of two equal keys wins.
// InvalidArgument names an entry that gRPC cannot send by its position.
absl::StatusOr<TraceHeaders> ParseTraceHeaders(absl::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACE_HEADERS_H_
