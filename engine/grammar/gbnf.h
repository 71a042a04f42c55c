// Grammars in GBNF, as llama.cpp reads them. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_GBNF_H_
#define HYDRANT_ENGINE_GRAMMAR_GBNF_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// The same in the grammar library's EBNF, where the rule `root` keeps its name and the others get
// new ones: some names mean something there. InvalidArgument names line and column. REQUIRES: UTF-8
absl::StatusOr<std::string> EbnfOfGbnf(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_GBNF_H_
