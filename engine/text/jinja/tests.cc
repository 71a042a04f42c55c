#include "engine/text/jinja/tests.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using TestResult = absl::StatusOr<bool>;

// A test without arguments that cannot fail.
template <bool (*predicate)(const Value&)>
TestResult Is(Runtime*, const Value& value, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("the test", arguments, {}, 0).status());
  return predicate(value);
}

bool IsDefined(const Value& value) { return !value.IsUndefined(); }
bool IsUndefinedValue(const Value& value) { return value.IsUndefined(); }
bool IsNoneValue(const Value& value) { return value.IsNone(); }
bool IsBoolean(const Value& value) { return value.IsBool(); }
bool IsTrueValue(const Value& value) { return value.IsBool() && value.AsBool(); }
bool IsFalseValue(const Value& value) { return value.IsBool() && !value.AsBool(); }
bool IsInteger(const Value& value) { return value.IsInt(); }
bool IsFloatValue(const Value& value) { return value.IsFloat(); }
bool IsNumberValue(const Value& value) { return value.IsNumber(); }
bool IsStringValue(const Value& value) { return value.IsString(); }
bool IsMapping(const Value& value) { return value.AsDict() != nullptr; }
bool IsEscaped(const Value& value) { return value.IsString() && value.AsText().markup; }

// Whether Python sees a length and __getitem__: true for dicts, false for views. True for undefined
// as well: its __getitem__ exists, although it raises.
bool IsSequence(const Value& value) {
  const Sequence* sequence = value.AsSequence();
  return value.IsUndefined() || value.IsString() || value.AsDict() != nullptr ||
         (sequence != nullptr && sequence->HasIndex());
}

bool IsCallable(const Value& value) {
  return value.IsUndefined() || (value.AsObject() != nullptr && value.AsObject()->IsCallable());
}

template <Comparator comparator>
TestResult CompareWith(Runtime* runtime, const Value& value, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("the test", arguments, {"other"}, 1));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(value));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(bound[0]));
  return Compare(comparator, value, bound[0]);
}

TestResult IsIn(Runtime* runtime, const Value& value, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("the test in", arguments, {"seq"}, 1));
  return Contains(&runtime->budget(), bound[0], value);
}

TestResult IsSame(Runtime*, const Value& value, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("the test sameas", arguments, {"other"}, 1));
  return value.IsSameAs(bound[0]);
}

// value % divisor == rest
TestResult HasRest(Runtime* runtime, const Value& value, const Value& divisor, int64_t rest) {
  HYDRANT_ASSIGN_OR_RETURN(const Value modulo,
                           Apply(&runtime->budget(), Operator::kModulo, value, divisor));
  return Equal(modulo, Value(rest));
}

template <int64_t rest>
TestResult HasParity(Runtime* runtime, const Value& value, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("the test", arguments, {}, 0).status());
  return HasRest(runtime, value, Value(int64_t{2}), rest);
}

TestResult IsDivisible(Runtime* runtime, const Value& value, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("the test divisibleby", arguments, {"num"}, 1));
  return HasRest(runtime, value, bound[0], 0);
}

template <bool upper>
TestResult HasCase(Runtime* runtime, const Value& value, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Value text, ToString(&runtime->budget(), value));
  HYDRANT_ASSIGN_OR_RETURN(const Value result, FindStringMethod(upper ? "isupper" : "islower")(
                                                   runtime, text, arguments));
  return result.AsBool();
}

TestResult IsFilter(Runtime*, const Value& value, const Arguments&) {
  HYDRANT_RETURN_IF_ERROR(CheckHashable(value));
  return value.IsString() && FindFilter(value.AsString()) != nullptr;
}

TestResult IsTest(Runtime*, const Value& value, const Arguments&) {
  HYDRANT_RETURN_IF_ERROR(CheckHashable(value));
  return value.IsString() && FindTest(value.AsString()) != nullptr;
}

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr NamedTest kTests[] = {
    {"!=", CompareWith<Comparator::kNotEqual>},
    {"<", CompareWith<Comparator::kLess>},
    {"<=", CompareWith<Comparator::kLessEqual>},
    {"==", CompareWith<Comparator::kEqual>},
    {">", CompareWith<Comparator::kGreater>},
    {">=", CompareWith<Comparator::kGreaterEqual>},
    {"boolean", Is<IsBoolean>},
    {"callable", Is<IsCallable>},
    {"defined", Is<IsDefined>},
    {"divisibleby", IsDivisible},
    {"eq", CompareWith<Comparator::kEqual>},
    {"equalto", CompareWith<Comparator::kEqual>},
    {"escaped", Is<IsEscaped>},
    {"even", HasParity<0>},
    {"false", Is<IsFalseValue>},
    {"filter", IsFilter},
    {"float", Is<IsFloatValue>},
    {"ge", CompareWith<Comparator::kGreaterEqual>},
    {"greaterthan", CompareWith<Comparator::kGreater>},
    {"gt", CompareWith<Comparator::kGreater>},
    {"in", IsIn},
    {"integer", Is<IsInteger>},
    {"iterable", Is<IsIterable>},
    {"le", CompareWith<Comparator::kLessEqual>},
    {"lessthan", CompareWith<Comparator::kLess>},
    {"lower", HasCase<false>},
    {"lt", CompareWith<Comparator::kLess>},
    {"mapping", Is<IsMapping>},
    {"ne", CompareWith<Comparator::kNotEqual>},
    {"none", Is<IsNoneValue>},
    {"number", Is<IsNumberValue>},
    {"odd", HasParity<1>},
    {"sameas", IsSame},
    {"sequence", Is<IsSequence>},
    {"string", Is<IsStringValue>},
    {"test", IsTest},
    {"true", Is<IsTrueValue>},
    {"undefined", Is<IsUndefinedValue>},
    {"upper", HasCase<true>},
};

}  // namespace

Test FindTest(std::string_view name) {
  const auto* found = std::lower_bound(
      std::begin(kTests), std::end(kTests), name,
      [](const NamedTest& one, std::string_view wanted) { return one.name < wanted; });
  return found != std::end(kTests) && found->name == name ? found->test : nullptr;
}

}  // namespace hydrant::jinja
