#include "engine/text/jinja/number_parser.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "engine/text/jinja/code_points.h"

namespace hydrant::jinja {
namespace {

// Removes single underscores between digits; nullopt if one is elsewhere.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && absl::ascii_isxdigit(text[i - 1]) &&
                         absl::ascii_isxdigit(text[i + 1]);
    if (!between) return std::nullopt;
  }
  return out;
}

// Removes a leading sign; true: it was a minus.
bool TakeSign(std::string_view* text) {
  const bool minus = text->starts_with("-");
  if (minus || text->starts_with("+")) text->remove_prefix(1);
  return minus;
}

int BaseOfPrefix(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return 0;
  const char letter = absl::ascii_tolower(static_cast<unsigned char>(text[1]));
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
}

}  // namespace

std::optional<int64_t> ParseInt(std::string_view text, int base) {
  text = Strip(text);
  const bool minus = TakeSign(&text);
  const int prefixed = BaseOfPrefix(text);
  if (prefixed != 0 && (base == 0 || base == prefixed)) {
    text.remove_prefix(2);
    if (text.starts_with("_")) text.remove_prefix(1);
    base = prefixed;
  } else if (base == 0) {
    base = 10;
    const bool leading_zero = text.size() > 1 && text[0] == '0';
    if (leading_zero && text.find_first_not_of("0_") != std::string_view::npos) return std::nullopt;
  }
  if (base < 2 || base > 36) return std::nullopt;
  const std::optional<std::string> digits = WithoutUnderscores(text);
  if (!digits.has_value() || digits->empty() || (*digits)[0] == '-') return std::nullopt;
  const std::string signed_digits = (minus ? "-" : "") + *digits;
  int64_t number = 0;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto read = std::from_chars(signed_digits.data(), end, number, base);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return number;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = Strip(text);
  const bool minus = TakeSign(&text);
  const std::string lower = absl::AsciiStrToLower({text.data(), text.size()});
  double number = 0;
  if (lower == "inf" || lower == "infinity") {
    number = std::numeric_limits<double>::infinity();
  } else if (lower == "nan") {
    number = std::numeric_limits<double>::quiet_NaN();
  } else {
    const std::optional<std::string> digits = WithoutUnderscores(lower);
    if (!digits.has_value() || digits->empty() ||
        !(absl::ascii_isdigit((*digits)[0]) || (*digits)[0] == '.'))
      return std::nullopt;
    char* end = nullptr;
    number = std::strtod(digits->c_str(), &end);  // infinite or 0 outside a double's range
    const bool hexadecimal = digits->find('x') != std::string::npos;
    if (*end != '\0' || hexadecimal) return std::nullopt;
  }
  return minus ? -number : number;
}

}  // namespace hydrant::jinja
