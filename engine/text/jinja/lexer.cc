#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/string_literal.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

// Longer operators first.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameStart(char32_t c) { return c == '_' || IsAlpha(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(WithPlainNewlines(source)), rest_(text_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (!rest_.empty()) HYDRANT_RETURN_IF_ERROR(ReadDataAndTag());
    Push(Token::Kind::kEnd, "end of template");
    return std::move(tokens_);
  }

 private:
  // Every line ends in \n, and the last line end is dropped.
  static std::string WithPlainNewlines(std::string_view source) {
    std::string text =
        absl::StrReplaceAll({source.data(), source.size()}, {{"\r\n", "\n"}, {"\r", "\n"}});
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  void Push(Token::Kind kind, std::string_view text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::string(text)});
  }

  void Take(size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    if (!taken.empty()) at_line_start_ = taken.back() == '\n';
    rest_.remove_prefix(taken.size());
  }
  void TakeSpace() { Take(rest_.size() - StripLeft(rest_).size()); }

  absl::Status Fail(std::string_view message) const { return ErrorAtLine(line_, message); }

  static size_t FindTag(std::string_view text) {
    for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
      if (at + 1 < text.size() &&
          std::string_view("%{#").find(text[at + 1]) != std::string_view::npos)
        return at;
    }
    return std::string_view::npos;
  }

  // `data` without the part trimmed by the next tag: white space before "-", or, before a statement
  // or comment that begins its line, the indentation.
  std::string_view TrimBeforeTag(std::string_view data, char kind, char sign) const {
    if (sign == '-') return StripRight(data);
    if (sign == '+' || kind == '{') return data;
    const size_t line = data.rfind('\n') + 1;  // npos + 1 is 0
    if (line == 0 && !at_line_start_) return data;
    return StripLeft(data.substr(line)).empty() ? data.substr(0, line) : data;
  }

  absl::Status ReadDataAndTag() {
    const size_t tag = FindTag(rest_);
    if (tag == std::string_view::npos) {
      Push(Token::Kind::kData, rest_);
      Take(rest_.size());
      return absl::OkStatus();
    }
    const char kind = rest_[tag + 1];
    const char sign = tag + 2 < rest_.size() ? rest_[tag + 2] : '\0';
    const std::string_view data = TrimBeforeTag(rest_.substr(0, tag), kind, sign);
    if (!data.empty()) Push(Token::Kind::kData, data);
    Take(tag);
    const size_t length = sign == '-' || sign == '+' ? 3 : 2;
    if (kind == '%' && IsRaw(rest_.substr(length))) return ReadRaw();
    if (kind == '{') Push(Token::Kind::kExpressionBegin, "{{");
    if (kind == '%') Push(Token::Kind::kStatementBegin, "{%");
    Take(length);
    if (kind == '#') return ReadComment();
    return kind == '{' ? ReadTag(Token::Kind::kExpressionEnd, "}}")
                       : ReadTag(Token::Kind::kStatementEnd, "%}");
  }

  // Whether a statement is "raw %}".
  static bool IsRaw(std::string_view inside) { return RawTagLength(inside, "raw") > 0; }

  // The length of "raw %}" or "endraw %}" with its spaces and sign; 0: another statement.
  static size_t RawTagLength(std::string_view inside, std::string_view name) {
    std::string_view text = StripLeft(inside);
    if (!text.starts_with(name)) return 0;
    text = StripLeft(text.substr(name.size()));
    if (text.starts_with("-") || (name == "endraw" && text.starts_with("+"))) text.remove_prefix(1);
    return text.starts_with("%}") ? inside.size() - text.size() + 2 : 0;
  }

  absl::Status ReadRaw() {
    const size_t head = rest_.size() > 2 && (rest_[2] == '-' || rest_[2] == '+') ? 3 : 2;
    const size_t length = head + RawTagLength(rest_.substr(head), "raw");
    const bool strip = rest_[length - 3] == '-';
    Take(length);
    if (strip) TakeSpace();
    for (size_t at = rest_.find("{%"); at != std::string_view::npos;
         at = rest_.find("{%", at + 1)) {
      const char sign = at + 2 < rest_.size() ? rest_[at + 2] : '\0';
      const size_t begin = at + (sign == '-' || sign == '+' ? 3 : 2);
      const size_t end = begin > rest_.size() ? 0 : RawTagLength(rest_.substr(begin), "endraw");
      if (end == 0) continue;
      const std::string_view data = TrimBeforeTag(rest_.substr(0, at), '%', sign);
      if (!data.empty()) Push(Token::Kind::kData, data);
      const char end_sign = rest_[begin + end - 3];
      Take(begin + end - 2);
      TakeTagEnd(end_sign, 2);
      return absl::OkStatus();
    }
    return Fail("Missing end of raw directive");
  }

  // Skips the end of a statement or comment, and the trimmed text: white space after "-", else a
  // newline, unless "+".
  void TakeTagEnd(char sign, size_t length) {
    Take(length);
    if (sign == '-') {
      TakeSpace();
    } else if (sign != '+' && rest_.starts_with("\n")) {
      Take(1);
    }
  }

  absl::Status ReadComment() {
    const size_t end = rest_.find("#}");
    if (end == std::string_view::npos) return Fail("Missing end of comment tag");
    const char sign = end > 0 ? rest_[end - 1] : '\0';
    Take(end);
    TakeTagEnd(sign, 2);
    return absl::OkStatus();
  }

  // Consumes the tag's end, if it is here.
  bool TakeEnd(Token::Kind end_kind, std::string_view end) {
    const bool signed_end = !rest_.empty() &&
                            (rest_[0] == '-' || (rest_[0] == '+' && end == "%}")) &&
                            rest_.substr(1).starts_with(end);
    if (!signed_end && !rest_.starts_with(end)) return false;
    Push(end_kind, end);
    const char sign = signed_end ? rest_[0] : '\0';
    if (end == "%}") {
      TakeTagEnd(sign, signed_end ? 3 : 2);
    } else {
      Take(signed_end ? 3 : 2);
      if (signed_end) TakeSpace();
    }
    return true;
  }

  absl::Status ReadTag(Token::Kind end_kind, std::string_view end) {
    std::string open;  // brackets not closed yet
    while (true) {
      if (open.empty() && TakeEnd(end_kind, end)) return absl::OkStatus();
      TakeSpace();
      if (rest_.empty())
        return Fail(
            absl::StrCat("the template ends within a tag; ", std::string(end), " is missing"));
      if (open.empty() && TakeEnd(end_kind, end)) return absl::OkStatus();
      HYDRANT_RETURN_IF_ERROR(ReadToken(&open));
    }
  }

  absl::Status ReadToken(std::string* open) {
    if (IsAsciiDigit(rest_[0])) return ReadNumber();
    if (rest_[0] == '\'' || rest_[0] == '"') return ReadString();
    if (IsWord(ReadUtf8(rest_).code_point)) return ReadName();
    for (const std::string_view symbol : kOperators) {
      if (!rest_.starts_with(symbol)) continue;
      HYDRANT_RETURN_IF_ERROR(Balance(symbol, open));
      Push(Token::Kind::kOperator, symbol);
      Take(symbol.size());
      return absl::OkStatus();
    }
    return Fail(absl::StrCat(
        "unexpected character '",
        std::string(rest_.substr(0, static_cast<size_t>(ReadUtf8(rest_).length))), "'"));
  }

  absl::Status Balance(std::string_view symbol, std::string* open) const {
    const size_t opening = std::string_view("([{").find(symbol);
    if (opening != std::string_view::npos) *open += std::string_view(")]}")[opening];
    if (symbol != ")" && symbol != "]" && symbol != "}") return absl::OkStatus();
    if (open->empty()) return Fail(absl::StrCat("unexpected '", std::string(symbol), "'"));
    if (open->back() != symbol[0]) {
      return Fail(absl::StrCat("unexpected '", std::string(symbol), "', expected '",
                               open->substr(open->size() - 1), "'"));
    }
    open->pop_back();
    return absl::OkStatus();
  }

  absl::Status ReadName() {
    size_t length = 0;
    while (length < rest_.size()) {
      const Utf8Front front = ReadUtf8(rest_.substr(length));
      if (!IsWord(front.code_point)) break;
      length += static_cast<size_t>(front.length);
    }
    if (!IsNameStart(ReadUtf8(rest_).code_point)) return Fail("Invalid character in identifier");
    Push(Token::Kind::kName, rest_.substr(0, length));
    Take(length);
    return absl::OkStatus();
  }

  absl::Status ReadString() {
    const char quote = rest_[0];
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) return Fail("a string has no end");
    const absl::StatusOr<std::string> value = UnescapeString(rest_.substr(1, end - 1));
    if (!value.ok()) return Fail(std::string(value.status().message()));
    Push(Token::Kind::kString, *value);
    Take(end + 1);
    return absl::OkStatus();
  }

  // Length of digits with single underscores between them; 0: none.
  size_t DigitsAt(size_t at, int base) const {
    size_t length = 0;
    const auto is_digit = [&](size_t i) {
      if (i >= rest_.size()) return false;
      const auto c = static_cast<unsigned char>(rest_[i]);
      const int digit = std::isdigit(c)    ? c - '0'
                        : std::isxdigit(c) ? std::tolower(c) - 'a' + 10
                                           : 99;
      return digit < base;
    };
    while (is_digit(at + length) || (length > 0 && at + length < rest_.size() &&
                                     rest_[at + length] == '_' && is_digit(at + length + 1)))
      ++length;
    return length;
  }

  // Length of a float literal at the front; 0: an integer.
  size_t FloatLength() const {
    const size_t whole = DigitsAt(0, 10);
    size_t length = whole;
    if (length < rest_.size() && rest_[length] == '.') {
      const size_t fraction = DigitsAt(length + 1, 10);
      if (fraction > 0) length += 1 + fraction;
    }
    if (length < rest_.size() && (rest_[length] == 'e' || rest_[length] == 'E')) {
      size_t digits = length + 1;
      if (digits < rest_.size() && (rest_[digits] == '+' || rest_[digits] == '-')) ++digits;
      if (const size_t exponent = DigitsAt(digits, 10); exponent > 0) length = digits + exponent;
    }
    return length > whole ? length : 0;
  }

  absl::Status ReadNumber() {
    const bool after_dot = !tokens_.empty() && tokens_.back().IsOperator(".");
    if (const size_t length = after_dot ? 0 : FloatLength(); length > 0) {
      const std::string digits =
          absl::StrReplaceAll(std::string(rest_.substr(0, length)), {{"_", ""}});
      Push(Token::Kind::kFloat, digits);
      std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().number);
      Take(length);
      return absl::OkStatus();
    }
    return ReadInteger();
  }

  absl::Status ReadInteger() {
    int base = 10;
    size_t head = 0;
    if (rest_.size() > 1 && rest_[0] == '0') {
      const int letter = std::tolower(static_cast<unsigned char>(rest_[1]));
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base != 10) head = 2;
      if (head == 2 && rest_.size() > 2 && rest_[2] == '_') head = 3;
    }
    size_t length = DigitsAt(head, base);
    if (length == 0) {  // "0x" alone is 0 followed by a name
      base = 10;
      head = 0;
      length = 1;
    }
    if (base == 10 && rest_[0] == '0') {  // "012" is 0 followed by 12
      const std::string_view digits = rest_.substr(0, length);
      length = std::min(digits.find_first_not_of("0_"), digits.size());
    }
    const std::string digits =
        absl::StrReplaceAll(std::string(rest_.substr(head, length)), {{"_", ""}});
    Push(Token::Kind::kInteger, digits);
    const auto read =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().integer, base);
    if (read.ec != std::errc())
      return Fail(absl::StrCat("the integer ", digits, " is beyond 64 bits"));
    Take(head + length);
    return absl::OkStatus();
  }

  const std::string text_;
  std::string_view rest_;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status ErrorAtLine(int line, std::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", std::string(message)));
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace hydrant::jinja
