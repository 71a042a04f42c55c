// Compares policies on one model in process, without scheduler or server. A prompt is computed once
// for all arms (PromptRun::sharing_slots); then all caches, the full one included, decode in one
// batch, from the same tokens or from their own.
#ifndef HYDRANT_TOOLS_EVAL_LABORATORY_H_
#define HYDRANT_TOOLS_EVAL_LABORATORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_plan.h"
#include "engine/run/engine.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {

// A cache configuration to evaluate.
struct Arm {
  std::string name;
  CacheSpec cache;
  // The upper bound: entries are chosen by the attention of the continuation, C per head, or over
  // all heads if the params' budget_scope says so. `cache` then only gives C.
  bool is_oracle = false;
};

// A test text. The first `context` tokens become the cache. The remaining tokens are fed one by
// one; then `generate` tokens are sampled greedily.
struct Trial {
  std::vector<TokenId> tokens;
  int context = 0;
  int generate = 0;
  std::vector<TokenId> expected = {};  // expected output, for the oracle
  bool traced = false;                 // fill in Outcome::held
  std::optional<bool> append = {};     // overrides the options' value
  int question_tokens = 0;             // tokens of a question after the context
};

// The result of an arm on a trial.
struct Outcome {
  absl::Status refused;       // PlanCache's error; the other fields are then unset
  double nll = 0;             // mean over the given tokens, nats
  double agreement = 0;       // share of given positions with the full cache's top token
  double divergence = 0;      // KL(full cache || this one), mean over them, nats
  std::string text;           // generated
  int64_t entries = 0;        // of all heads, after the compaction of the context
  double retained_mass = 1;   // mean over the heads
  std::vector<int32_t> kept;  // [layers * KV heads] entries of each head at that time
  // For a traced trial: the positions held by each head, ascending, after the compaction of the
  // context and after each given token (the entries its query attended to); only the first moment
  // if nothing is evicted later. Empty if entries are samples. [moments][layers * KV heads]
  std::vector<std::vector<std::vector<int32_t>>> held = {};
};

struct LaboratoryOptions {
  EngineOptions engine;
  int max_arms = 32;  // per Run(), without the full cache and the oracles
  // Nothing is evicted after the compaction of the context, as in most published comparisons; co2
  // and other policies that start uncompressed follow their own rule.
  bool append = false;
};

class Laboratory {
 public:
  static absl::StatusOr<std::unique_ptr<Laboratory>> Create(const std::string& model,
                                                            const LaboratoryOptions& options);
  ~Laboratory();

  // The full cache's outcome first, then the arms'. REQUIRES: at most max_arms arms; trial.tokens
  // plus generated tokens within max_tokens().
  std::vector<Outcome> Run(const Trial& trial, const std::vector<Arm>& arms);

  int max_tokens() const;
  const Tokenizer& tokenizer() const;
  const ModelConfig& config() const;
  std::string Description() const;
  // Without special tokens.
  std::vector<TokenId> Encode(std::string_view text) const;

 private:
  struct Impl;
  explicit Laboratory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_LABORATORY_H_
