// An attribute path such as "function.name" or 0, as filters like map and sort accept it: nested
// attributes, with numbers as indices. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_ATTRIBUTE_PATH_H_
#define HYDRANT_ENGINE_TEXT_JINJA_ATTRIBUTE_PATH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/runtime.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class AttributePath {
 public:
  AttributePath() = default;  // the value itself
  // `path` is a string, an integer, or none for the value itself.
  explicit AttributePath(const Value& path);

  // An undefined value on the path becomes `*otherwise`, if given.
  absl::StatusOr<Value> Of(Runtime* runtime, Value value, const Value* otherwise = nullptr) const;

 private:
  std::vector<Value> parts_;
};

// A key for sorting or comparing values: lower case if `ignore_case` and it is a string.
absl::StatusOr<Value> SortKey(Runtime* runtime, const AttributePath& path, const Value& value,
                              bool ignore_case);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_ATTRIBUTE_PATH_H_
