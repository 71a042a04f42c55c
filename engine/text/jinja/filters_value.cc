// Filters of one value of any type: defaults, numbers, JSON.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/filter_groups.h"
#include "engine/text/jinja/json.h"
#include "engine/text/jinja/number_parser.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result DefaultFilter(Runtime*, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("default", arguments, {"default_value", "boolean"}, 0));
  const bool missing = input.IsUndefined() || (bound.True(1, false) && !input.IsTrue());
  if (!missing) return input;
  return bound.Has(0) ? bound[0] : Value::String("");
}

Result LengthFilter(Runtime*, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("length", arguments, {}, 0).status());
  HYDRANT_ASSIGN_OR_RETURN(const int64_t length, Length(input));
  return Value(length);
}

bool FitsInt(double value) { return std::abs(value) < 9.2e18; }

Result IntFilter(Runtime*, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("int", arguments, {"default", "base"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t base, bound.Int(1, 10));
  const Value otherwise = bound.Has(0) ? bound[0] : Value(int64_t{0});
  if (input.IsUndefined()) return UndefinedError(input);
  if (input.IsIntegral()) return Value(input.AsInt());
  if (input.IsFloat()) {
    if (std::isfinite(input.AsDouble()) && !FitsInt(input.AsDouble()))
      return absl::InvalidArgumentError("the template computes an integer beyond 64 bits");
    if (std::isinf(input.AsDouble())) return otherwise;
    return std::isnan(input.AsDouble()) ? otherwise : Value(static_cast<int64_t>(input.AsDouble()));
  }
  if (!input.IsString()) return otherwise;
  const int safe_base = base < 0 || base > 36 ? 1 : static_cast<int>(base);
  if (const auto number = ParseInt(input.AsString(), safe_base)) return Value(*number);
  const std::optional<double> number = ParseFloat(input.AsString());
  if (!number.has_value() || !std::isfinite(*number)) return otherwise;
  if (!FitsInt(*number))
    return absl::InvalidArgumentError("the template computes an integer beyond 64 bits");
  return Value(static_cast<int64_t>(*number));
}

Result FloatFilter(Runtime*, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("float", arguments, {"default"}, 0));
  const Value otherwise = bound.Has(0) ? bound[0] : Value(0.0);
  if (input.IsUndefined()) return UndefinedError(input);
  if (input.IsNumber()) return Value(input.AsDouble());
  if (!input.IsString()) return otherwise;
  const std::optional<double> number = ParseFloat(input.AsString());
  return number.has_value() ? Value(*number) : otherwise;
}

Result AbsFilter(Runtime*, const Value& input, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("abs", arguments, {}, 0).status());
  if (input.IsUndefined()) return UndefinedError(input);
  if (input.IsFloat()) return Value(std::abs(input.AsDouble()));
  if (!input.IsIntegral())
    return TypeError(absl::StrCat("bad operand type for abs(): '", input.TypeName(), "'"));
  return input.AsInt() < 0 ? Negate(input) : Value(input.AsInt());
}

// Rounds half to even on the exact binary value, as Python's round().
double RoundDecimals(double value, int decimals) {
  if (!std::isfinite(value)) return value;
  if (decimals < 0) {
    const double unit = std::pow(10.0, -decimals);
    return std::nearbyint(value / unit) * unit;
  }
  char digits[400];
  std::snprintf(digits, sizeof digits, "%.*f", std::min(decimals, 60), value);
  return std::strtod(digits, nullptr);
}

Result RoundFilter(Runtime*, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("round", arguments, {"precision", "method"}, 0));
  HYDRANT_ASSIGN_OR_RETURN(const int64_t precision, bound.Int(0, 0));
  HYDRANT_ASSIGN_OR_RETURN(const std::string method, bound.String(1, "common"));
  if (method != "common" && method != "ceil" && method != "floor")
    return absl::InvalidArgumentError("method must be common, ceil or floor");
  if (input.IsUndefined()) return UndefinedError(input);
  if (!input.IsNumber())
    return TypeError(absl::StrCat("type ", input.TypeName(), " doesn't define __round__ method"));
  if (precision < -300 || precision > 300)
    return absl::InvalidArgumentError("round: precision is not between -300 and 300");
  const int decimals = static_cast<int>(precision);
  if (method == "common") {
    if (input.IsIntegral() && decimals >= 0) return Value(input.AsInt());
    const double rounded = RoundDecimals(input.AsDouble(), decimals);
    return input.IsIntegral() && FitsInt(rounded) ? Value(static_cast<int64_t>(rounded))
                                                  : Value(rounded);
  }
  const double unit = std::pow(10.0, decimals);
  const double scaled = input.AsDouble() * unit;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

absl::Status SetIndent(const Bound& bound, JsonStyle* style) {
  if (!bound.Has(1) || bound[1].IsNone()) return absl::OkStatus();
  style->indented = true;
  style->item_separator = ",";
  if (bound[1].IsString()) {
    style->indent = bound[1].AsString();
    return absl::OkStatus();
  }
  HYDRANT_ASSIGN_OR_RETURN(const int64_t width, bound.Int(1, 0));
  if (width > 1000) return absl::InvalidArgumentError("tojson: indent is above 1000");
  style->indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  return absl::OkStatus();
}

absl::Status SetSeparators(const Bound& bound, JsonStyle* style) {
  if (!bound.Has(2) || bound[2].IsNone()) return absl::OkStatus();
  const Sequence* pair = bound[2].AsSequence();
  if (pair == nullptr || pair->items().size() != 2 || !pair->items()[0].IsString() ||
      !pair->items()[1].IsString())
    return TypeError("tojson: separators are not two strings");
  style->item_separator = pair->items()[0].AsString();
  style->key_separator = pair->items()[1].AsString();
  return absl::OkStatus();
}

Result ToJsonFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  JsonStyle style;
  style.ensure_ascii = bound.True(0, false);
  style.sort_keys = bound.True(3, false);
  HYDRANT_RETURN_IF_ERROR(SetIndent(bound, &style));
  HYDRANT_RETURN_IF_ERROR(SetSeparators(bound, &style));
  return WriteJson(&runtime->budget(), input, style);
}

// Attributes only; items of that name are ignored.
Result AttrFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("attr", arguments, {"name"}, 1));
  HYDRANT_ASSIGN_OR_RETURN(const std::string name, bound.String(0, ""));
  HYDRANT_ASSIGN_OR_RETURN(const Value found, GetAttribute(runtime, input, name));
  const bool is_item = input.AsDict() != nullptr && FindDictMethod(name) == nullptr;
  return is_item
             ? Value::UndefinedBecause(absl::StrCat("'dict object' has no attribute '", name, "'"))
             : found;
}

constexpr NamedFilter kValueFilters[] = {{"abs", AbsFilter},         {"attr", AttrFilter},
                                         {"count", LengthFilter},    {"d", DefaultFilter},
                                         {"default", DefaultFilter}, {"float", FloatFilter},
                                         {"int", IntFilter},         {"length", LengthFilter},
                                         {"round", RoundFilter},     {"tojson", ToJsonFilter}};

}  // namespace

std::span<const NamedFilter> ValueFilters() { return kValueFilters; }

}  // namespace hydrant::jinja
