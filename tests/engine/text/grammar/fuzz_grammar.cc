// Uses arbitrary bytes as a structured output: an error, or a grammar with consistent masks and
// tokens; no crash, within bounded time. The first byte chooses the kind.
#include <cstdlib>

#include "engine/text/grammar/grammar_compiler.h"
#include "tests/engine/text/grammar/small_vocabulary.h"

namespace {

using namespace hydrant;  // NOLINT(google-build-using-namespace): a fuzzer

GrammarCompiler& Compiler() {
  static GrammarCompiler* const compiler = [] {
    GrammarLimits limits;
    limits.schema_bytes = limits.grammar_bytes = limits.regex_bytes = 4096;
    limits.automaton_steps = 1'000'000;
    limits.compile_steps = 3'000'000;
    limits.mask_steps = 20'000;
    limits.accept_steps = 10'000;
    limits.cached_bytes = 0;
    return GrammarCompiler::Create(SmallVocabulary(), limits)->release();
  }();
  return *compiler;
}

StructuredOutput OutputOf(char kind, std::string text) {
  switch (kind % 4) {
    case 0:
      return JsonSchema{std::move(text)};
    case 1:
      return RegexPattern{std::move(text)};
    case 2:
      return EbnfGrammar{std::move(text)};
    default:
      return Choice{{text.substr(0, text.size() / 2), text}};
  }
}

// The text selects the tokens: the n-th allowed one.
void Walk(TokenConstraint* constraint, const std::string& text) {
  std::vector<uint32_t> words(Compiler().MaskWords());
  for (size_t i = 0; i < 24; ++i) {
    const NextTokens next = constraint->FillMask(words);
    if (next == NextTokens::kNone || next == NextTokens::kTooCostly || next == NextTokens::kEnd)
      return;
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < 32 * words.size(); ++id) {
      if ((words[id / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) std::abort();
    const TokenId token =
        allowed[(static_cast<unsigned char>(text[i % text.size()]) + 7 * i) % allowed.size()];
    const bool accepted = constraint->Accept(token);
    if (!accepted && constraint->FillMask(words) != NextTokens::kTooCostly) std::abort();
    if (!accepted || token == kSmallVocabularyEnd) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto compiled = Compiler().Compile(OutputOf(static_cast<char>(data[0]), text));
  if (!compiled.ok()) {
    if (!absl::IsInvalidArgument(compiled.status())) std::abort();
    return 0;
  }
  Walk((*compiled)->NewConstraint().get(), text);
  return 0;
}
