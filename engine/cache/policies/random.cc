#include <algorithm>
#include <limits>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultFirst = 4;

// One random score per entry.
class Draws final : public PromptScorer {
 public:
  std::string_view Name() const override { return "draws"; }
  const float* Score(const PromptLayer& layer) const override {
    DeriveScoresArgs draw = layer.Derivation();
    draw.step = ScoreStep::kRandom;
    draw.seed = layer.plan->rule.seed;
    layer.backend->DeriveScores(draw);
    return draw.out;
  }
};

// The control arm of a comparison: the first and the last entries are protected as in other
// policies; the rest is kept at random, by one score per entry of the prompt, then by new scores
// for each eviction. They follow from (seed, layer, head, positions): a request is reproducible.
class RandomPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {
        "random",
        "keeps entries by chance: the control arm of a comparison",
        {MaxCacheTokensParameter(),
         CacheRatioParameter(),
         MinCacheTokensParameter(),
         {"sink_tokens", "first entries that never leave", "4, below the budget", "[0, budget]"},
         {"protected_window_size", "last entries that never leave, the incoming one included",
          "(budget - sink_tokens) / 2", "[0, budget - sink_tokens]"},
         {"seed", "of the draws", "0", "[0, 9223372036854775807]"}}};
  }
  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_ASSIGN_OR_RETURN(const int64_t seed,
                             IntegerParam(spec, "seed", 0, 0, std::numeric_limits<int64_t>::max()));
    const int64_t sinks = std::min<int64_t>(
        spec.sink_tokens.value_or(std::min<int64_t>(kDefaultFirst, plan->cap - 1)), kNoCap);
    const int64_t half = std::max<int64_t>(0, plan->cap - sinks) / 2;
    plan->scorer = std::make_shared<Draws>();
    plan->rule.scored = true;
    plan->rule.revision = Revision::kRandom;
    plan->rule.seed = static_cast<uint64_t>(seed);
    plan->rule.sinks = static_cast<int32_t>(sinks);
    plan->rule.recent =
        static_cast<int32_t>(std::min<int64_t>(spec.protected_window_size.value_or(half), kNoCap));
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewRandomPolicy() { return std::make_unique<RandomPolicy>(); }

}  // namespace hydrant
