#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "engine/text/grammar/grammar_text.h"
#include "engine/text/grammar/json_white_space.h"
#include "engine/text/grammar/large_stack.h"
#include "engine/text/grammar/recently_used.h"
#include "engine/text/grammar/xgrammar_constraint.h"
#include "engine/text/grammar/xgrammar_guard.h"
#include "kernels/mutex.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// The library may recurse some thousand calls deep.
constexpr size_t kStackBytes = 256 << 20;

class XgrammarCompiled final : public CompiledGrammar {
 public:
  explicit XgrammarCompiled(ConstraintParts parts)
      : parts_(std::make_shared<const ConstraintParts>(std::move(parts))) {}

  std::unique_ptr<TokenConstraint> NewConstraint() const override {
    return MakeXgrammarConstraint(parts_);
  }
  size_t MemoryBytes() const override {
    return parts_->grammar.MemorySizeBytes() +
           (parts_->first.has_value() ? parts_->first->words.size() * sizeof(uint32_t) : 0);
  }

 private:
  const std::shared_ptr<const ConstraintParts> parts_;
};

using Compiled = std::shared_ptr<const CompiledGrammar>;

class XgrammarCompiler final : public GrammarCompiler {
 public:
  XgrammarCompiler(xgrammar::TokenizerInfo tokenizer, std::shared_ptr<const MaskShape> shape,
                   const GrammarLimits& limits)
      : tokenizer_(std::move(tokenizer)),
        shape_(std::move(shape)),
        limits_(limits),
        cache_(limits.cached_bytes) {}

  size_t MaskWords() const override { return shape_->text_words.size(); }

  absl::StatusOr<Compiled> Compile(const StructuredOutput& output) override {
    HYDRANT_ASSIGN_OR_RETURN(const GrammarText text, TextOf(output, limits_));
    const std::string key = absl::StrCat(static_cast<int>(text.language), ",",
                                         text.max_whitespace.value_or(-1), ",", text.text);
    if (std::optional<Compiled> known = Known(key)) return *std::move(known);
    const MutexLock one_at_a_time(compiling_);
    if (std::optional<Compiled> known = Known(key)) return *std::move(known);
    absl::StatusOr<Compiled> compiled = absl::InternalError("not compiled");
    HYDRANT_RETURN_IF_ERROR(RunOnLargeStack(kStackBytes, [&] { compiled = CompileText(text); }));
    if (!compiled.ok()) {
      return absl::Status(
          compiled.status().code(),
          absl::StrCat(text.field, ": ", OneLine(std::string(compiled.status().message()))));
    }
    const MutexLock lock(cache_mutex_);
    cache_.Insert(key, *compiled, (*compiled)->MemoryBytes());
    return compiled;
  }

 private:
  std::optional<Compiled> Known(const std::string& key) {
    const MutexLock lock(cache_mutex_);
    return cache_.Find(key);
  }

  absl::StatusOr<Compiled> CompileText(const GrammarText& text) const {
    grammar_warning.clear();
    std::optional<xgrammar::CompiledGrammar> compiled;
    std::optional<xgrammar::Grammar> grammar;
    // First without tokens: automata may be quadratic in their source, and their steps take more
    // memory than those of masks.
    absl::Status status = CallXgrammar(limits_.automaton_steps, [&] {
      grammar = Read(text);
      xgrammar::GrammarCompiler(no_tokens_, /*max_threads=*/1, /*cache_enabled=*/false)
          .CompileGrammar(*grammar);
    });
    // Disables the library's caches, so that steps do not depend on earlier compilations.
    if (status.ok()) {
      status = CallXgrammar(limits_.compile_steps, [&] {
        compiled = xgrammar::GrammarCompiler(tokenizer_, /*max_threads=*/1, /*cache_enabled=*/false)
                       .CompileGrammar(*grammar);
      });
    }
    if (absl::IsResourceExhausted(status)) {
      return absl::InvalidArgumentError(
          absl::StrCat("is too large to compile: it ", status.message()));
    }
    // The library ignores anything that it warns about.
    if (status.ok() && !grammar_warning.empty())
      status = absl::InvalidArgumentError(grammar_warning);
    if (!status.ok()) return InOurWords(status, text);
    ConstraintParts parts = {*std::move(compiled), shape_, limits_, text.max_whitespace};
    HYDRANT_ASSIGN_OR_RETURN(parts.first, MakeFirstMask(parts));
    return std::make_shared<XgrammarCompiled>(std::move(parts));
  }

  // The library's errors name no place in a schema. CheckSchema() finds most faults first and names
  // their places.
  static absl::Status InOurWords(const absl::Status& status, const GrammarText& text) {
    constexpr std::string_view kTooComplex = "is too complex: ";  // cmake/Xgrammar.cmake
    const std::string message(status.message());
    const auto place = message.starts_with(kTooComplex)
                           ? text.places.find(message.substr(kTooComplex.size()))
                           : text.places.end();
    return absl::InvalidArgumentError(
        place != text.places.end()
            ? absl::StrCat(place->second, " is too complex: make it shorter, or anchor it")
            : absl::StrCat("is not what the grammar library reads: ", message));
  }

