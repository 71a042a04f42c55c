// Python's str() and repr() of values. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_PYTHON_TEXT_H_
#define HYDRANT_ENGINE_TEXT_JINJA_PYTHON_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

// The shortest digits that read back as `value`: "1.0", "1e+16", "nan".
std::string FloatRepr(double value);
// In quotes, with unprintable characters escaped.
std::string QuotedRepr(std::string_view text);

absl::StatusOr<std::string> ToText(Budget* budget, const Value& value);  // str()
absl::StatusOr<std::string> Repr(Budget* budget, const Value& value);
// str() as a value; a string stays the same, markup included.
absl::StatusOr<Value> ToString(Budget* budget, const Value& value);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_PYTHON_TEXT_H_
