#include "engine/text/jinja/percent_format.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

constexpr int kMaxPrecision = 100;

struct Conversion {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  int64_t width = 0;
  int precision = -1;
  char type = 0;
};

// Walks over a format and its values.
class PercentFormatter {
 public:
  PercentFormatter(Budget* budget, std::string_view format, const Value& values)
      : budget_(budget), rest_(format), values_(values), out_(budget) {}

  absl::StatusOr<Value> Run() {
    while (!rest_.empty()) {
      const size_t percent = std::min(rest_.find('%'), rest_.size());
      out_.Append(rest_.substr(0, percent));
      rest_.remove_prefix(percent);
      if (rest_.empty()) break;
      rest_.remove_prefix(1);
      HYDRANT_RETURN_IF_ERROR(Convert());
    }
    const Sequence* tuple = values_.AsSequence();
    const bool many = tuple != nullptr && tuple->kind() == Sequence::Kind::kTuple;
    // One surplus value is allowed if it could be indexed by name, as in Python.
    const bool could_name =
        values_.AsDict() != nullptr || tuple != nullptr || values_.IsUndefined();
    const bool left_over = many ? next_ < tuple->items().size() : next_ == 0 && !could_name;
    if (left_over) return TypeError("not all arguments converted during string formatting");
    return std::move(out_).String();
  }

 private:
  absl::Status Incomplete() { return absl::InvalidArgumentError("incomplete format"); }

  absl::StatusOr<Value> NextValue() {
    const Sequence* tuple = values_.AsSequence();
    const bool many = tuple != nullptr && tuple->kind() == Sequence::Kind::kTuple;
    if (next_ >= (many ? tuple->items().size() : 1))
      return TypeError("not enough arguments for format string");
    ++next_;
    return many ? tuple->items()[next_ - 1] : values_;
  }

  absl::StatusOr<Value> NamedValue() {
    const size_t close = rest_.find(')');
    if (close == std::string_view::npos) return absl::InvalidArgumentError("incomplete format key");
    const std::string name(rest_.substr(1, close - 1));
    rest_.remove_prefix(close + 1);
    if (values_.AsDict() == nullptr) return TypeError("format requires a mapping");
    const Value* found = values_.AsDict()->Find(name);
    if (found == nullptr) return absl::InvalidArgumentError(QuotedRepr(name));
    return *found;
  }

