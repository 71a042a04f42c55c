#include "engine/text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/code_points.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

bool IsOrdered(Comparator comparator) {
  return comparator != Comparator::kEqual && comparator != Comparator::kNotEqual;
}

bool EqualSequences(const Sequence& a, const Sequence& b) {
  if (&a == &b) return true;
  if (a.kind() != b.kind() || !a.HasIndex()) return false;
  return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), Equal);
}

bool EqualDicts(const Dict& a, const Dict& b) {
  if (&a == &b) return true;
  if (a.size() != b.size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const Dict::Entry& entry) {
    const Value* other = b.Find(entry.first);
    return other != nullptr && Equal(entry.second, *other);
  });
}

// The sign of a - b, exact for integers beside floats; nullopt if one is not a number.
std::optional<int> CompareNumbers(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral())
    return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt() ? 1 : 0;
  const auto exact = [](const Value& value) -> long double {
    return value.IsFloat() ? value.AsDouble() : static_cast<long double>(value.AsInt());
  };
  const long double x = exact(a), y = exact(b);
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y ? 1 : 0;
}

std::string_view Symbol(Comparator comparator) {
  switch (comparator) {
    case Comparator::kLess:
      return "<";
    case Comparator::kLessEqual:
      return "<=";
    case Comparator::kGreater:
      return ">";
    case Comparator::kGreaterEqual:
      return ">=";
    default:
      return "==";
  }
}

bool Holds(Comparator comparator, int sign) {
  switch (comparator) {
    case Comparator::kEqual:
      return sign == 0;
    case Comparator::kNotEqual:
      return sign != 0;
    case Comparator::kLess:
      return sign < 0;
    case Comparator::kLessEqual:
      return sign <= 0;
    case Comparator::kGreater:
      return sign > 0;
    case Comparator::kGreaterEqual:
      return sign >= 0;
  }
  return false;
}

// The first differing items decide, else the lengths.
absl::StatusOr<bool> CompareSequences(Comparator comparator, const Sequence& a, const Sequence& b) {
  const size_t shared = std::min(a.items().size(), b.items().size());
  for (size_t i = 0; i < shared; ++i) {
    if (!Equal(a.items()[i], b.items()[i])) return Compare(comparator, a.items()[i], b.items()[i]);
  }
  const auto less = static_cast<int>(a.items().size() < b.items().size());
  const auto more = static_cast<int>(a.items().size() > b.items().size());
  return Holds(comparator, more - less);
}

}  // namespace