  static xgrammar::Grammar Read(const GrammarText& text) {
    if (text.language == GrammarLanguage::kEbnf) return xgrammar::Grammar::FromEBNF(text.text);
    if (text.max_whitespace != 0) return xgrammar::Grammar::FromJSONSchema(text.text);
    return xgrammar::Grammar::FromJSONSchema(text.text, /*any_whitespace=*/false, std::nullopt,
                                             std::pair(",", ":"));
  }

  absl::StatusOr<FirstMask> MakeFirstMask(const ConstraintParts& parts) const {
    FirstMask mask{.words = std::vector<uint32_t>(MaskWords())};
    const std::unique_ptr<TokenConstraint> constraint =
        MakeXgrammarConstraint(std::make_shared<const ConstraintParts>(parts));
    mask.next = constraint == nullptr ? NextTokens::kTooCostly : constraint->FillMask(mask.words);
    if (mask.next == NextTokens::kNone) {
      return absl::InvalidArgumentError("no text of the model's tokens is what it asks for");
    }
    if (mask.next == NextTokens::kTooCostly) {
      return absl::InvalidArgumentError("is too ambiguous: its first token takes too many steps");
    }
    mask.steps = constraint->MaskSteps();
    return mask;
  }

  const xgrammar::TokenizerInfo tokenizer_;
  const xgrammar::TokenizerInfo no_tokens_{std::vector<std::string>()};
  const std::shared_ptr<const MaskShape> shape_;
  const GrammarLimits limits_;
  Mutex compiling_;  // one compilation at a time; acquired before cache_mutex_
  Mutex cache_mutex_;
  RecentlyUsed<Compiled> cache_ HYDRANT_GUARDED_BY(cache_mutex_);
};

absl::Status CheckVocabulary(const GrammarVocabulary& vocabulary) {
  if (vocabulary.token_bytes.size() > (1u << 24)) {
    return absl::InvalidArgumentError("the vocabulary has more than 16777216 ids");
  }
  for (const TokenId id : vocabulary.eog_ids) {
    if (id < vocabulary.token_bytes.size() && vocabulary.token_bytes[id].empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the end-of-generation id ", id, " has text or is outside the vocabulary"));
  }
  return absl::OkStatus();
}

bool Breaks(const MaskShape::AfterLead& lead, char next) {
  const auto byte = static_cast<unsigned char>(next);
  return byte < lead.first || byte > lead.last;
}

// Whether the bytes form invalid UTF-8 within the token.
bool IsBroken(const MaskShape::AfterLead& lead, const std::string& bytes) {
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    if (static_cast<unsigned char>(bytes[i]) == lead.lead && Breaks(lead, bytes[i + 1]))
      return true;
  }
  return false;
}

std::shared_ptr<const MaskShape> ShapeOf(const GrammarVocabulary& vocabulary,
                                         const xgrammar::TokenizerInfo& tokenizer) {
  auto shape = std::make_shared<MaskShape>(tokenizer);
  const size_t words = (vocabulary.token_bytes.size() + 31) / 32;
  for (auto* bits : {&shape->text_words, &shape->eog_words, &shape->space_words})
    bits->resize(words);
  for (MaskShape::AfterLead& lead : shape->after_leads) {
    lead.ends_in.resize(words);
    lead.breaks.resize(words);
  }
  const auto set = [](std::vector<uint32_t>* bits, size_t id) {
    (*bits)[id / 32] |= 1u << (id % 32);
  };
  for (size_t id = 0; id < vocabulary.token_bytes.size(); ++id) {
    const std::string& bytes = vocabulary.token_bytes[id];
    const auto is_broken = [&](const auto& lead) { return IsBroken(lead, bytes); };
    if (bytes.empty() || std::ranges::any_of(shape->after_leads, is_broken)) continue;
    set(&shape->text_words, id);
    if (JsonWhiteSpace::Is(bytes.front())) set(&shape->space_words, id);
    for (MaskShape::AfterLead& lead : shape->after_leads) {
      if (Breaks(lead, bytes.front())) set(&lead.breaks, id);
      if (static_cast<unsigned char>(bytes.back()) == lead.lead) set(&lead.ends_in, id);
    }
  }
  for (const TokenId id : vocabulary.eog_ids) set(&shape->eog_words, id);
  return shape;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(
    GrammarVocabulary vocabulary, const GrammarLimits& limits) {
  HYDRANT_RETURN_IF_ERROR(CheckVocabulary(vocabulary));
  std::optional<xgrammar::TokenizerInfo> tokenizer;
  HYDRANT_RETURN_IF_ERROR(CallXgrammar(std::numeric_limits<int64_t>::max(), [&] {
    tokenizer.emplace(vocabulary.token_bytes, xgrammar::VocabType::RAW, std::nullopt,
                      std::vector<int32_t>(vocabulary.eog_ids.begin(), vocabulary.eog_ids.end()));
  }));
  const std::shared_ptr<const MaskShape> shape = ShapeOf(vocabulary, *tokenizer);
  return std::make_unique<XgrammarCompiler>(*std::move(tokenizer), shape, limits);
}

}  // namespace hydrant