  absl::StatusOr<int64_t> Number() {
    if (!rest_.empty() && rest_[0] == '*') {
      rest_.remove_prefix(1);
      HYDRANT_ASSIGN_OR_RETURN(const Value value, NextValue());
      if (!value.IsIntegral()) return TypeError("* wants int");
      return value.AsInt();
    }
    int64_t number = 0;
    for (; !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9'; rest_.remove_prefix(1))
      number = std::min<int64_t>(number * 10 + (rest_[0] - '0'), INT32_MAX);
    return number;
  }

  void ReadFlags(Conversion* conversion) {
    for (; !rest_.empty(); rest_.remove_prefix(1)) {
      switch (rest_[0]) {
        case '-':
          conversion->left = true;
          break;
        case '+':
          conversion->plus = true;
          break;
        case ' ':
          conversion->space = true;
          break;
        case '0':
          conversion->zero = true;
          break;
        case '#':
          conversion->alternate = true;
          break;
        default:
          return;
      }
    }
  }

  absl::Status Convert() {
    std::optional<Value> named;
    if (!rest_.empty() && rest_[0] == '(') {
      HYDRANT_ASSIGN_OR_RETURN(named, NamedValue());
    }
    Conversion conversion;
    ReadFlags(&conversion);
    HYDRANT_ASSIGN_OR_RETURN(conversion.width, Number());
    if (conversion.width < 0) {
      conversion.left = true;
      conversion.width = -conversion.width;
    }
    if (!rest_.empty() && rest_[0] == '.') {
      rest_.remove_prefix(1);
      HYDRANT_ASSIGN_OR_RETURN(const int64_t precision, Number());
      conversion.precision = static_cast<int>(std::min<int64_t>(precision, INT32_MAX));
    }
    if (rest_.empty()) return Incomplete();
    conversion.type = rest_[0];
    rest_.remove_prefix(1);
    if (conversion.type == '%') {
      out_.Append("%");
      return absl::OkStatus();
    }
    if (!named.has_value()) {
      HYDRANT_ASSIGN_OR_RETURN(named, NextValue());
    }
    return Write(conversion, *named);
  }

  absl::Status Write(const Conversion& conversion, const Value& value) {
    switch (conversion.type) {
      case 's':
      case 'r':
        return WriteText(conversion, value);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return WriteInteger(conversion, value);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
        return WriteFloat(conversion, value);
      default:
        return absl::InvalidArgumentError(absl::StrCat(
            "unsupported format character ", QuotedRepr(std::string(1, conversion.type & 0x7F))));
    }
  }

  absl::Status WriteText(const Conversion& conversion, const Value& value) {
    HYDRANT_ASSIGN_OR_RETURN(const std::string all, conversion.type == 'r'
                                                        ? Repr(budget_, value)
                                                        : ToText(budget_, value));
    std::string_view text = all;
    if (conversion.precision >= 0) text = text.substr(0, ByteOffset(text, conversion.precision));
    Pad(conversion, text);
    return absl::OkStatus();
  }

  void Pad(const Conversion& conversion, std::string_view text) {
    const int64_t padding = conversion.width - CountCodePoints(text);
    if (!conversion.left) out_.AppendTimes(" ", padding);
    out_.Append(text);
    if (conversion.left) out_.AppendTimes(" ", padding);
  }

  // `digits` have no sign; `prefix` is "0x" or similar.
  void PadNumber(const Conversion& conversion, bool negative, std::string_view prefix,
                 std::string_view digits) {
    std::string head = negative ? "-" : conversion.plus ? "+" : conversion.space ? " " : "";
    head += prefix;
    if (!conversion.zero || conversion.left) return Pad(conversion, head + std::string(digits));
    out_.Append(head);
    out_.AppendTimes("0", conversion.width - static_cast<int64_t>(head.size() + digits.size()));
    out_.Append(digits);
  }

  absl::Status WriteInteger(const Conversion& conversion, const Value& value) {
    const bool decimal = conversion.type == 'd' || conversion.type == 'i' || conversion.type == 'u';
    if (value.IsUndefined()) return UndefinedError(value);
    if (!value.IsIntegral() && !(decimal && value.IsFloat())) {
      return TypeError(absl::StrCat("%", std::string(1, conversion.type),
                                    " format: a real number is required, not ", value.TypeName()));
    }
    if (value.IsFloat() && !(std::abs(value.AsDouble()) < 9.2e18))
      return absl::InvalidArgumentError("cannot convert float to a 64-bit integer");
    const int64_t number = value.IsFloat() ? static_cast<int64_t>(value.AsDouble()) : value.AsInt();
    const uint64_t magnitude =
        number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    std::array<char, 32> digits;
    const char* format = decimal                  ? "%lu"
                         : conversion.type == 'x' ? "%lx"
                         : conversion.type == 'X' ? "%lX"
                                                  : "%lo";
    std::snprintf(digits.data(), digits.size(), format, magnitude);
    std::string text = digits.data();
    if (conversion.precision > static_cast<int>(text.size())) {
      if (conversion.precision > kMaxPrecision) return PrecisionTooLarge();
      text.insert(0, static_cast<size_t>(conversion.precision) - text.size(), '0');
    }
    const std::string prefix =
        conversion.alternate && !decimal ? std::string("0") + conversion.type : "";
    PadNumber(conversion, number < 0, prefix, text);
    return absl::OkStatus();
  }

  absl::Status PrecisionTooLarge() {
    return absl::InvalidArgumentError(
        absl::StrCat("the template formats a number with a precision above ", kMaxPrecision));
  }

  absl::Status WriteFloat(const Conversion& conversion, const Value& value) {
    if (value.IsUndefined()) return UndefinedError(value);
    if (!value.IsNumber())
      return TypeError(absl::StrCat("must be real number, not ", value.TypeName()));
    if (conversion.precision > kMaxPrecision) return PrecisionTooLarge();
    const double number = value.AsDouble();
    std::array<char, 512> digits;
    const std::string format = std::string(conversion.alternate ? "%#.*" : "%.*") + conversion.type;
    const int precision = conversion.precision < 0 ? 6 : conversion.precision;
    std::snprintf(digits.data(), digits.size(), format.c_str(), precision, std::abs(number));
    PadNumber(conversion, std::signbit(number) && !std::isnan(number), "", digits.data());
    return absl::OkStatus();
  }

  Budget* const budget_;
  std::string_view rest_;
  const Value values_;
  BoundedText out_;
  size_t next_ = 0;  // index into the tuple
};

}  // namespace

absl::StatusOr<Value> PercentFormat(Budget* budget, std::string_view format, const Value& values) {
  return PercentFormatter(budget, format, values).Run();
}

absl::StatusOr<Value> EscapeHtml(Budget* budget, std::string_view text) {
  BoundedText out(budget);
  while (!text.empty()) {
    const size_t plain = std::min(text.find_first_of("&<>'\""), text.size());
    out.Append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    out.Append(text[0] == '&'    ? "&amp;"
               : text[0] == '<'  ? "&lt;"
               : text[0] == '>'  ? "&gt;"
               : text[0] == '\'' ? "&#39;"
                                 : "&#34;");
    text.remove_prefix(1);
  }
  return std::move(out).String(/*markup=*/true);
}

}  // namespace hydrant::jinja
