#include "engine/text/grammar/grammar_text.h"

#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/grammar/ebnf_text.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/pattern.h"
#include "engine/text/grammar/pattern_text.h"
#include "engine/text/grammar/schema_check.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status FieldError(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckText(const std::string& field, std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return FieldError(
        field, absl::StrCat("has ", text.size(), " bytes, at most ", max_bytes, " are read"));
  }
  if (const absl::Status status = ValidateUtf8(text); !status.ok()) {
    return FieldError(field, std::string(status.message()));
  }
  // The library treats it as the end of the text.
  if (text.find('\0') != text.npos) return FieldError(field, "contains a null character");
  return absl::OkStatus();
}

struct Translator {
  const GrammarLimits& limits;

  absl::StatusOr<GrammarText> operator()(const AnyJsonObject& object) const {
    return (*this)(JsonSchema{R"({"type":"object"})", object.max_whitespace});
  }
  absl::StatusOr<GrammarText> operator()(const JsonSchema& schema) const {
    HYDRANT_RETURN_IF_ERROR(CheckText("json_schema", schema.text, limits.schema_bytes));
    absl::StatusOr<CheckedSchema> checked = CheckSchema(schema.text, limits.regex_bytes);
    if (!checked.ok()) return FieldError("json_schema", std::string(checked.status().message()));
    return GrammarText{GrammarLanguage::kJsonSchema, "json_schema", std::move(checked->text),
                       schema.max_whitespace, std::move(checked->places)};
  }
  absl::StatusOr<GrammarText> operator()(const RegexPattern& regex) const {
    HYDRANT_RETURN_IF_ERROR(CheckText("regex", regex.pattern, limits.regex_bytes));
    absl::StatusOr<Pattern> pattern = ParsePattern(regex.pattern);
    absl::Status status = pattern.status();
    if (status.ok()) status = ResolveAnchors(PatternMatch::kWhole, &*pattern);
    if (!status.ok()) return FieldError("regex", std::string(status.message()));
    return GrammarText{GrammarLanguage::kEbnf, "regex", "root ::= " + EbnfOf(*pattern)};
  }
  absl::StatusOr<GrammarText> operator()(const Choice& choice) const {
    if (choice.texts.empty()) return FieldError("choice", "is empty");
    std::string grammar;
    size_t bytes = 0;
    for (const std::string& text : choice.texts) {
      HYDRANT_RETURN_IF_ERROR(CheckText("choice", text, limits.schema_bytes));
      absl::StrAppend(&grammar, grammar.empty() ? "root ::= " : " | ", EbnfString(text));
      // One for the list entry: there may be many short ones.
      bytes += text.size() + 1;
      if (bytes > limits.schema_bytes) {
        return FieldError("choice",
                          absl::StrCat("has more than ", limits.schema_bytes, " bytes in all"));
      }
    }
    return GrammarText{GrammarLanguage::kEbnf, "choice", std::move(grammar)};
  }
  absl::StatusOr<GrammarText> operator()(const EbnfGrammar& grammar) const {
    HYDRANT_RETURN_IF_ERROR(CheckText("grammar", grammar.text, limits.grammar_bytes));
    absl::StatusOr<std::string> ebnf = EbnfOfGbnf(grammar.text);
    if (!ebnf.ok()) return FieldError("grammar", std::string(ebnf.status().message()));
    return GrammarText{GrammarLanguage::kEbnf, "grammar", *std::move(ebnf)};
  }
};

}  // namespace

absl::StatusOr<GrammarText> TextOf(const StructuredOutput& output, const GrammarLimits& limits) {
  return std::visit(Translator{limits}, output);
}

std::string OneLine(std::string_view message) {
  constexpr size_t kLimit = 300;
  std::string line(message.substr(0, kLimit));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return message.size() > kLimit ? line + "..." : line;
}

}  // namespace hydrant
