// The log as one JSON object a line: time (UTC, RFC 3339), level and message, and the fields of an
// ended request. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_JSON_LOG_H_
#define HYDRANT_SERVER_OBSERVE_JSON_LOG_H_

#include <spdlog/formatter.h>

#include <memory>
#include <string>

#include "server/observe/request_log.h"

namespace hydrant {

// Messages of a registered logger with this name are JSON objects; their fields are merged into
// the line.
inline constexpr char kFieldsLogger[] = "fields";

std::string RequestFields(const RequestRecord& record);

std::unique_ptr<spdlog::formatter> NewJsonFormatter();

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_JSON_LOG_H_
