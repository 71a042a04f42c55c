// The log as one JSON object a line: time (UTC, RFC 3339), level, message, and for a request that
// has ended its fields. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_JSON_LOG_H_
#define HYDRANT_SERVER_OBSERVE_JSON_LOG_H_

#include <spdlog/formatter.h>

#include <memory>
#include <string>

#include "server/observe/request_log.h"

namespace hydrant {

// Where a logger of this name is registered, its messages are JSON objects, whose fields become the
// line's.
inline constexpr char kFieldsLogger[] = "fields";

std::string RequestFields(const RequestRecord& record);

std::unique_ptr<spdlog::formatter> NewJsonFormatter();

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_JSON_LOG_H_
