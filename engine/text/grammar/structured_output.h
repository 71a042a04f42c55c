// The form that a request wants its text in. Plain data, unchecked: GrammarCompiler checks.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_STRUCTURED_OUTPUT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_STRUCTURED_OUTPUT_H_

#include <string>
#include <variant>
#include <vector>

namespace hydrant {

// Most white space characters between two tokens of a JSON text. Without a limit some models write
// white space for ever. 24 is enough for lines that are indented by ten levels of two spaces.
inline constexpr int kDefaultMaxWhitespace = 24;

// Any JSON object (OpenAI's "json_object").
struct AnyJsonObject {
  int max_whitespace = kDefaultMaxWhitespace;  // at least 0
  bool operator==(const AnyJsonObject&) const = default;
};

// JSON that a schema describes. Properties and items that it does not name are left out.
struct JsonSchema {
  std::string text;
  int max_whitespace = kDefaultMaxWhitespace;  // at least 0
  bool operator==(const JsonSchema&) const = default;
};

// Text that a regular expression matches from its beginning to its end (ECMAScript's syntax).
struct RegexPattern {
  std::string pattern;
  bool operator==(const RegexPattern&) const = default;
};

// One of these texts.
struct Choice {
  std::vector<std::string> texts;
  bool operator==(const Choice&) const = default;
};

// Text that follows from `root` of a grammar in GBNF, the EBNF of llama.cpp and XGrammar.
struct EbnfGrammar {
  std::string text;
  bool operator==(const EbnfGrammar&) const = default;
};

using StructuredOutput = std::variant<AnyJsonObject, JsonSchema, RegexPattern, Choice, EbnfGrammar>;

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_STRUCTURED_OUTPUT_H_
