#include "engine/text/jinja/string_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/code_points.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

constexpr int kMaxFormatPrecision = 100;

absl::Status Bad(std::string_view what) { return absl::InvalidArgumentError(std::string(what)); }

struct Spec {
  std::string_view fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false, comma = false;
  int64_t width = 0;
  int precision = -1;
  char type = 0;
};

int64_t TakeDigits(std::string_view* text) {
  int64_t number = 0;
  for (; !text->empty() && (*text)[0] >= '0' && (*text)[0] <= '9'; text->remove_prefix(1))
    number = std::min<int64_t>(number * 10 + ((*text)[0] - '0'), INT32_MAX);
  return number;
}

bool TakeIf(std::string_view* text, char c) {
  if (text->empty() || (*text)[0] != c) return false;
  text->remove_prefix(1);
  return true;
}

bool IsAlignment(std::string_view text) {
  return !text.empty() && std::string_view("<>^=").find(text[0]) != std::string_view::npos;
}

// [[fill]align][sign][#][0][width][,][.precision][type]
absl::StatusOr<Spec> ParseSpec(std::string_view text) {
  Spec spec;
  const size_t first = ByteOffset(text, 1);
  if (IsAlignment(text.substr(first))) {
    spec.fill = text.substr(0, first);
    text.remove_prefix(first);
  }
  if (IsAlignment(text)) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  for (const char sign : {'+', '-', ' '}) {
    if (TakeIf(&text, sign)) spec.sign = sign;
  }
  spec.alternate = TakeIf(&text, '#');
  if (TakeIf(&text, '0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = TakeDigits(&text);
  spec.comma = TakeIf(&text, ',');
  if (TakeIf(&text, '.')) {
    if (text.empty() || text[0] < '0' || text[0] > '9')
      return Bad("Format specifier missing precision");
    spec.precision = static_cast<int>(TakeDigits(&text));
  }
  if (text.size() > 1) return Bad("Invalid format specifier");
  if (!text.empty()) spec.type = text[0];
  return spec;
}

void Pad(const Spec& spec, char default_align, std::string_view head, std::string_view body,
         BoundedText* out) {
  const char align = spec.align != 0 ? spec.align : default_align;
  const int64_t padding =
      std::max<int64_t>(spec.width - static_cast<int64_t>(head.size()) - CountCodePoints(body), 0);
  const int64_t left = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
  if (align == '=') out->Append(head);
  out->AppendTimes(spec.fill, left);
  if (align != '=') out->Append(head);
  out->Append(body);
  out->AppendTimes(spec.fill, padding - left);
}

// Commas between groups of three digits of the integral part.
std::string WithCommas(const std::string& digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out + digits.substr(whole);
}

std::string SignOf(const Spec& spec, bool negative) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

std::string InBase(uint64_t number, unsigned base, bool upper) {
  const char* const alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits += alphabet[number % base];
    number /= base;
  } while (number > 0);
  return {digits.rbegin(), digits.rend()};
}

absl::Status FormatInteger(const Spec& spec, int64_t number, BoundedText* out) {
  if (spec.precision >= 0) return Bad("Precision not allowed in integer format specifier");
  const unsigned base = spec.type == 'x' || spec.type == 'X' ? 16
                        : spec.type == 'o'                   ? 8
                        : spec.type == 'b'                   ? 2
                                                             : 10;
  const uint64_t magnitude =
      number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  std::string digits = InBase(magnitude, base, spec.type == 'X');
  if (spec.comma) digits = WithCommas(digits);
  std::string head = SignOf(spec, number < 0);
  if (spec.alternate && base != 10) head += std::string("0") + spec.type;
  Pad(spec, '>', head, digits, out);
  return absl::OkStatus();
}

absl::Status FormatFloat(const Spec& spec, double number, BoundedText* out) {
  if (spec.precision > kMaxFormatPrecision)
    return Bad(
        absl::StrCat("the template formats a number with a precision above ", kMaxFormatPrecision));
  std::string digits;
  const double magnitude = std::abs(number);
  if (spec.type == 0 && spec.precision < 0) {
    digits = FloatRepr(magnitude);
  } else {
    std::array<char, 512> buffer;
    const char type = spec.type == '%' ? 'f' : spec.type == 0 ? 'g' : spec.type;
    const std::string format = std::string(spec.alternate ? "%#.*" : "%.*") + type;
    std::snprintf(buffer.data(), buffer.size(), format.c_str(),
                  spec.precision < 0 ? 6 : spec.precision,
                  spec.type == '%' ? magnitude * 100 : magnitude);
    digits = buffer.data();
  }
  if (spec.type == '%') digits += '%';
  if (spec.comma) digits = WithCommas(digits);
  Pad(spec, '>', SignOf(spec, std::signbit(number) && !std::isnan(number)), digits, out);
  return absl::OkStatus();
}

bool IsOneOf(char type, std::string_view types) {
  return type == 0 || types.find(type) != std::string_view::npos;
}

absl::Status FormatValue(Budget* budget, const Value& value, std::string_view text,
                         BoundedText* out) {
  HYDRANT_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(text));
  if (value.IsInt() && IsOneOf(spec.type, "dxXob")) return FormatInteger(spec, value.AsInt(), out);
  if (value.IsBool() && spec.type != 0 && IsOneOf(spec.type, "dxXob"))
    return FormatInteger(spec, value.AsInt(), out);
  const bool wants_float = spec.type != 0 && IsOneOf(spec.type, "eEfFgG%");
  if ((value.IsFloat() && spec.type == 0) || (value.IsNumber() && wants_float))
    return FormatFloat(spec, value.AsDouble(), out);
  const bool text_like = value.IsString() || text.empty() || value.IsBool();
  if (!text_like || !IsOneOf(spec.type, "s")) {
    return Bad(absl::StrCat("Unknown format code for object of type '", value.TypeName(), "'"));
  }
  HYDRANT_ASSIGN_OR_RETURN(const std::string all, ToText(budget, value));
  std::string_view part = all;
  if (spec.precision >= 0) part = part.substr(0, ByteOffset(part, spec.precision));
  if (spec.align == '=') return Bad("'=' alignment not allowed in string format specifier");
  Pad(spec, '<', "", part, out);
  return absl::OkStatus();
}

