// A chat template in Jinja's language, as transformers renders it: its sandbox, its whitespace
// control, its tojson, raise_exception and strftime_now. Parsed once, immutable, and rendered by
// any number of threads at the same time.
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
  // InvalidArgument or Unimplemented, "line 3: ...", where the source is wrong or asks for what is
  // not there: a filter, a test, a function, a tag.
  static absl::StatusOr<std::unique_ptr<Template>> Parse(std::string_view source,
                                                         const Limits& limits = {});
  ~Template();

  // `now` is what strftime_now() tells. InvalidArgument where the template raises an exception
  // (the message is its own), fails at something ("line 3: ..."), or goes over a limit.
  absl::StatusOr<std::string> Render(const Dict& variables, const std::tm& now) const;

 private:
  struct Parsed;
  Template(std::unique_ptr<Parsed> parsed, const Limits& limits);

  const std::unique_ptr<const Parsed> parsed_;
  const Limits limits_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_TEMPLATE_H_
