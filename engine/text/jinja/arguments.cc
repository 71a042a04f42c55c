#include "engine/text/jinja/arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/operators.h"

namespace hydrant::jinja {

const Value* Arguments::Keyword(std::string_view name) const {
  for (const auto& [keyword, value] : keywords) {
    if (keyword == name) return &value;
  }
  return nullptr;
}

absl::StatusOr<Bound> Bound::Bind(std::string_view function, const Arguments& arguments,
                                  std::initializer_list<std::string_view> parameters,
                                  size_t required) {
  Bound bound(function);
  const size_t positional = arguments.positional.size();
  if (positional > parameters.size()) {
    return TypeError(absl::StrCat(bound.function_, " takes at most ", parameters.size(),
                                  " arguments, ", positional, " were given"));
  }
  bound.values_ = arguments.positional;
  bound.values_.resize(parameters.size());
  bound.given_.assign(positional, true);
  bound.given_.resize(parameters.size(), false);
  for (const auto& [name, value] : arguments.keywords) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end())
      return TypeError(absl::StrCat(bound.function_, " has no argument '", name, "'"));
    const auto at = static_cast<size_t>(found - parameters.begin());
    if (bound.given_[at])
      return TypeError(absl::StrCat(bound.function_, " got two values for '", name, "'"));
    bound.values_[at] = value;
    bound.given_[at] = true;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound.given_[i]) {
      return TypeError(absl::StrCat(bound.function_, " wants an argument '",
                                    std::string(parameters.begin()[i]), "'"));
    }
  }
  return bound;
}

absl::StatusOr<int64_t> Bound::Int(size_t parameter, int64_t otherwise) const {
  if (!Has(parameter)) return otherwise;
  const Value& value = values_[parameter];
  if (value.IsIntegral()) return value.AsInt();
  if (value.IsUndefined()) return UndefinedError(value);
  return TypeError(absl::StrCat(function_, " wants an integer, not '", value.TypeName(), "'"));
}

absl::StatusOr<std::string> Bound::String(size_t parameter, std::string otherwise) const {
  if (!Has(parameter)) return otherwise;
  const Value& value = values_[parameter];
  if (value.IsString()) return value.AsString();
  if (value.IsUndefined()) return UndefinedError(value);
  return TypeError(absl::StrCat(function_, " wants a string, not '", value.TypeName(), "'"));
}

bool Bound::True(size_t parameter, bool otherwise) const {
  return Has(parameter) ? values_[parameter].IsTrue() : otherwise;
}

}  // namespace hydrant::jinja
