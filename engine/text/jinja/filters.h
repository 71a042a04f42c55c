// Jinja's filters by name, with transformers' tojson. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_FILTERS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_FILTERS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/runtime.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

using Filter = absl::StatusOr<Value> (*)(Runtime* runtime, const Value& input,
                                         const Arguments& arguments);

// Null if it is unknown, or a Jinja filter without use in chat templates (HTML's, random).
Filter FindFilter(std::string_view name);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_FILTERS_H_
