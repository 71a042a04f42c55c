// Python's operators on values. Errors are InvalidArgument with Python's messages.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_OPERATORS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_OPERATORS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class Budget;

enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class Comparator { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };

bool Equal(const Value& a, const Value& b);
// Equal values have equal hashes. REQUIRES: `value` is hashable.
uint64_t Hash(const Value& value);
absl::Status CheckHashable(const Value& value);

absl::StatusOr<bool> Compare(Comparator comparator, const Value& a, const Value& b);
// `item in container`.
absl::StatusOr<bool> Contains(Budget* budget, const Value& container, const Value& item);

absl::StatusOr<Value> Apply(Budget* budget, Operator op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& value);
absl::StatusOr<Value> Plus(const Value& value);  // unary

// len(value); an error if it has no length.
absl::StatusOr<int64_t> Length(const Value& value);
// Items as `for` sees them: characters, items, a dict's keys. Exhausts an iterator.
absl::StatusOr<std::vector<Value>> Iterate(Budget* budget, const Value& value);
bool IsIterable(const Value& value);

// value[index]; nullopt where Python raises a TypeError or a LookupError.
absl::StatusOr<std::optional<Value>> Index(Budget* budget, const Value& value, const Value& index);
// value[start:stop:step]; an undefined or none part counts as omitted.
absl::StatusOr<Value> Slice(Budget* budget, const Value& value, const Value& start,
                            const Value& stop, const Value& step);

// "'x' is undefined", the error for a forbidden use.
absl::Status UndefinedError(const Value& value);
absl::Status TypeError(const std::string& message);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_OPERATORS_H_
