#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

// Of the values that the paper tries.
constexpr double kDefaultAlpha = 0.2;
constexpr int64_t kDefaultSteps = 20;
constexpr double kDefaultFifo = 0.25;
constexpr int64_t kMostSteps = 1 << 20;

// CO2, the cumulative observation oracle (section 4 of its paper): the prompt stays whole for N
// generated tokens, whose attention is observed too; then the cache shrinks to C, of which the
// newest rho C are FIFO and the rest have the highest accumulated score, a moving average with
// decay alpha. How the average starts is left open there: with the column sums, or with their mean
// over queries.
class Co2Policy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {
        "co2",
        "decides after some generated tokens, by a moving average of attention",
        {MaxCacheTokensParameter(),
         CacheRatioParameter(),
         MinCacheTokensParameter(),
         {"alpha", "decay of the average; 0 adds up", "0.2", "[0, 1]"},
         {"measurement_steps", "generated tokens before the prompt is cut", "20", "[0, 1048576]"},
         {"rho", "share of the budget that is FIFO", "0.25", "[0, 1]"},
         {"initial_score", "of the prompt's entries", "sum", "sum or mean"}}};
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    const absl::StatusOr<double> alpha = RealParam(spec, "alpha", kDefaultAlpha, 0.0, 1.0);
    if (!alpha.ok()) return alpha.status();
    const absl::StatusOr<int64_t> steps =
        IntegerParam(spec, "measurement_steps", kDefaultSteps, 0, kMostSteps);
    if (!steps.ok()) return steps.status();
    const absl::StatusOr<double> rho = RealParam(spec, "rho", kDefaultFifo, 0.0, 1.0);
    if (!rho.ok()) return rho.status();
    constexpr std::array<std::string_view, 2> kStarts = {"sum", "mean"};
    const absl::StatusOr<std::string> start = ChoiceParam(spec, "initial_score", kStarts);
    if (!start.ok()) return start.status();

    plan->prompt_score = PromptScore::kColumnSums;
    plan->mean_scores = *start == "mean";
    plan->rule.scored = true;
    if (*alpha > 0.0) {
      plan->rule.decay = static_cast<float>(1.0 - *alpha);
      plan->rule.gain = static_cast<float>(*alpha);
    }
    plan->rule.recent = static_cast<int32_t>(std::floor(*rho * plan->cap));
    const int64_t whole_until = plan->prompt.tokens + *steps;
    if (*steps > 0 && whole_until > plan->cap)
      plan->whole_until = static_cast<int32_t>(std::min<int64_t>(whole_until, kNoCap - 1));
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewCo2Policy() { return std::make_unique<Co2Policy>(); }

}  // namespace hydrant
