// The words of a grammar in GBNF. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_GBNF_LEXER_H_
#define HYDRANT_ENGINE_GRAMMAR_GBNF_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/code_point_set.h"
#include "engine/grammar/ebnf_text.h"

namespace hydrant {

struct GbnfToken {
  enum class Kind { kName, kDefines, kText, kClass, kRepetition, kOpen, kClose, kOr, kEnd };
  Kind kind;
  int line = 1, column = 1;  // of its first character, counted in characters
  bool begins_line = false;  // nothing but white space is before it
  std::string text = {};     // a name, or a text without its quotes, in UTF-8
  CodePointSet set = {};     // of a class; of '.' all
  Repetition repetition = {};
};

// Ends with kEnd. InvalidArgument names line and column.
absl::StatusOr<std::vector<GbnfToken>> LexGbnf(std::string_view text);

// What is wrong, and where.
absl::Status GbnfError(int line, int column, const std::string& what);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_GBNF_LEXER_H_
