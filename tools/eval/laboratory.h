// The laboratory: one model in process, without scheduler or server, on which policies are
// compared. A prompt is read once for all of them (PrefillSlice::sharing_slots); then every cache
// goes on beside the others in one batch, the full one among them, fed the same tokens or its own.
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

// A cache to be tried.
struct Arm {
  std::string name;
  CacheSpec cache;
  // The ceiling: entries are chosen by the attention of what follows, C in every
  // head, or over all heads where the params' budget_scope says so. Else `cache` says C alone.
  bool is_oracle = false;
};

// A text to try it on. The first `context` tokens become the cache. Those after them are given one
// by one; then as many as `generate` says are sampled, greedily.
struct Trial {
  std::vector<TokenId> tokens;
  int context = 0;
  int generate = 0;
  std::vector<TokenId> expected = {};  // of what is generated: for the oracle
  bool traced = false;                 // Outcome::held is wanted
  std::optional<bool> append = {};     // instead of the options' own
  int question_tokens = 0;             // of those after the context: a question about it
};

// What an arm made of a trial.
struct Outcome {
  absl::Status refused;       // by PlanCache; nothing else is set then
  double nll = 0;             // mean over the given tokens, nats
  double agreement = 0;       // of the given positions: where its best token is the full cache's
  double divergence = 0;      // KL(full cache || this one), mean over them, nats
  std::string text;           // generated
  int64_t entries = 0;        // of all heads, when the context had been compressed
  double retained_mass = 1;   // mean over the heads
  std::vector<int32_t> kept;  // [layers * KV heads] entries of each head, then
  // Of a traced trial: the positions that each head holds, ascending, when the context has been
  // compressed and after each given token (what its query attended to); the first moment alone
  // where nothing leaves after it. Empty where entries are samples. [moments][layers * KV heads]
  std::vector<std::vector<std::vector<int32_t>>> held = {};
};

struct LaboratoryOptions {
  EngineOptions engine;
  int max_arms = 32;  // in one Run(), without the full cache and the oracles
  // Nothing leaves once the context has been compressed, as in most published comparisons; co2 and
  // others that are whole at first go by their own rule.
  bool append = false;
};

class Laboratory {
 public:
  static absl::StatusOr<std::unique_ptr<Laboratory>> Create(const std::string& model,
                                                            const LaboratoryOptions& options);
  ~Laboratory();

  // The full cache's outcome first, then those of the arms. REQUIRES: no more arms than max_arms,
  // and trial.tokens and what is generated within max_tokens().
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
