// JSON schemas before they are compiled: what XGrammar would leave out without a word is refused
// here, by name. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_SCHEMA_CHECK_H_
#define HYDRANT_ENGINE_GRAMMAR_SCHEMA_CHECK_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// The schema as XGrammar is to read it: objects and arrays that name no members may have any, and a
// schema without "type" has the one that its keywords are about. InvalidArgument names the place as
// a JSON pointer. Words that no version of JSON Schema gives a meaning are annotations, and
// ignored.
absl::StatusOr<std::string> CheckedSchema(std::string_view text, size_t most_pattern_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_SCHEMA_CHECK_H_
