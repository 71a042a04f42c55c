#include "engine/text/grammar/gbnf_lexer.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Kind = GbnfToken::Kind;

bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }
bool IsNameCharacter(char32_t c) {
  return IsDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' || c == '_';
}

// The meaning of a character after a backslash, except x, u and U: the escapes that llama.cpp or
// the grammar library reads. nullopt: no such escape.
std::optional<char32_t> SimpleEscape(char32_t c) {
  constexpr std::u32string_view kThemselves = U"\\\"[]'?/^$.*+(){}|-";
  if (kThemselves.find(c) != kThemselves.npos) return c;
  constexpr std::pair<char32_t, char32_t> kNamed[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'},
                                                      {'f', '\f'}, {'v', '\v'}, {'a', '\a'},
                                                      {'b', '\b'}, {'e', 0x1B}, {'0', 0}};
  for (const auto& [name, meaning] : kNamed) {
    if (name == c) return meaning;
  }
  return std::nullopt;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) {
    while (!text.empty()) {
      const Utf8Front front = ReadUtf8(text);
      text_.push_back(front.code_point);
      text.remove_prefix(front.length);
    }
  }

  absl::StatusOr<std::vector<GbnfToken>> Lex() {
    std::vector<GbnfToken> tokens;
    do {
      SkipSpace();
      tokens.push_back({.kind = Kind::kEnd,
                        .line = line_,
                        .column = Column(),
                        .begins_line = std::exchange(begins_line_, false)});
      if (!AtEnd()) HYDRANT_RETURN_IF_ERROR(Read(&tokens.back()));
    } while (tokens.back().kind != Kind::kEnd);
    return tokens;
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0;
  }
  int Column() const { return static_cast<int>(at_ - line_begin_) + 1; }
  absl::Status Error(const std::string& what) const { return GbnfError(line_, Column(), what); }

  char32_t Take() {
    const char32_t c = text_[at_++];
    if (c == '\n') {
      ++line_;
      line_begin_ = at_;
      begins_line_ = true;
    }
    return c;
  }

  void SkipSpace() {
    while (!AtEnd()) {
      if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n') Take();
      } else if (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') {
        Take();
      } else {
        return;
      }
    }
  }

  absl::Status Read(GbnfToken* token) {
    const char32_t c = Peek();
    if (IsNameCharacter(c)) return ReadName(token);
    if (c == '"') return ReadText(token);
    if (c == '[') return ReadClass(token);
    if (c == '{') return ReadRepetition(token);
    if (c == ':' && Peek(1) == ':' && Peek(2) == '=') {
      at_ += 2;
      return Single(Kind::kDefines, token);
    }
    if (c == '(') return Single(Kind::kOpen, token);
    if (c == ')') return Single(Kind::kClose, token);
    if (c == '|') return Single(Kind::kOr, token);
    if (c == '.') token->set = {{0, kLastCodePoint}};
    if (c == '.') return Single(Kind::kClass, token);
    if (c == '*') token->repetition = {0, -1};
    if (c == '+') token->repetition = {1, -1};
    if (c == '?') token->repetition = {0, 1};
    if (c == '*' || c == '+' || c == '?') return Single(Kind::kRepetition, token);
    if (c == '<' || c == '!') {
      return Error("tokens, as in <name>, are not supported; write what their text is");
    }
    std::string shown;
    AppendUtf8(c, &shown);
    return Error(absl::StrCat("'", shown, "' begins nothing"));
  }

  absl::Status Single(Kind kind, GbnfToken* token) {
    Take();
    token->kind = kind;
    return absl::OkStatus();
  }

  absl::Status ReadName(GbnfToken* token) {
    token->kind = Kind::kName;
    while (IsNameCharacter(Peek())) AppendUtf8(Take(), &token->text);
    return absl::OkStatus();
  }

  absl::Status ReadText(GbnfToken* token) {
    token->kind = Kind::kText;
    Take();
    while (Peek() != '"') {
      if (AtEnd()) return GbnfError(token->line, token->column, "the text has no end: no '\"'");
      HYDRANT_ASSIGN_OR_RETURN(const char32_t c, ReadCharacter());
      AppendUtf8(c, &token->text);
    }
    Take();
    return absl::OkStatus();
  }

  absl::Status ReadClass(GbnfToken* token) {
    token->kind = Kind::kClass;
    Take();
    const bool negated = Peek() == '^';
    if (negated) Take();
    std::vector<CodePointRange> ranges;
    while (Peek() != ']') {
      if (AtEnd()) return GbnfError(token->line, token->column, "the class has no end: no ']'");
      HYDRANT_ASSIGN_OR_RETURN(const CodePointRange range, ReadRange());
      ranges.push_back(range);
    }
    Take();
    token->set = ToCodePointSet(std::move(ranges));
    if (negated) token->set = Complement(token->set);
    if (!token->set.empty()) return absl::OkStatus();
    return GbnfError(token->line, token->column, "the class has no character");
  }

  absl::StatusOr<CodePointRange> ReadRange() {
    HYDRANT_ASSIGN_OR_RETURN(const char32_t first, ReadCharacter());
    if (Peek() != '-' || Peek(1) == ']' || at_ + 1 >= text_.size()) {
      return CodePointRange{first, first};
    }
    Take();
    HYDRANT_ASSIGN_OR_RETURN(const char32_t last, ReadCharacter());
    if (last < first) return Error("the range ends before it begins");
    return CodePointRange{first, last};
  }

  // Reads one character of a text or a class.
  absl::StatusOr<char32_t> ReadCharacter() {
    if (Peek() != '\\') return Take();
    const char32_t kind = Peek(1);
    const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits > 0) return ReadHexadecimal(digits);
    const std::optional<char32_t> meaning = SimpleEscape(kind);
    if (at_ + 1 >= text_.size() || !meaning.has_value()) {
      return Error("the backslash stands before nothing that it goes with; '\\\\' is one");
    }
    at_ += 2;
    return *meaning;
  }

  absl::StatusOr<char32_t> ReadHexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const std::optional<int> digit = HexDigit(Peek(2 + i));
      if (!digit.has_value() || value > kLastCodePoint) {
        return Error(absl::StrCat("the escape is not of ", digits, " hexadecimal digits"));
      }
      value = value * 16 + *digit;
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      return Error("the escape is no character of Unicode");
    }
    at_ += 2 + digits;
    return value;
  }

  absl::Status ReadRepetition(GbnfToken* token) {
    token->kind = Kind::kRepetition;
    Take();
    HYDRANT_ASSIGN_OR_RETURN(token->repetition.least, ReadCount());
    token->repetition.most = token->repetition.least;
    SkipSpace();
    if (Peek() == ',') {
      Take();
      SkipSpace();
      token->repetition.most = -1;
      if (Peek() != '}') {
        HYDRANT_ASSIGN_OR_RETURN(token->repetition.most, ReadCount());
      }
      SkipSpace();
    }
    if (Peek() != '}') return Error("a repetition is {2}, {2,} or {2,3}");
    Take();
    const auto [least, most] = token->repetition;
    if (most < 0 || most >= least) return absl::OkStatus();
    return GbnfError(token->line, token->column, "the repetition ends before it begins");
  }

  absl::StatusOr<int32_t> ReadCount() {
    SkipSpace();
    if (!IsDigit(Peek())) return Error("a repetition is {2}, {2,} or {2,3}");
    int64_t count = 0;
    while (IsDigit(Peek())) {
      count = count * 10 + (Take() - '0');
      if (count > kMaxRepetitions)
        return Error(absl::StrCat("more than ", kMaxRepetitions, " repetitions"));
    }
    return static_cast<int32_t>(count);
  }

  std::u32string text_;
  size_t at_ = 0;
  size_t line_begin_ = 0;
  int line_ = 1;
  bool begins_line_ = true;
};

}  // namespace

absl::Status GbnfError(int line, int column, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ", column ", column, ": ", what));
}

absl::StatusOr<std::vector<GbnfToken>> LexGbnf(std::string_view text) { return Lexer(text).Lex(); }

}  // namespace hydrant
