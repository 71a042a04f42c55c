// The operators of operators.h that compute a new value: + - * / // % **.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/percent_format.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

std::string_view Symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "**";
  }
  return "";
}

absl::Status Unsupported(Operator op, const Value& a, const Value& b) {
  return TypeError(absl::StrCat("unsupported operand type(s) for ", std::string(Symbol(op)), ": '",
                                a.TypeName(), "' and '", b.TypeName(), "'"));
}

absl::Status Overflow() {
  return absl::InvalidArgumentError("the template computes an integer beyond 64 bits");
}

absl::Status ZeroDivision() { return absl::InvalidArgumentError("division by zero"); }

// Python's rules: the quotient is rounded down, the remainder has the divisor's sign.
int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

double FloorModulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}

double FloorDivide(double a, double b) {
  const double quotient = (a - FloorModulo(a, b)) / b;
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

absl::StatusOr<Value> Power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return absl::InvalidArgumentError("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value(result);
}

absl::StatusOr<Value> ApplyToInts(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDivide:
      if (b == 0) return ZeroDivision();
      return Value(static_cast<double>(static_cast<long double>(a) / b));
    case Operator::kFloorDivide:
    case Operator::kModulo:
      if (b == 0) return absl::InvalidArgumentError("integer division or modulo by zero");
      overflow = a == INT64_MIN && b == -1;
      if (!overflow)
        result = op == Operator::kModulo ? a - FloorDivide(a, b) * b : FloorDivide(a, b);
      break;
    case Operator::kPower:
      return Power(a, b);
  }
  if (overflow) return Overflow();
  return Value(result);
}

absl::StatusOr<Value> ApplyToFloats(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSubtract:
      return Value(a - b);
    case Operator::kMultiply:
      return Value(a * b);
    case Operator::kDivide:
      if (b == 0) return ZeroDivision();
      return Value(a / b);
    case Operator::kFloorDivide:
      if (b == 0) return ZeroDivision();
      return Value(FloorDivide(a, b));
    case Operator::kModulo:
      if (b == 0) return absl::InvalidArgumentError("float modulo");
      return Value(FloorModulo(a, b));
    case Operator::kPower:
      break;
  }
  if (a == 0 && b < 0)
    return absl::InvalidArgumentError("0.0 cannot be raised to a negative power");
  const double result = std::pow(a, b);
  if (std::isnan(result) && !std::isnan(a) && !std::isnan(b))
    return absl::InvalidArgumentError("the template computes a complex number");
  if (std::isinf(result) && !std::isinf(a) && !std::isinf(b))
    return absl::InvalidArgumentError("Numerical result out of range");
  return Value(result);
}

absl::StatusOr<Value> AddStrings(Budget* budget, const Text& a, const Text& b) {
  if (a.markup == b.markup) {
    BoundedText sum(budget);
    sum.Append(a.utf8);
    sum.Append(b.utf8);
    return std::move(sum).String(a.markup);
  }
  HYDRANT_ASSIGN_OR_RETURN(const Value escaped, EscapeHtml(budget, a.markup ? b.utf8 : a.utf8));
  return a.markup ? AddStrings(budget, a, escaped.AsText())
                  : AddStrings(budget, escaped.AsText(), b);
}

absl::StatusOr<Value> AddSequences(Budget* budget, const Sequence& a, const Sequence& b) {
  HYDRANT_RETURN_IF_ERROR(budget->AllocateItems(a.items().size() + b.items().size()));
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return budget->NewSequence(a.kind(), std::move(items));
}

absl::StatusOr<Value> Repeat(Budget* budget, const Value& value, int64_t times) {
  if (value.IsString()) {
    const Text& text = value.AsText();
    BoundedText repeated(budget);
    repeated.AppendTimes(text.utf8, times);
    return std::move(repeated).String(text.markup);
  }
  const Sequence& sequence = *value.AsSequence();
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !sequence.items().empty(); ++i) {
    HYDRANT_RETURN_IF_ERROR(budget->AllocateItems(sequence.items().size()));
    items.insert(items.end(), sequence.items().begin(), sequence.items().end());
    HYDRANT_RETURN_IF_ERROR(budget->CheckItems(items.size()));
  }
  return budget->NewSequence(sequence.kind(), std::move(items));
}

bool IsListOrTuple(const Value& value) {
  return value.AsSequence() != nullptr && value.AsSequence()->kind() <= Sequence::Kind::kTuple;
}

}  // namespace

absl::StatusOr<Value> Apply(Budget* budget, Operator op, const Value& a, const Value& b) {
  if (op == Operator::kModulo && a.IsString()) return PercentFormat(budget, a.AsString(), b);
  if (a.IsUndefined()) return UndefinedError(a);
  if (b.IsUndefined()) return UndefinedError(b);
  if (a.IsIntegral() && b.IsIntegral()) return ApplyToInts(op, a.AsInt(), b.AsInt());
  if (a.IsNumber() && b.IsNumber()) return ApplyToFloats(op, a.AsDouble(), b.AsDouble());
  if (op == Operator::kAdd) {
    if (a.IsString() && b.IsString()) return AddStrings(budget, a.AsText(), b.AsText());
    if (IsListOrTuple(a) && IsListOrTuple(b) && a.TypeName() == b.TypeName())
      return AddSequences(budget, *a.AsSequence(), *b.AsSequence());
    if (a.IsString()) {
      return TypeError(
          absl::StrCat("can only concatenate str (not \"", b.TypeName(), "\") to str"));
    }
  }
  if (op == Operator::kMultiply) {
    if ((a.IsString() || IsListOrTuple(a)) && b.IsIntegral()) return Repeat(budget, a, b.AsInt());
    if ((b.IsString() || IsListOrTuple(b)) && a.IsIntegral()) return Repeat(budget, b, a.AsInt());
  }
  return Unsupported(op, a, b);
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (value.IsFloat()) return Value(-value.AsDouble());
  if (!value.IsIntegral())
    return TypeError(absl::StrCat("bad operand type for unary -: '", value.TypeName(), "'"));
  if (value.AsInt() == INT64_MIN) return Overflow();
  return Value(-value.AsInt());
}

absl::StatusOr<Value> Plus(const Value& value) {
  if (value.IsUndefined()) return UndefinedError(value);
  if (value.IsFloat()) return value;
  if (value.IsIntegral()) return Value(value.AsInt());
  return TypeError(absl::StrCat("bad operand type for unary +: '", value.TypeName(), "'"));
}

}  // namespace hydrant::jinja
