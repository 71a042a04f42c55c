// The value of a string literal: Python's escapes; unknown ones stay unchanged. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_STRING_LITERAL_H_
#define HYDRANT_ENGINE_TEXT_JINJA_STRING_LITERAL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant::jinja {

// `body`: the text between the quotes.
absl::StatusOr<std::string> UnescapeString(std::string_view body);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_STRING_LITERAL_H_
