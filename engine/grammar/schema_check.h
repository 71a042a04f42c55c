// JSON schemas before they are compiled: what XGrammar would leave out, or refuse without saying
// where, is refused here, by place and name. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_SCHEMA_CHECK_H_
#define HYDRANT_ENGINE_GRAMMAR_SCHEMA_CHECK_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

struct CheckedSchema {
  std::string text;  // as XGrammar is to read it
  // Where each expression of it comes from: "'/properties/a' 'pattern'".
  std::map<std::string, std::string> places;
};

// Objects and arrays that name no members may have any, a schema without "type" has the one that its
// keywords are about, references have plain names, and patterns and formats are expressions of the
// whole string. InvalidArgument names the place as a JSON pointer. Words that no version of JSON
// Schema gives a meaning are annotations, and ignored.
absl::StatusOr<CheckedSchema> CheckSchema(std::string_view text, size_t most_pattern_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_SCHEMA_CHECK_H_
