// Parses arbitrary bytes as a chat template, with a fixed conversation: an error or a text within
// the limits, never a crash.
#include <cstdlib>

#include "engine/text/jinja/json.h"
#include "engine/text/jinja/template.h"
#include "engine/text/unicode/utf8.h"
#include "tests/engine/text/jinja/fixed_time.h"

namespace hydrant::jinja {
namespace {

constexpr char kVariables[] =
    R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":" Zürich? \n"},
    {"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f",
    "arguments":{"a":[1,2.5,null,true]}}}]},{"role":"tool","content":"42"}],"tools":[{"type":
    "function","function":{"name":"f","parameters":{"type":"object"}}}],"bos_token":"<s>",
    "eos_token":"</s>","add_generation_prompt":true})";

// Small enough for many runs per second.
Limits SmallLimits() {
  Limits limits;
  limits.max_steps = 20000;
  limits.max_allocated_bytes = 4 << 20;
  limits.max_value_bytes = 1 << 20;
  limits.max_output_bytes = 1 << 20;
  limits.max_depth = 100;
  limits.max_range = 1000;
  return limits;
}

}  // namespace
}  // namespace hydrant::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hydrant::jinja;  // NOLINT(google-build-using-namespace): of one function
  static const Value variables = *ParseJson(kVariables, Limits());
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = Template::Parse(source, SmallLimits());
  if (!parsed.ok()) return 0;
  const auto text = (*parsed)->Render(*variables.AsDict(), FixedTime());
  if (text.ok() && !hydrant::ValidateUtf8(*text).ok()) std::abort();
  return 0;
}
