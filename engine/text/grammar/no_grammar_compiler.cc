// For builds without XGrammar.
#include "absl/status/status.h"
#include "engine/text/grammar/grammar_compiler.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(GrammarVocabulary,
                                                                         const GrammarLimits&) {
  return absl::UnimplementedError(
      "structured output is not in this build: run scripts/fetch-xgrammar, then build again");
}

}  // namespace hydrant
