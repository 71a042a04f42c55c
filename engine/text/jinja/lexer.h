// Tokenizes a template with Jinja's whitespace control in transformers' settings: trim_blocks and
// lstrip_blocks are on, one newline at the end of the source is dropped. Comments are dropped,
// `raw` blocks become data.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_LEXER_H_
#define HYDRANT_ENGINE_TEXT_JINJA_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant::jinja {

struct Token {
  enum class Kind {
    kData,
    kStatementBegin,   // {%
    kStatementEnd,     // %}
    kExpressionBegin,  // {{
    kExpressionEnd,    // }}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };

  Kind kind;
  int line;
  std::string text;  // of data, a name, an operator; a string's value
  int64_t integer = 0;
  double number = 0;  // of a float

  bool Is(Kind other_kind, std::string_view other_text) const {
    return kind == other_kind && text == other_text;
  }
  bool IsName(std::string_view name) const { return Is(Kind::kName, name); }
  bool IsOperator(std::string_view symbol) const { return Is(Kind::kOperator, symbol); }
};

// The last token is kEnd. InvalidArgument "line 3: ...".
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// "line 3: message".
absl::Status ErrorAtLine(int line, std::string_view message);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_LEXER_H_
