#include "engine/text/jinja/template.h"

#include "engine/text/jinja/evaluator.h"
#include "engine/text/jinja/parser.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {

struct Template::Parsed {
  Body body;
};

Template::Template(std::unique_ptr<Parsed> parsed, const Limits& limits)
    : parsed_(std::move(parsed)), limits_(limits) {}

Template::~Template() = default;

absl::StatusOr<std::unique_ptr<Template>> Template::Parse(std::string_view source,
                                                          const Limits& limits) {
  HYDRANT_RETURN_IF_ERROR(ValidateUtf8(source));
  auto parsed = std::make_unique<Parsed>();
  HYDRANT_ASSIGN_OR_RETURN(parsed->body, ParseTemplate(source, limits));
  return std::unique_ptr<Template>(new Template(std::move(parsed), limits));
}

absl::StatusOr<std::string> Template::Render(const Dict& variables, const std::tm& now) const {
  Runtime runtime(limits_, now);
  Evaluator evaluator(&runtime, variables);
  return evaluator.Render(parsed_->body);
}

}  // namespace hydrant::jinja
