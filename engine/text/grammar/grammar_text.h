// Converts a structured output to a language of the grammar library, within the limits. Pure
// functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_GRAMMAR_TEXT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_GRAMMAR_TEXT_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "engine/text/grammar/structured_output.h"

namespace hydrant {

enum class GrammarLanguage { kJsonSchema, kEbnf };

struct GrammarText {
  GrammarLanguage language = GrammarLanguage::kEbnf;
  const char* field = "";  // of the request, for messages
  std::string text;
  std::optional<int> max_whitespace{};          // of JSON text; unset: the text is not JSON
  std::map<std::string, std::string> places{};  // CheckedSchema::places
};

// InvalidArgument names the field.
absl::StatusOr<GrammarText> TextOf(const StructuredOutput& output, const GrammarLimits& limits);

// A message of the library as one line of bounded length.
std::string OneLine(std::string_view message);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_GRAMMAR_TEXT_H_
