// A fixture with a grammar compiler for the small vocabulary.
#ifndef HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_GRAMMAR_FIXTURE_H_
#define HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_GRAMMAR_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/grammar/grammar_compiler.h"
#include "tests/engine/text/grammar/small_vocabulary.h"

namespace hydrant {

class GrammarFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    auto compiler = GrammarCompiler::Create(vocabulary_, GrammarLimits());
    ASSERT_TRUE(compiler.ok()) << compiler.status();
    compiler_ = *std::move(compiler);
    words_.resize(compiler_->MaskWords());
  }

  std::unique_ptr<TokenConstraint> Make(const StructuredOutput& output) {
    const auto compiled = compiler_->Compile(output);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return compiled.ok() ? (*compiled)->NewConstraint() : nullptr;
  }

  // The error of the compilation; "" if there is none.
  std::string Refusal(const StructuredOutput& output) {
    const auto compiled = compiler_->Compile(output);
    EXPECT_TRUE(compiled.ok() || absl::IsInvalidArgument(compiled.status())) << compiled.status();
    return std::string(compiled.status().message());
  }

  // Whether the grammar admits the whole text, with one token for each byte.
  bool Admits(const StructuredOutput& output, std::string_view text) {
    const auto constraint = Make(output);
    for (const char c : text) {
      if (constraint == nullptr || !constraint->Accept(static_cast<unsigned char>(c))) return false;
    }
    return constraint != nullptr && constraint->IsComplete();
  }

  const GrammarVocabulary vocabulary_ = SmallVocabulary();
  std::unique_ptr<GrammarCompiler> compiler_;
  std::vector<uint32_t> words_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_GRAMMAR_FIXTURE_H_
