// What goes to the collector with each batch of spans, as OpenTelemetry's environment writes it.
// The values are secrets: no error repeats any of the text.
#ifndef HYDRANT_SERVER_OBSERVE_TRACE_HEADERS_H_
#define HYDRANT_SERVER_OBSERVE_TRACE_HEADERS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hydrant {

using TraceHeaders = std::map<std::string, std::string>;

// "key=value,key=value", percent-encoded. Keys become lower case; of one given twice the last
// counts. InvalidArgument says which entry gRPC cannot send, by its place.
absl::StatusOr<TraceHeaders> ParseTraceHeaders(absl::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACE_HEADERS_H_
