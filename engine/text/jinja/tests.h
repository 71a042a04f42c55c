// Jinja's tests by name: `value is name(arguments)`. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_TESTS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_TESTS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/runtime.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

using Test = absl::StatusOr<bool> (*)(Runtime* runtime, const Value& value,
                                      const Arguments& arguments);

Test FindTest(std::string_view name);  // null: unknown

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_TESTS_H_
