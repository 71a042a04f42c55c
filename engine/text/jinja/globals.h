// The functions available to every template: Jinja's range, dict, namespace, cycler and joiner, and
// transformers' raise_exception and strftime_now. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_GLOBALS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_GLOBALS_H_

#include <string_view>

#include "absl/status/status.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

bool IsGlobal(std::string_view name);
Value FindGlobal(std::string_view name);  // undefined if unknown

// As in transformers, names with a leading underscore are refused in namespaces.
absl::Status CheckNamespaceName(std::string_view name);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_GLOBALS_H_
