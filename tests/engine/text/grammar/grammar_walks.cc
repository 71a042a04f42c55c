// Random texts that a structured output admits. Reads requests as JSON lines, writes an answer for
// each:
//   {"kind": "json_schema" | "regex" | "grammar" | "choice" | "json_object",
//    "text": ..., "seed": 1, "walks": 3}
//   {"error": ""}, or
//   {"error": "", "texts": [{"hex": ..., "end": "complete" | "open" | "none" | "costly"}]}
// Not a test: judge_walks.py drives it.
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/text/grammar/grammar_compiler.h"
#include "tests/engine/text/grammar/small_vocabulary.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

constexpr int kMaxTokens = 400;

StructuredOutput OutputOf(const Json& request) {
  const std::string kind = request.at("kind");
  if (kind == "json_schema") return JsonSchema{request.at("text")};
  if (kind == "regex") return RegexPattern{request.at("text")};
  if (kind == "grammar") return EbnfGrammar{request.at("text")};
  if (kind == "choice") return Choice{request.at("text")};
  return AnyJsonObject{};
}

std::string Hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    hex.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return hex;
}

class Walker {
 public:
  Walker(const GrammarVocabulary* vocabulary, uint32_t seed, size_t words)
      : vocabulary_(*vocabulary), random_(seed), words_(words) {}

  Json Walk(TokenConstraint* constraint) {
    std::string text;
    for (int length = 0; length < kMaxTokens; ++length) {
      const NextTokens next = constraint->FillMask(words_);
      if (next == NextTokens::kEnd) return Answer(text, "complete");
      if (next == NextTokens::kNone) return Answer(text, "none");
      if (next == NextTokens::kTooCostly) return Answer(text, "costly");
      const TokenId token = Draw(length);
      if (!constraint->Accept(token)) {
        const bool costly = constraint->FillMask(words_) == NextTokens::kTooCostly;
        return Answer(text, costly ? "costly" : "refused");
      }
      if (token == kSmallVocabularyEnd) return Answer(text, "complete");
      text += vocabulary_.token_bytes[token];
    }
    return Answer(text, constraint->IsComplete() ? "complete" : "open");
  }

 private:
  static Json Answer(const std::string& text, const char* end) {
    return {{"hex", Hex(text)}, {"end", end}};
  }

  // A random allowed token; the longer the text, the more likely one that closes something.
  TokenId Draw(int length) {
    std::vector<TokenId> all, closing;
    for (TokenId id = 0; id < vocabulary_.token_bytes.size(); ++id) {
      if ((words_[id / 32] >> (id % 32) & 1) == 0) continue;
      all.push_back(id);
      const std::string& bytes = vocabulary_.token_bytes[id];
      if (bytes.empty() || bytes == "}" || bytes == "]" || bytes == "\"" || bytes == ":")
        closing.push_back(id);
    }
    const bool close = std::uniform_int_distribution<int>(0, 60)(random_) < 8 + length;
    const std::vector<TokenId>& from = close && !closing.empty() ? closing : all;
    return from[std::uniform_int_distribution<size_t>(0, from.size() - 1)(random_)];
  }

  const GrammarVocabulary& vocabulary_;
  std::mt19937 random_;
  std::vector<uint32_t> words_;
};

int Main() {
  const GrammarVocabulary vocabulary = SmallVocabulary();
  const auto compiler = GrammarCompiler::Create(vocabulary, GrammarLimits());
  if (!compiler.ok()) {
    std::cerr << compiler.status() << "\n";
    return 1;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line);
    const auto compiled = (*compiler)->Compile(OutputOf(request));
    Json answer = {{"error", std::string(compiled.status().message())}};
    if (compiled.ok()) {
      Walker walker(&vocabulary, request.at("seed"), (*compiler)->MaskWords());
      for (int i = 0; i < request.at("walks"); ++i) {
        answer["texts"].push_back(walker.Walk((*compiled)->NewConstraint().get()));
      }
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace hydrant

int main() { return hydrant::Main(); }
