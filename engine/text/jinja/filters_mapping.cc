// Filters that apply a named filter, test or attribute to every item: map, select and similar.
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attribute_path.h"
#include "engine/text/jinja/filter_groups.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/tests.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Items = std::vector<Value>;

// The arguments after the first `count`.
Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

absl::StatusOr<Items> ItemsIfTrue(Runtime* runtime, const Value& input) {
  if (!input.IsTrue()) return Items();
  return Iterate(&runtime->budget(), input);
}

Result MapAttribute(Runtime* runtime, const Items& items, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("map", arguments, {"attribute", "default"}, 1));
  const AttributePath path(bound[0]);
  const Value* otherwise = bound.Has(1) && !bound[1].IsNone() ? &bound[1] : nullptr;
  Items mapped;
  for (const Value& item : items) {
    HYDRANT_ASSIGN_OR_RETURN(Value one, path.Of(runtime, item, otherwise));
    mapped.push_back(std::move(one));
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(mapped));
}

Result MapFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Items items, ItemsIfTrue(runtime, input));
  if (arguments.positional.empty()) {
    if (arguments.Keyword("attribute") != nullptr) return MapAttribute(runtime, items, arguments);
    return absl::InvalidArgumentError("map requires a filter argument");
  }
  const Value& name = arguments.positional[0];
  const Filter filter = name.IsString() ? FindFilter(name.AsString()) : nullptr;
  if (filter == nullptr && !items.empty())
    return absl::InvalidArgumentError(absl::StrCat(
        "no filter named '", name.IsString() ? name.AsString() : name.TypeName(), "'"));
  const Arguments rest = Without(arguments, 1);
  Items mapped;
  for (const Value& item : items) {
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Step());
    HYDRANT_ASSIGN_OR_RETURN(Value one, filter(runtime, item, rest));
    mapped.push_back(std::move(one));
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(mapped));
}

// Keeps items if their test result, or truth without a test, equals `wanted`.
Result Choose(Runtime* runtime, const Value& input, const Arguments& arguments, bool by_attribute,
              bool wanted) {
  HYDRANT_ASSIGN_OR_RETURN(const Items items, ItemsIfTrue(runtime, input));
  const size_t before_test = by_attribute ? 1 : 0;
  if (arguments.positional.size() < before_test) {
    if (items.empty()) return runtime->budget().NewSequence(Sequence::Kind::kIterator, {});
    return absl::InvalidArgumentError("Missing parameter for attribute name");
  }
  const AttributePath path =
      by_attribute ? AttributePath(arguments.positional[0]) : AttributePath();
  Test test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > before_test) {
    const Value& name = arguments.positional[before_test];
    test = name.IsString() ? FindTest(name.AsString()) : nullptr;
    if (test == nullptr && !items.empty())
      return absl::InvalidArgumentError(absl::StrCat(
          "no test named '", name.IsString() ? name.AsString() : name.TypeName(), "'"));
    rest = Without(arguments, before_test + 1);
  }
  Items kept;
  for (const Value& item : items) {
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Step());
    HYDRANT_ASSIGN_OR_RETURN(const Value part, path.Of(runtime, item));
    bool holds = part.IsTrue();
    if (test != nullptr) {
      HYDRANT_ASSIGN_OR_RETURN(holds, test(runtime, part, rest));
    }
    if (holds == wanted) kept.push_back(item);
  }
  return runtime->budget().NewSequence(Sequence::Kind::kIterator, std::move(kept));
}

Result SelectFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return Choose(runtime, input, arguments, /*by_attribute=*/false, /*wanted=*/true);
}

Result RejectFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return Choose(runtime, input, arguments, /*by_attribute=*/false, /*wanted=*/false);
}

Result SelectAttrFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return Choose(runtime, input, arguments, /*by_attribute=*/true, /*wanted=*/true);
}

Result RejectAttrFilter(Runtime* runtime, const Value& input, const Arguments& arguments) {
  return Choose(runtime, input, arguments, /*by_attribute=*/true, /*wanted=*/false);
}

constexpr NamedFilter kMappingFilters[] = {{"map", MapFilter},
                                           {"reject", RejectFilter},
                                           {"rejectattr", RejectAttrFilter},
                                           {"select", SelectFilter},
                                           {"selectattr", SelectAttrFilter}};

}  // namespace

std::span<const NamedFilter> MappingFilters() { return kMappingFilters; }

}  // namespace hydrant::jinja
