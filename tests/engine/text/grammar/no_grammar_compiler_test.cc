#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/grammar/grammar_compiler.h"

namespace hydrant {
namespace {

TEST(NoGrammarCompiler, SaysHowToGetOne) {
  const absl::Status status = GrammarCompiler::Create({}, GrammarLimits()).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("scripts/fetch-xgrammar"));
}

}  // namespace
}  // namespace hydrant