// Walks over a format and its named values.
class Formatter {
 public:
  Formatter(Runtime* runtime, std::string_view format, const Arguments& arguments)
      : runtime_(runtime), rest_(format), arguments_(arguments), out_(&runtime->budget()) {}

  absl::StatusOr<Value> Run(bool markup) {
    while (!rest_.empty()) {
      const size_t brace = std::min(rest_.find_first_of("{}"), rest_.size());
      out_.Append(rest_.substr(0, brace));
      rest_.remove_prefix(brace);
      if (rest_.empty()) break;
      const char c = rest_[0];
      rest_.remove_prefix(1);
      if (TakeIf(&rest_, c)) {
        out_.Append(std::string(1, c));
      } else if (c == '}') {
        return Bad("Single '}' encountered in format string");
      } else {
        HYDRANT_RETURN_IF_ERROR(ReplaceField());
      }
    }
    return std::move(out_).String(markup);
  }

 private:
  absl::Status ReplaceField() {
    const size_t close = rest_.find('}');
    if (close == std::string_view::npos) return Bad("expected '}' before end of string");
    std::string_view field = rest_.substr(0, close);
    rest_.remove_prefix(close + 1);
    if (field.find('{') != std::string_view::npos)
      return absl::UnimplementedError("a field within a field of str.format() is not supported");
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
    field = field.substr(0, colon);
    char conversion = 0;
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      if (field.size() != mark + 2) return Bad("expected ':' after conversion specifier");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    HYDRANT_ASSIGN_OR_RETURN(Value value, FieldValue(field));
    if (conversion != 0) {
      if (conversion != 'r' && conversion != 's') return Bad("Unknown conversion specifier");
      Budget* budget = &runtime_->budget();
      HYDRANT_ASSIGN_OR_RETURN(std::string text,
                               conversion == 'r' ? Repr(budget, value) : ToText(budget, value));
      value = Value::String(std::move(text));
    }
    return FormatValue(&runtime_->budget(), value, spec, &out_);
  }

  absl::StatusOr<Value> FieldValue(std::string_view field) {
    const size_t end = std::min(field.find_first_of(".["), field.size());
    const std::string name(field.substr(0, end));
    HYDRANT_ASSIGN_OR_RETURN(Value value, NamedValue(name));
    for (field.remove_prefix(end); !field.empty();) {
      const bool item = field[0] == '[';
      const size_t stop = item ? field.find(']') : field.find_first_of(".[", 1);
      if (item && stop == std::string_view::npos) return Bad("Missing ']' in format string");
      const std::string key(field.substr(1, std::min(stop, field.size()) - 1));
      int64_t number = 0;
      if (!item) {
        HYDRANT_ASSIGN_OR_RETURN(value, GetAttribute(runtime_, value, key));
      } else {
        const bool is_number = absl::SimpleAtoi(key, &number) && number >= 0;
        HYDRANT_ASSIGN_OR_RETURN(
            value, GetItem(runtime_, value, is_number ? Value(number) : Value::String(key)));
      }
      field.remove_prefix(std::min(item ? stop + 1 : stop, field.size()));
    }
    return value;
  }

  absl::StatusOr<Value> NamedValue(const std::string& name) {
    int64_t number = 0;
    if (!name.empty() && !absl::SimpleAtoi(name, &number)) {
      const Value* found = arguments_.Keyword(name);
      if (found == nullptr) return Bad(QuotedRepr(name));
      return *found;
    }
    automatic_ = automatic_ || name.empty();
    manual_ = manual_ || !name.empty();
    if (automatic_ && manual_)
      return Bad("cannot mix automatic field numbering and manual field specification");
    if (automatic_) number = next_++;
    if (number < 0 || number >= static_cast<int64_t>(arguments_.positional.size()))
      return Bad(absl::StrCat("Replacement index ", number, " out of range"));
    return arguments_.positional[static_cast<size_t>(number)];
  }

  Runtime* const runtime_;
  std::string_view rest_;
  const Arguments& arguments_;
  BoundedText out_;
  int64_t next_ = 0;                         // of the positional arguments
  bool automatic_ = false, manual_ = false;  // numbering of the fields
};

}  // namespace

absl::StatusOr<Value> FormatString(Runtime* runtime, const Value& self,
                                   const Arguments& arguments) {
  return Formatter(runtime, self.AsString(), arguments).Run(self.AsText().markup);
}

absl::StatusOr<Value> ReplaceText(Runtime* runtime, const Value& self, std::string_view before,
                                  std::string_view after, int64_t count) {
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  std::string_view rest = self.AsString();
  BoundedText out(&runtime->budget());
  for (; count != 0 && out.ok(); --count) {
    if (before.empty()) {  // before every character, and at the end
      out.Append(after);
      if (rest.empty()) break;
      const size_t first = ByteOffset(rest, 1);
      out.Append(rest.substr(0, first));
      rest.remove_prefix(first);
      continue;
    }
    const size_t at = rest.find(before);
    if (at == std::string_view::npos) break;
    out.Append(rest.substr(0, at));
    out.Append(after);
    rest.remove_prefix(at + before.size());
  }
  out.Append(rest);
  return std::move(out).String(self.AsText().markup);
}

}  // namespace hydrant::jinja
