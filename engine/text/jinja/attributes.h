// object.name and object[name] as in Jinja's sandbox, including methods of strings, lists and
// dicts. Methods that would modify a list or dict are refused, as in transformers' environment.
// Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_ATTRIBUTES_H_
#define HYDRANT_ENGINE_TEXT_JINJA_ATTRIBUTES_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/runtime.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

// The attribute first, then the item. Undefined if neither exists.
absl::StatusOr<Value> GetAttribute(Runtime* runtime, const Value& object, std::string_view name);
// The item first, then, if `index` is a string, the attribute.
absl::StatusOr<Value> GetItem(Runtime* runtime, const Value& object, const Value& index);

// A method of a type; `self` has that type.
using Method = absl::StatusOr<Value> (*)(Runtime* runtime, const Value& self,
                                         const Arguments& arguments);
struct NamedMethod {
  std::string_view name;
  Method method;
};
Method FindStringMethod(std::string_view name);  // null: there is none
Method FindDictMethod(std::string_view name);
Method FindSequenceMethod(std::string_view name);  // of lists and tuples

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_ATTRIBUTES_H_
