// A cursor over tokens, for the parsers of expressions and statements. It stays on the last token,
// kEnd. Used by one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_TOKEN_STREAM_H_
#define HYDRANT_ENGINE_TEXT_JINJA_TOKEN_STREAM_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/lexer.h"

namespace hydrant::jinja {

class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return Current().line; }
  bool AtEnd() const { return Current().kind == Token::Kind::kEnd; }

  const Token& Take() {
    const Token& token = tokens_[at_];
    at_ = std::min(at_ + 1, tokens_.size() - 1);
    return token;
  }
  bool TakeIfName(std::string_view name) {
    if (!Current().IsName(name)) return false;
    Take();
    return true;
  }
  bool TakeIfOperator(std::string_view symbol) {
    if (!Current().IsOperator(symbol)) return false;
    Take();
    return true;
  }

  absl::Status Expect(Token::Kind kind, std::string_view text) {
    if (!Current().Is(kind, text)) return Unexpected(absl::StrCat("'", std::string(text), "'"));
    Take();
    return absl::OkStatus();
  }
  absl::Status ExpectOperator(std::string_view symbol) {
    return Expect(Token::Kind::kOperator, symbol);
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Current().kind != Token::Kind::kName) return Unexpected("a name");
    return Take().text;
  }

  absl::Status Fail(std::string_view message) const { return ErrorAtLine(line(), message); }
  absl::Status Unexpected(std::string_view wanted) const {
    const std::string found =
        AtEnd() ? "the end of the template" : absl::StrCat("'", Current().text.substr(0, 40), "'");
    return Fail(absl::StrCat("expected ", std::string(wanted), ", found ", found));
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_TOKEN_STREAM_H_
