// Checks JSON schemas before XGrammar compiles them. If XGrammar would ignore a keyword, or refuse
// it without naming its place, the check refuses it by place and name. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_CHECK_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_CHECK_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

struct CheckedSchema {
  std::string text;  // the schema rewritten for XGrammar
  // Maps each pattern in `text` to its place in the given schema: "'/properties/a' 'pattern'".
  std::map<std::string, std::string> places;
};

// Checks and rewrites a schema. An object or array schema that names no members admits any members;
// a schema without "type" gets the type of its keywords; references get plain names; patterns and
// formats become expressions that match the whole string. Keywords that no version of JSON Schema
// defines are annotations and have no effect. InvalidArgument names the place as a JSON pointer.
absl::StatusOr<CheckedSchema> CheckSchema(std::string_view text, size_t most_pattern_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_CHECK_H_
