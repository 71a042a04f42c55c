// Arguments of a call, and their binding to a function's parameters.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_ARGUMENTS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_ARGUMENTS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  const Value* Keyword(std::string_view name) const;  // null: not given
};

// The values of the named parameters, in order, bound by position or by name as in Python; a
// missing argument has no value. An error names the surplus argument. `function` is for the
// message.
class Bound {
 public:
  static absl::StatusOr<Bound> Bind(std::string_view function, const Arguments& arguments,
                                    std::initializer_list<std::string_view> parameters,
                                    size_t required);

  bool Has(size_t parameter) const { return given_[parameter]; }
  // Undefined if it was not given.
  const Value& operator[](size_t parameter) const { return values_[parameter]; }

  // The default if it was not given; InvalidArgument if it has another type.
  absl::StatusOr<int64_t> Int(size_t parameter, int64_t otherwise) const;
  absl::StatusOr<std::string> String(size_t parameter, std::string otherwise) const;
  bool True(size_t parameter, bool otherwise) const;

 private:
  explicit Bound(std::string_view function) : function_(function) {}

  std::string function_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_ARGUMENTS_H_
