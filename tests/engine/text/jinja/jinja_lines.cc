// Renders templates for compare_templates.py: reads JSON lines {"template", "variables"} from
// stdin, writes {"text"} or {"error"} for each to stdout. The time is fixed at 2024-07-26 13:45:06.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/jinja/json.h"
#include "engine/text/jinja/template.h"
#include "tests/engine/text/jinja/fixed_time.h"

namespace hydrant::jinja {
namespace {

absl::StatusOr<std::string> RenderLine(const nlohmann::json& line) {
  const auto parsed = Template::Parse(line["template"].get<std::string>());
  if (!parsed.ok()) return parsed.status();
  const auto variables = ParseJson(line["variables"].get<std::string>(), Limits());
  if (!variables.ok()) return variables.status();
  return (*parsed)->Render(*variables->AsDict(), FixedTime());
}

}  // namespace
}  // namespace hydrant::jinja

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = hydrant::jinja::RenderLine(nlohmann::json::parse(line));
    nlohmann::json answer;
    if (text.ok()) {
      answer["text"] = *text;
    } else {
      answer["error"] = std::string(text.status().message());
    }
    std::cout << answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
  }
}
