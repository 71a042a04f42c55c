// The non-modifying methods of dicts, lists and tuples.
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/operators.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

absl::StatusOr<Value> View(Runtime* runtime, const Value& self, const Arguments& arguments,
                           Sequence::Kind kind) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("the dict's method", arguments, {}, 0).status());
  std::vector<Value> items;
  for (const auto& [key, value] : self.AsDict()->entries()) {
    if (kind == Sequence::Kind::kItems) {
      HYDRANT_ASSIGN_OR_RETURN(Value pair,
                               runtime->budget().NewSequence(Sequence::Kind::kTuple, {key, value}));
      items.push_back(std::move(pair));
    } else {
      items.push_back(kind == Sequence::Kind::kKeys ? key : value);
    }
  }
  return runtime->budget().NewSequence(kind, std::move(items));
}

absl::StatusOr<Value> Keys(Runtime* runtime, const Value& self, const Arguments& arguments) {
  return View(runtime, self, arguments, Sequence::Kind::kKeys);
}

absl::StatusOr<Value> Values(Runtime* runtime, const Value& self, const Arguments& arguments) {
  return View(runtime, self, arguments, Sequence::Kind::kValues);
}

absl::StatusOr<Value> ItemsOfDict(Runtime* runtime, const Value& self, const Arguments& arguments) {
  return View(runtime, self, arguments, Sequence::Kind::kItems);
}

absl::StatusOr<Value> Get(Runtime* runtime, const Value& self, const Arguments& arguments) {
  if (!arguments.keywords.empty()) return TypeError("dict.get() takes no keyword arguments");
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("get()", arguments, {"key", "default"}, 1));
  HYDRANT_RETURN_IF_ERROR(CheckHashable(bound[0]));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(bound[0]));
  if (const Value* found = self.AsDict()->Find(bound[0])) return *found;
  return bound.Has(1) ? bound[1] : Value(None{});
}

absl::StatusOr<Value> Copy(Runtime*, const Value& self, const Arguments& arguments) {
  HYDRANT_RETURN_IF_ERROR(Bound::Bind("copy()", arguments, {}, 0).status());
  return self;  // immutable, so no copy
}

absl::StatusOr<Value> Count(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("count()", arguments, {"value"}, 1));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  int64_t count = 0;
  for (const Value& item : self.AsSequence()->items()) count += Equal(item, bound[0]) ? 1 : 0;
  return Value(count);
}

absl::StatusOr<Value> IndexOf(Runtime* runtime, const Value& self, const Arguments& arguments) {
  HYDRANT_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::Bind("index()", arguments, {"value", "start", "stop"}, 1));
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(self));
  const std::vector<Value>& items = self.AsSequence()->items();
  const auto length = static_cast<int64_t>(items.size());
  HYDRANT_ASSIGN_OR_RETURN(int64_t start, bound.Int(1, 0));
  HYDRANT_ASSIGN_OR_RETURN(int64_t stop, bound.Int(2, length));
  if (start < 0) start = std::max<int64_t>(start + length, 0);
  if (stop < 0) stop += length;
  for (int64_t i = start; i < std::min(stop, length); ++i) {
    if (Equal(items[static_cast<size_t>(i)], bound[0])) return Value(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(self.TypeName(), ".index(x): x not in ", self.TypeName()));
}

template <size_t n>
Method Find(const NamedMethod (&methods)[n], std::string_view name) {
  for (const NamedMethod& one : methods) {
    if (one.name == name) return one.method;
  }
  return nullptr;
}

}  // namespace

Method FindDictMethod(std::string_view name) {
  static constexpr NamedMethod kMethods[] = {
      {"copy", Copy}, {"get", Get}, {"items", ItemsOfDict}, {"keys", Keys}, {"values", Values}};
  return Find(kMethods, name);
}

Method FindSequenceMethod(std::string_view name) {
  static constexpr NamedMethod kMethods[] = {{"copy", Copy}, {"count", Count}, {"index", IndexOf}};
  return Find(kMethods, name);
}

}  // namespace hydrant::jinja
