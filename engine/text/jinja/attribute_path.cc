#include "engine/text/jinja/attribute_path.h"

#include <algorithm>
#include <charconv>

#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/code_points.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

Value PathPart(std::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  int64_t index = 0;
  if (digits && std::from_chars(text.data(), text.data() + text.size(), index).ec == std::errc())
    return Value(index);
  return Value::String(std::string(text));
}

}  // namespace

AttributePath::AttributePath(const Value& path) {
  if (path.IsIntegral()) parts_.push_back(path);
  if (!path.IsString()) return;
  std::string_view rest = path.AsString();
  while (true) {
    const size_t dot = rest.find('.');
    parts_.push_back(PathPart(rest.substr(0, dot)));
    if (dot == std::string_view::npos) return;
    rest.remove_prefix(dot + 1);
  }
}

absl::StatusOr<Value> AttributePath::Of(Runtime* runtime, Value value,
                                        const Value* otherwise) const {
  for (const Value& part : parts_) {
    HYDRANT_ASSIGN_OR_RETURN(value, GetItem(runtime, value, part));
    if (otherwise != nullptr && value.IsUndefined()) value = *otherwise;
  }
  return value;
}

absl::StatusOr<Value> SortKey(Runtime* runtime, const AttributePath& path, const Value& value,
                              bool ignore_case) {
  HYDRANT_ASSIGN_OR_RETURN(const Value key, path.Of(runtime, value));
  if (!ignore_case || !key.IsString()) return key;
  HYDRANT_RETURN_IF_ERROR(runtime->budget().Walk(key));
  return runtime->budget().NewString(Lower(key.AsString()));
}

}  // namespace hydrant::jinja
