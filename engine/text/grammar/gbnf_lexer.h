// The tokens of a grammar in GBNF. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_GBNF_LEXER_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_GBNF_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/grammar/code_point_set.h"
#include "engine/text/grammar/ebnf_text.h"

namespace hydrant {

struct GbnfToken {
  enum class Kind { kName, kDefines, kText, kClass, kRepetition, kOpen, kClose, kOr, kEnd };
  Kind kind;
  int line = 1, column = 1;  // of the first character; columns count characters
  bool begins_line = false;  // only white space precedes it in its line
  std::string text = {};     // a name, or a quoted text, unescaped, in UTF-8
  CodePointSet set = {};     // of a class; for '.' all code points
  Repetition repetition = {};
};

// The last token is kEnd. InvalidArgument names line and column.
absl::StatusOr<std::vector<GbnfToken>> LexGbnf(std::string_view text);

// An InvalidArgument error with its place: "line L, column C: what".
absl::Status GbnfError(int line, int column, const std::string& what);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_GBNF_LEXER_H_
