// str.format(), and functions shared by string methods and filters. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_STRING_FORMAT_H_
#define HYDRANT_ENGINE_TEXT_JINJA_STRING_FORMAT_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/runtime.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

// `self` is the format: {} {0} {name} {name.attribute} {name[item]}, with !r or !s, and after a
// colon fill, alignment, sign, width, comma, precision and type (s d f e g x o b %).
absl::StatusOr<Value> FormatString(Runtime* runtime, const Value& self, const Arguments& arguments);

// str.replace(); a negative count replaces all.
absl::StatusOr<Value> ReplaceText(Runtime* runtime, const Value& self, std::string_view before,
                                  std::string_view after, int64_t count);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_STRING_FORMAT_H_
