// Parses tokens into a tree, by the grammar of Jinja 3.1. Unknown tags, and unknown filters, tests
// and functions outside branches, are errors here: a bad template must fail when the model is
// loaded, not during a conversation. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_PARSER_H_
#define HYDRANT_ENGINE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/limits.h"

namespace hydrant::jinja {

// InvalidArgument "line 3: MESSAGE"; Unimplemented for Jinja features that are missing here.
absl::StatusOr<Body> ParseTemplate(std::string_view source, const Limits& limits);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_PARSER_H_
