#include "engine/text/jinja/string_literal.h"

#include "absl/strings/str_cat.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 16;
}

// Parses up to `most` digits from the front of `*rest`.
char32_t TakeNumber(int base, size_t most, std::string_view* rest, size_t* taken) {
  char32_t number = 0;
  for (*taken = 0; *taken < most && !rest->empty() && DigitOf((*rest)[0]) < base; ++*taken) {
    number = number * static_cast<char32_t>(base) + static_cast<char32_t>(DigitOf((*rest)[0]));
    rest->remove_prefix(1);
  }
  return number;
}

absl::Status AppendHex(char kind, std::string_view* rest, std::string* out) {
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
  size_t taken = 0;
  const char32_t c = TakeNumber(16, digits, rest, &taken);
  const bool scalar = c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF);
  if (taken < digits || !scalar) {
    return absl::InvalidArgumentError(
        absl::StrCat("a string has a bad \\", std::string(1, kind), " escape"));
  }
  AppendUtf8(c, out);
  return absl::OkStatus();
}

// The character of the escape \c; 0: none.
char SimpleEscape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return 0;
  }
}

// `*rest` begins after the backslash.
absl::Status AppendEscape(std::string_view* rest, std::string* out) {
  const char c = (*rest)[0];
  if (c >= '0' && c <= '7') {
    size_t taken = 0;
    AppendUtf8(TakeNumber(8, 3, rest, &taken), out);
    return absl::OkStatus();
  }
  rest->remove_prefix(1);
  if (c == 'x' || c == 'u' || c == 'U') return AppendHex(c, rest, out);
  if (c == 'N')
    return absl::InvalidArgumentError("a string has a \\N escape, which is not supported");
  if (c == '\n') return absl::OkStatus();  // line continuation
  if (const char simple = SimpleEscape(c); simple != 0) {
    *out += simple;
  } else {
    *out += '\\';
    *out += c;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> UnescapeString(std::string_view body) {
  std::string out;
  while (!body.empty()) {
    const size_t plain = std::min(body.find('\\'), body.size());
    out += body.substr(0, plain);
    body.remove_prefix(plain);
    if (body.empty()) break;
    body.remove_prefix(1);
    if (body.empty()) return absl::InvalidArgumentError("a string ends in a backslash");
    HYDRANT_RETURN_IF_ERROR(AppendEscape(&body, &out));
  }
  return out;
}

}  // namespace hydrant::jinja
