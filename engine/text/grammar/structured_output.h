// The requested form of a request's text. Plain data; GrammarCompiler validates it.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_STRUCTURED_OUTPUT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_STRUCTURED_OUTPUT_H_

#include <string>
#include <variant>
#include <vector>

namespace hydrant {

// Maximum white space between two tokens of a JSON text. Without a limit some models emit white
// space endlessly. 24 allows lines indented by ten levels of two spaces.
inline constexpr int kDefaultMaxWhitespace = 24;

// Any JSON object (OpenAI's "json_object").
struct AnyJsonObject {
  int max_whitespace = kDefaultMaxWhitespace;  // at least 0
  bool operator==(const AnyJsonObject&) const = default;
};

// JSON described by a schema. Properties and items that it does not name are excluded.
struct JsonSchema {
  std::string text;
  int max_whitespace = kDefaultMaxWhitespace;  // at least 0
  bool operator==(const JsonSchema&) const = default;
};

// Text that a regular expression (ECMAScript syntax) matches as a whole.
struct RegexPattern {
  std::string pattern;
  bool operator==(const RegexPattern&) const = default;
};

// One of these texts.
struct Choice {
  std::vector<std::string> texts;
  bool operator==(const Choice&) const = default;
};

// Text derived from the rule `root` of a grammar in GBNF, the EBNF of llama.cpp and XGrammar.
struct EbnfGrammar {
  std::string text;
  bool operator==(const EbnfGrammar&) const = default;
};

using StructuredOutput = std::variant<AnyJsonObject, JsonSchema, RegexPattern, Choice, EbnfGrammar>;

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_STRUCTURED_OUTPUT_H_
