// Compiles structured outputs into token constraints for one vocabulary. Compiling takes time (some
// milliseconds to a few seconds) and memory, so an LRU cache keeps results. Thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_GRAMMAR_COMPILER_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_GRAMMAR_COMPILER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/grammar/structured_output.h"
#include "engine/text/grammar/token_constraint.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// Immutable; may outlive its compiler. Any thread may create constraints from it.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  // A constraint at the beginning of the text.
  virtual std::unique_ptr<TokenConstraint> NewConstraint() const = 0;
  virtual size_t MemoryBytes() const = 0;
};

// The vocabulary as bytes per token.
struct GrammarVocabulary {
  std::vector<std::string> token_bytes;  // by id; "": no text, never admitted
  std::vector<TokenId> eog_ids;
};

// num_logits: number of the model's logits, at least the tokenizer's vocabulary size; the remaining
// ids have no text.
GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int64_t num_logits);

// A step is counted when the grammar library visits a rule, adds an edge or moves a parser: about 5
// nanoseconds each. An automaton's memory may be quadratic in its text, hence the short limits on
// text.
struct GrammarLimits {
  size_t schema_bytes = 64 << 10;        // of a JSON schema, or of all choices
  size_t grammar_bytes = 16 << 10;       // of an EBNF grammar
  size_t regex_bytes = 8 << 10;          // of a regular expression, or of a pattern in a schema
  int64_t automaton_steps = 32'000'000;  // for a grammar's automata
  int64_t compile_steps = 600'000'000;   // for these once more, and the masks of their states
  int64_t mask_steps =
      4'000'000;  // for one FillMask(); a string with maxLength needs over one million
  int64_t accept_steps = 100'000;  // for one Accept()
  // Average over the Accept()s of a text, beyond the first accept_steps: their states are kept.
  int64_t mean_accept_steps = 2'000;
  size_t cached_bytes = 256 << 20;  // of compiled grammars in the cache
};

class GrammarCompiler {
 public:
  // Unimplemented if the build has no grammar library.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> Create(GrammarVocabulary vocabulary,
                                                                 const GrammarLimits& limits);
  virtual ~GrammarCompiler() = default;

  // Blocks until compiled; compilations are serialized. InvalidArgument names the field
  // ("json_schema", "regex", "choice", "grammar") and the fault, or the limit that it exceeds.
  virtual absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(
      const StructuredOutput& output) = 0;

  // 32-bit words of a mask: ceil(token_bytes.size() / 32).
  virtual size_t MaskWords() const = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_GRAMMAR_COMPILER_H_