absl::Status TypeError(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status UndefinedError(const Value& value) {
  const auto& why = value.AsUndefined().why;
  return absl::InvalidArgumentError(why == nullptr ? "an undefined value is used" : *why);
}

bool Equal(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return CompareNumbers(a, b) == 0;
  if (a.IsString() && b.IsString()) return a.AsString() == b.AsString();
  if (a.IsUndefined() || b.IsUndefined()) return a.IsUndefined() && b.IsUndefined();
  if (a.IsNone() || b.IsNone()) return a.IsNone() && b.IsNone();
  if (a.AsSequence() != nullptr && b.AsSequence() != nullptr)
    return EqualSequences(*a.AsSequence(), *b.AsSequence());
  if (a.AsDict() != nullptr && b.AsDict() != nullptr) return EqualDicts(*a.AsDict(), *b.AsDict());
  return a.AsObject() != nullptr && a.AsObject() == b.AsObject();
}

uint64_t Hash(const Value& value) {
  if (value.IsIntegral()) return absl::HashOf(value.AsInt());
  if (value.IsFloat()) {
    const double number = value.AsDouble();
    const bool integral = std::abs(number) < 9.2e18 && std::trunc(number) == number;
    return integral ? absl::HashOf(static_cast<int64_t>(number)) : absl::HashOf(number);
  }
  if (value.IsString()) return absl::HashOf(value.AsString());
  if (value.AsObject() != nullptr) return absl::HashOf(value.AsObject());
  const Sequence* sequence = value.AsSequence();
  if (sequence == nullptr) return value.IsNone() ? 1 : 2;
  if (sequence->kind() != Sequence::Kind::kTuple) return absl::HashOf(sequence);
  uint64_t hash = 3;
  for (const Value& item : sequence->items()) hash = absl::HashOf(hash, Hash(item));
  return hash;
}

absl::Status CheckHashable(const Value& value) {
  const Sequence* sequence = value.AsSequence();
  const bool changes = sequence != nullptr && (sequence->kind() == Sequence::Kind::kList ||
                                               sequence->kind() == Sequence::Kind::kKeys ||
                                               sequence->kind() == Sequence::Kind::kItems);
  if (changes || value.AsDict() != nullptr)
    return TypeError(absl::StrCat("unhashable type: '", value.TypeName(), "'"));
  if (sequence == nullptr || sequence->kind() != Sequence::Kind::kTuple) return absl::OkStatus();
  for (const Value& item : sequence->items()) HYDRANT_RETURN_IF_ERROR(CheckHashable(item));
  return absl::OkStatus();
}

absl::StatusOr<bool> Compare(Comparator comparator, const Value& a, const Value& b) {
  if (!IsOrdered(comparator)) return Equal(a, b) == (comparator == Comparator::kEqual);
  if (a.IsUndefined()) return UndefinedError(a);
  if (b.IsUndefined()) return UndefinedError(b);
  if (a.IsNumber() && b.IsNumber()) {
    const std::optional<int> sign = CompareNumbers(a, b);
    return sign.has_value() && Holds(comparator, *sign);
  }
  // UTF-8 bytes sort like code points.
  if (a.IsString() && b.IsString()) return Holds(comparator, a.AsString().compare(b.AsString()));
  const Sequence *x = a.AsSequence(), *y = b.AsSequence();
  const bool lists =
      x != nullptr && y != nullptr && x->kind() == y->kind() && x->kind() <= Sequence::Kind::kTuple;
  if (lists) return CompareSequences(comparator, *x, *y);
  return TypeError(absl::StrCat("'", std::string(Symbol(comparator)),
                                "' not supported between instances of '", a.TypeName(), "' and '",
                                b.TypeName(), "'"));
}

absl::StatusOr<bool> Contains(Budget* budget, const Value& container, const Value& item) {
  if (container.IsUndefined()) return false;
  if (container.IsString()) {
    if (!item.IsString()) {
      return TypeError(
          absl::StrCat("'in <string>' requires string as left operand, not ", item.TypeName()));
    }
    HYDRANT_RETURN_IF_ERROR(budget->Walk(container));
    return container.AsString().find(item.AsString()) != std::string::npos;
  }
  HYDRANT_RETURN_IF_ERROR(budget->Walk(item));
  if (const Dict* dict = container.AsDict()) {
    HYDRANT_RETURN_IF_ERROR(CheckHashable(item));
    return dict->Find(item) != nullptr;
  }
  if (const auto* space = dynamic_cast<const Namespace*>(container.AsObject()); space != nullptr)
    return TypeError("argument of type 'Namespace' is not iterable");
  HYDRANT_RETURN_IF_ERROR(budget->Walk(container));
  if (!IsIterable(container))
    return TypeError(absl::StrCat("argument of type '", container.TypeName(), "' is not iterable"));
  Sequence* sequence = container.AsSequence();
  if (!sequence->IsIterator()) {
    return std::any_of(sequence->items().begin(), sequence->items().end(),
                       [&](const Value& one) { return Equal(one, item); });
  }
  while (const Value* one = sequence->TakeFirst()) {
    if (Equal(*one, item)) return true;
  }
  return false;
}

absl::StatusOr<int64_t> Length(const Value& value) {
  if (value.IsUndefined()) return 0;
  if (value.IsString()) {
    const Text& text = value.AsText();
    return text.ascii ? static_cast<int64_t>(text.utf8.size()) : CountCodePoints(text.utf8);
  }
  if (const Dict* dict = value.AsDict()) return static_cast<int64_t>(dict->size());
  const Sequence* sequence = value.AsSequence();
  if (sequence != nullptr && !sequence->IsIterator())
    return static_cast<int64_t>(sequence->items().size());
  return TypeError(absl::StrCat("object of type '", value.TypeName(), "' has no len()"));
}

bool IsIterable(const Value& value) {
  return value.IsUndefined() || value.IsString() || value.AsSequence() != nullptr ||
         value.AsDict() != nullptr;
}

absl::StatusOr<std::vector<Value>> Iterate(Budget* budget, const Value& value) {
  std::vector<Value> items;
  if (value.IsUndefined()) return items;
  if (value.IsString()) {
    HYDRANT_RETURN_IF_ERROR(budget->AllocateItems(value.AsString().size()));
    for (const std::string_view character : Characters(value.AsString()))
      items.push_back(Value::String(std::string(character)));
    return items;
  }
  if (Sequence* sequence = value.AsSequence()) {
    HYDRANT_RETURN_IF_ERROR(budget->AllocateItems(sequence->items().size()));
    return sequence->TakeAll();
  }
  if (const Dict* dict = value.AsDict()) {
    HYDRANT_RETURN_IF_ERROR(budget->AllocateItems(dict->size()));
    for (const Dict::Entry& entry : dict->entries()) items.push_back(entry.first);
    return items;
  }
  return TypeError(absl::StrCat("'", value.TypeName(), "' object is not iterable"));
}

}  // namespace hydrant::jinja
