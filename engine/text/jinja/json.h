// JSON to values and back, as in Python's json module. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_JSON_H_
#define HYDRANT_ENGINE_TEXT_JINJA_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

// InvalidArgument with the byte offset if `text` is not JSON, nests deeper than
// `limits.max_nesting`, or has an integer beyond 64 bits. The last value of a repeated key counts.
absl::StatusOr<Value> ParseJson(std::string_view text, const Limits& limits);

// json.dumps().
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<Value> WriteJson(Budget* budget, const Value& value, const JsonStyle& style);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_JSON_H_
