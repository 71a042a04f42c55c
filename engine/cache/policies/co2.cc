#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "engine/cache/policies/self_tuning.h"
#include "engine/cache/policy_registry.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Values from the range tried in the paper.
constexpr double kDefaultAlpha = 0.2;
constexpr int64_t kDefaultSteps = 20;
constexpr double kDefaultFifo = 0.25;
constexpr int64_t kMaxTunedSteps = 64;
constexpr int64_t kMaxSteps = 1 << 20;

// CO2, the cumulative observation oracle (section 4 of its paper): the prompt stays whole for N
// generated tokens, and their attention counts too; then the cache shrinks to C entries: the newest
// rho C in FIFO order, and the entries with the highest accumulated score, a moving average with
// decay alpha. The paper leaves open how the average starts (here: the column sums, or their mean
// over queries) and how alpha, N and rho are chosen (self_tuning.h). Shared budgets are distributed
// over the heads when the cache shrinks.
class Co2Policy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {
        "co2",
        "decides after some generated tokens, by a moving average of attention",
        {MaxCacheTokensParameter(),
         CacheRatioParameter(),
         MinCacheTokensParameter(),
         {"alpha", "decay of the average; 0 adds up", "0.2", "[0, 1]"},
         {"measurement_steps", "generated tokens before the prompt is cut; if self_tuning, at most",
          "20, if self_tuning 64", "[0, 1048576]"},
         {"rho", "share of the budget that is FIFO", "0.25", "[0, 1]"},
         {"initial_score", "of the prompt's entries", "sum", "sum or mean"},
         {"self_tuning", "the prompt's own attention chooses alpha, rho and the steps", "false",
          "false or true"}}};
    for (PolicyParameter& row : ScopeParameters(kHeadFirst))
      info.parameters.push_back(std::move(row));
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    constexpr std::array<std::string_view, 2> kNoYes = {"false", "true"};
    HYDRANT_ASSIGN_OR_RETURN(const std::string self_tuning,
                             ChoiceParam(spec, "self_tuning", kNoYes));
    const bool tunes = self_tuning == "true";
    HYDRANT_ASSIGN_OR_RETURN(const int64_t steps,
                             IntegerParam(spec, "measurement_steps",
                                          tunes ? kMaxTunedSteps : kDefaultSteps, 0, kMaxSteps));
    HYDRANT_RETURN_IF_ERROR(FillChoices(spec, tunes, plan));
    HYDRANT_RETURN_IF_ERROR(FillScope(spec, kHeadFirst, plan));
    if (plan->share.scope != BudgetScope::kHead && plan->rule.recent == 0) {
      return absl::InvalidArgumentError(fmt::format(
          "cache.params.rho: '{}' of {} entries is none, which may leave a head without any where "
          "heads share a budget; at least {}",
          spec.params.count("rho") > 0 ? spec.params.at("rho") : "0.25", plan->cap,
          1.0 / plan->cap));
    }
    plan->rule.scored = true;
    const int32_t end = MeasuredUntil(plan->prompt, steps);
    const bool tuned = tunes && CanTune(*plan);
    // A self-tuning plan is compacted after its choice, even with 0 measuring steps.
    if (tuned || (steps > 0 && end > plan->cap)) {
      plan->retention = std::make_shared<DelayedCompaction>(end);
    } else {
      plan->ShareBudgets(kNoCap);  // the compaction sees the whole prompt
    }
    if (!tuned) return absl::OkStatus();
    auto state = std::make_shared<SelfTuning>();
    state->max_steps = static_cast<int32_t>(steps);
    plan->resolve_at = ResolveAt::kPrefilled;
    plan->state = std::move(state);
    plan->scorer = NewTunedSums();
    return absl::OkStatus();
  }

  const char* CheckMassGuarantee(const CachePlan& plan) const override {
    const bool compacts_later =
        dynamic_cast<const DelayedCompaction*>(plan.retention.get()) != nullptr;
    return compacts_later ? "does not compress the prompt when it has been read" : nullptr;
  }

  CachePlan Resolve(const CachePlan& plan, const ResolveInputs& inputs) const override {
    const bool known = plan.resolve_at == ResolveAt::kPrefilled && !inputs.of_prompt.empty();
    return known ? Tuned(plan, inputs.of_prompt) : plan;
  }

  std::string SaveDecision(const CachePlan& plan) const override {
    const bool tuned = SelfTuningOf(plan) != nullptr && plan.resolve_at == ResolveAt::kResolved;
    return tuned ? SaveTuning(plan) : std::string();
  }

  absl::StatusOr<CachePlan> RestoreDecision(const CachePlan& open,
                                            std::string_view decision) const override {
    if (open.resolve_at == ResolveAt::kPrefilled) return RestoreTuning(open, decision);
    return Policy::RestoreDecision(open, decision);
  }

  PolicyReport Report(const CachePlan& plan) const override {
    const SelfTuning* tuning = SelfTuningOf(plan);
    if (tuning == nullptr || plan.resolve_at != ResolveAt::kResolved) return {};
    return {"self_tuning",
            {{"alpha", tuning->alpha},
             {"rho", tuning->rho},
             {"measurement_steps", static_cast<double>(tuning->steps)},
             {"retained_mass", tuning->retained},
             {"attainable_mass", tuning->attainable}}};
  }

 private:
  // alpha, rho and initial_score as given, or the defaults, which also apply to a self-tuning plan
  // if its prompt is too short to tune by.
  static absl::Status FillChoices(const CacheSpec& spec, bool tunes, CachePlan* plan) {
    for (const char* name : {"alpha", "rho", "initial_score"}) {
      if (tunes && spec.params.count(name) > 0) {
        return absl::InvalidArgumentError(fmt::format(
            "cache.params.{}: '{}' given, but self_tuning is to choose it; leave one of them out",
            name, spec.params.at(name)));
      }
    }
    HYDRANT_ASSIGN_OR_RETURN(const double alpha, RealParam(spec, "alpha", kDefaultAlpha, 0.0, 1.0));
    HYDRANT_ASSIGN_OR_RETURN(const double rho, RealParam(spec, "rho", kDefaultFifo, 0.0, 1.0));
    constexpr std::array<std::string_view, 2> kStarts = {"sum", "mean"};
    HYDRANT_ASSIGN_OR_RETURN(const std::string start, ChoiceParam(spec, "initial_score", kStarts));
    plan->scorer = NewColumnSums(start == "mean");
    if (alpha > 0.0) {
      plan->rule.decay = static_cast<float>(1.0 - alpha);
      plan->rule.gain = static_cast<float>(alpha);
    }
    plan->rule.recent = static_cast<int32_t>(std::floor(rho * plan->cap));
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewCo2Policy() { return std::make_unique<Co2Policy>(); }

}  // namespace hydrant
