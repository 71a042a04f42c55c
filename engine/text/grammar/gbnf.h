// Converts grammars in GBNF, the format of llama.cpp. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_GBNF_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_GBNF_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// The same grammar in the grammar library's EBNF. The rule `root` keeps its name; all other rules
// are renamed, because some names have a meaning in the library's EBNF. InvalidArgument names line
// and column. REQUIRES: valid UTF-8.
absl::StatusOr<std::string> EbnfOfGbnf(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_GBNF_H_
