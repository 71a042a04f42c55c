// A chat template in Jinja, rendered as in transformers: its sandbox, whitespace control, tojson,
// raise_exception and strftime_now. Parsed once, immutable, rendered by any number of threads
// concurrently.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_TEMPLATE_H_
#define HYDRANT_ENGINE_TEXT_JINJA_TEMPLATE_H_

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class Template {
 public:
  // InvalidArgument or Unimplemented, "line 3: ...", if the source is invalid or uses an unknown
  // filter, test, function or tag.
  static absl::StatusOr<std::unique_ptr<Template>> Parse(std::string_view source,
                                                         const Limits& limits = {});
  ~Template();

  // `now`: the time of strftime_now(). InvalidArgument if the template raises an exception (with
  // its own message), fails ("line 3: ..."), or exceeds a limit.
  absl::StatusOr<std::string> Render(const Dict& variables, const std::tm& now) const;

 private:
  struct Parsed;
  Template(std::unique_ptr<Parsed> parsed, const Limits& limits);

  const std::unique_ptr<const Parsed> parsed_;
  const Limits limits_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_TEMPLATE_H_
