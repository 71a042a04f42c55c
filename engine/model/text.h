// Text for error messages about model files. Names and values come from the file, so they are
// escaped and truncated: a message stays one line whatever the file holds. Stateless; any thread
// may call.
#ifndef HYDRANT_ENGINE_MODEL_TEXT_H_
#define HYDRANT_ENGINE_MODEL_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace hydrant {

// 'text' in quotes, control and non-ASCII bytes as \xNN, at most about 100 characters.
std::string Quoted(std::string_view text);

// "[2, 3]".
std::string ShapeText(const std::vector<int64_t>& shape);

// The same code with "context: " in front of the message; an OK status stays OK.
absl::Status WithContext(const absl::Status& status, std::string_view context);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_TEXT_H_
