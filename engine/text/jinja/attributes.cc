#include "engine/text/jinja/attributes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

constexpr std::string_view kChangesList[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kChangesDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <size_t n>
bool IsOneOf(std::string_view name, const std::string_view (&names)[n]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string_view name, Method method)
      : self_(std::move(self)), name_(name), method_(method) {
    extent_.Add(self_.GetExtent());
  }

  std::string TypeName() const override { return "builtin_function_or_method"; }
  bool IsCallable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime* runtime, const Arguments& arguments) override {
    return method_(runtime, self_, arguments);
  }
  std::string Repr() const override {
    return absl::StrCat("<built-in method ", name_, " of ", self_.TypeName(), " object>");
  }

 private:
  const Value self_;
  const std::string name_;
  const Method method_;
};

absl::StatusOr<Value> IsWholeFloat(Runtime*, const Value& self, const Arguments&) {
  return Value(std::trunc(self.AsDouble()) == self.AsDouble() && std::isfinite(self.AsDouble()));
}

Method FindMethod(const Value& object, std::string_view name) {
  if (object.IsString()) return FindStringMethod(name);
  if (object.AsDict() != nullptr) return FindDictMethod(name);
  if (const Sequence* sequence = object.AsSequence(); sequence != nullptr && sequence->HasIndex()) {
    const bool has_copy = sequence->kind() == Sequence::Kind::kList;
    return name == "copy" && !has_copy ? nullptr : FindSequenceMethod(name);
  }
  if (object.IsFloat() && name == "is_integer") return IsWholeFloat;
  return nullptr;
}

bool IsUnsafe(const Value& object, std::string_view name) {
  const Sequence* sequence = object.AsSequence();
  if (sequence != nullptr && sequence->kind() == Sequence::Kind::kList)
    return IsOneOf(name, kChangesList);
  return object.AsDict() != nullptr && IsOneOf(name, kChangesDict);
}

// nullopt if the object has no such attribute.
std::optional<Value> FindAttribute(const Value& object, std::string_view name) {
  if (IsUnsafe(object, name)) {
    return Value::UndefinedBecause(absl::StrCat("access to attribute '", std::string(name),
                                                "' of '", object.TypeName(),
                                                "' object is unsafe."));
  }
  if (Object* other = object.AsObject()) {
    Value found = other->Attribute(name);
    return found.IsUndefined() ? std::optional<Value>() : found;
  }
  const Method method = FindMethod(object, name);
  if (method == nullptr) return std::nullopt;
  return Value(std::shared_ptr<Object>(std::make_shared<BoundMethod>(object, name, method)));
}

Value NoAttribute(const Value& object, std::string_view name) {
  return Value::UndefinedBecause(
      absl::StrCat("'", object.IsNone() ? "None" : absl::StrCat(object.TypeName(), " object"),
                   "' has no attribute '", std::string(name), "'"));
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Runtime* runtime, const Value& object, std::string_view name) {
  if (object.IsUndefined()) return UndefinedError(object);
  if (std::optional<Value> found = FindAttribute(object, name)) return *found;
  if (const Dict* dict = object.AsDict()) {
    HYDRANT_RETURN_IF_ERROR(runtime->budget().Step());
    if (const Value* item = dict->Find(name)) return *item;
  }
  return NoAttribute(object, name);
}

absl::StatusOr<Value> GetItem(Runtime* runtime, const Value& object, const Value& index) {
  HYDRANT_ASSIGN_OR_RETURN(std::optional<Value> item, Index(&runtime->budget(), object, index));
  if (item.has_value()) return *std::move(item);
  if (index.IsString()) {
    std::optional<Value> found = FindAttribute(object, index.AsString());
    return found.has_value() ? *found : NoAttribute(object, index.AsString());
  }
  HYDRANT_ASSIGN_OR_RETURN(const std::string text, Repr(&runtime->budget(), index));
  return Value::UndefinedBecause(
      absl::StrCat(object.IsNone() ? "None" : object.TypeName(), " object has no element ", text));
}

}  // namespace hydrant::jinja
