// Compares policies on one model in process, without scheduler or server. A context is computed
// once for all arms (PromptRun::sharing_slots), and each compresses it; then all caches, the full
// one included, go through the dialogues in one batch.
#ifndef HYDRANT_TOOLS_EVAL_LABORATORY_H_
#define HYDRANT_TOOLS_EVAL_LABORATORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_plan.h"
#include "engine/run/engine.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tools/eval/trial_runner.h"

namespace hydrant::eval {

struct LaboratoryOptions {
  EngineOptions engine;
  int max_arms = 32;  // per Run(), without the full cache and the oracles
  // As for FindScorePredictor().
  std::string score_predictor;
  // Nothing is evicted after the compaction of the context, as in most published comparisons; co2
  // and other policies that start uncompressed follow their own rule.
  bool append = false;
};

class Laboratory final : public TrialRunner {
 public:
  static absl::StatusOr<std::unique_ptr<Laboratory>> Create(const std::string& model,
                                                            const LaboratoryOptions& options);
  ~Laboratory() override;

  // REQUIRES: the context with each of its dialogues within max_tokens()
  std::vector<Outcome> Run(const Trial& trial, const std::vector<Arm>& arms) override;

  int max_tokens() const;
  const Tokenizer& tokenizer() const;
  const ModelConfig& config() const;
  std::string Description() const override;
  uint32_t score_predictor() const;  // EngineLimits::score_predictor
  // Without special tokens.
  std::vector<TokenId> Encode(std::string_view text) const;

 private:
  struct Impl;
  explicit Laboratory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_LABORATORY_H_
