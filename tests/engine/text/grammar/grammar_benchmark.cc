// Cost of a constraint per token: FillMask() and Accept() along a JSON text, and compilation. The
// vocabulary is random, with about the token lengths of English.
#include <benchmark/benchmark.h>

#include <random>

#include "engine/text/grammar/grammar_compiler.h"

namespace hydrant {
namespace {

constexpr char kSchema[] = R"({"type":"object","properties":{
  "name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
  "tags":{"type":"array","items":{"type":"string"}},
  "address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}}}},
  "required":["name","age","tags"]})";
constexpr char kText[] =
    R"({"name": "Ada Lovelace", "age": 36, "tags": ["first", "second"], "address": {"street": "St James's Square", "zip": "12345"}})";

GrammarVocabulary DrawnVocabulary(int size) {
  GrammarVocabulary vocabulary;
  std::mt19937 random(1);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  }
  while (static_cast<int>(vocabulary.token_bytes.size()) < size - 1) {
    std::string text = draw(0, 1) == 0 ? " " : "";
    const int kind = draw(0, 19), length = draw(2, 9);
    for (int i = 0; i < length; ++i) {
      if (kind == 0) {
        text += static_cast<char>(draw('0', '9'));
      } else if (kind == 1) {
        text += "{}[]\":,.()\n "[draw(0, 11)];
      } else if (kind == 2) {
        text += {'\xE4', static_cast<char>(draw(0xB8, 0xBF)), static_cast<char>(draw(0x80, 0xBF))};
      } else {
        text += static_cast<char>(draw('a', 'z'));
      }
    }
    vocabulary.token_bytes.push_back(std::move(text));
  }
  vocabulary.token_bytes.emplace_back();
  vocabulary.eog_ids = {static_cast<TokenId>(size - 1)};
  return vocabulary;
}

GrammarLimits WithoutCache() {
  GrammarLimits limits;
  limits.cached_bytes = 0;
  return limits;
}

// One iteration is a text with one token per byte; the reported time is per token.
void Tokens(benchmark::State& state) {
  const auto compiler =
      *GrammarCompiler::Create(DrawnVocabulary(static_cast<int>(state.range(0))), GrammarLimits());
  const auto compiled = *compiler->Compile(JsonSchema{kSchema});
  std::vector<uint32_t> words(compiler->MaskWords());
  const std::string text = kText;
  for ([[maybe_unused]] auto _ : state) {
    const auto constraint = compiled->NewConstraint();
    for (const char c : text) {
      benchmark::DoNotOptimize(constraint->FillMask(words));
      if (!constraint->Accept(static_cast<unsigned char>(c))) state.SkipWithError("not admitted");
    }
  }
  state.counters["per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * text.size()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(Tokens)->Arg(50'000)->Arg(150'000)->Unit(benchmark::kMicrosecond);

void Compile(benchmark::State& state, const char* schema) {
  const auto compiler =
      *GrammarCompiler::Create(DrawnVocabulary(static_cast<int>(state.range(0))), WithoutCache());
  for ([[maybe_unused]] auto _ : state) {
    const auto compiled = compiler->Compile(JsonSchema{schema});
    if (!compiled.ok()) state.SkipWithError(compiled.status().ToString().c_str());
  }
}
BENCHMARK_CAPTURE(Compile, object, kSchema)
    ->Arg(50'000)
    ->Arg(150'000)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Compile, max_length_255, R"({"type":"string","maxLength":255})")
    ->Arg(50'000)
    ->Arg(150'000)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hydrant
