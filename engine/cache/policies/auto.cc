#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Default ratio beside a quality target. The target acts within each head; the need of the few
// retrieval heads shows only between heads, so a shared budget remains.
constexpr double kRatioBesideQuality = 0.1;

// Choices at admission, by free pages.
constexpr double kRatiosByRoom[] = {1.0, 0.4, 0.2, 0.1};

// On a second reading one query of an induction head attends strongly to every entry: without a
// floor these few heads would take the budget of all.
constexpr double kLaterQuestionFloor = 0.2;

// For requests that name a target and no policy. Acts as `echo`, the policy with the lowest loss on
// continuations of the prompt. If the question is held back until the cache is compressed, the
// prompt is prefilled a second time, where there is room, and scored by the queries of both passes:
// retrieval improves, continuations get slightly worse. With a score predictor it acts as
// `learned:echo=true` instead, in one pass. The budget (docs/results/quality.md):
//   memory target    max_cache_tokens or cache_ratio: the heads share that many entries, or each
//                    keeps them where few heads have a budget
//   quality target   min_retained_mass: the heads share a tenth; a head keeps more until it retains
//                    that part of the echo's attention, so that a prompt with concentrated
//                    attention takes less memory
//   neither          a fifth, or as much as the scheduler has room for; may shrink later (Shrink)
// A prompt within its budget keeps everything.
class AutoPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"auto",
            "chooses for you, by a budget or by min_retained_mass, and says what it chose",
            {MaxCacheTokensParameter(), CacheRatioParameter(), MinCacheTokensParameter(),
             DecodeCapParameter()}};
  }

  double DefaultRatio(const CacheSpec& spec) const override {
    return spec.min_retained_mass ? kRatioBesideQuality : kDefaultCacheRatio;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    auto state = std::make_shared<AutoState>();
    const bool open = !spec.cache_ratio && !spec.max_cache_tokens && !spec.min_retained_mass;
    if (open) {
      plan->resolve_at = ResolveAt::kAdmission;
      state->by_room = PlansByFreePages(spec, plan->prompt);
    }
    const bool learned = plan->prompt.predicts_scores;
    // With few heads a second reading was not better (docs/decisions/one_budget_for_all_heads.md).
    const bool asked_twice = !learned && plan->prompt.HasLaterQuestion() &&
                             plan->prompt.fits_two_passes && !plan->prompt.HasFewHeads();
    HYDRANT_ASSIGN_OR_RETURN(
        const ProbeWeights weights,
        FillProbe(spec, kEchoMaxWeight, plan, asked_twice ? kLaterQuestionFloor : 0.0));
    const bool twice = plan->Compresses() && asked_twice;
    if (MayEvict(*plan)) {
      plan->scorer = std::make_shared<ProbeScorer>(
          weights, ProbeScorer::Passes{.second_reading = twice,
                                       .echo = true,
                                       .mass_by_echo = spec.min_retained_mass.has_value(),
                                       .predicted = learned});
      plan->rule.predicted = learned && !plan->rule.scored;
    }
    Choose(spec, *plan, twice, state.get());
    plan->state = std::move(state);
    return absl::OkStatus();
  }

  // The largest budget that fits; the smallest if none does.
  CachePlan Resolve(const CachePlan& plan, const ResolveInputs& inputs) const override {
    const AutoState& state = StateOf(plan);
    if (plan.resolve_at != ResolveAt::kAdmission || state.by_room.empty()) return plan;
    if (state.by_room.size() == 1) return state.by_room.front();  // a short prompt
    const auto fitting = inputs.fits == nullptr ? state.by_room.end()
                                                : std::find_if(state.by_room.begin(),
                                                               state.by_room.end(), inputs.fits);
    CachePlan chosen = fitting == state.by_room.end() ? state.by_room.back() : *fitting;
    const auto said = std::make_shared<AutoState>(StateOf(chosen));
    if (inputs.fits == nullptr) {  // free pages are not known yet
      chosen.resolve_at = ResolveAt::kAdmission;
      said->by_room = state.by_room;
    } else {
      said->why +=
          fmt::format("; {} pages were free for {} waiting", inputs.free_pages, inputs.num_waiting);
      if (inputs.tpot_us.has_value()) {
        said->why += fmt::format(", {:g} ms a token the target",
                                 static_cast<double>(*inputs.tpot_us) / 1000);
      }
    }
    chosen.state = said;
    return chosen;
  }

  // The index of the budget.
  std::string SaveDecision(const CachePlan& plan) const override {
    const int choice = StateOf(plan).choice;
    return choice < 0 ? std::string() : std::to_string(choice);
  }

  absl::StatusOr<CachePlan> RestoreDecision(const CachePlan& open,
                                            std::string_view decision) const override {
    const std::vector<CachePlan>& by_room = StateOf(open).by_room;
    for (const CachePlan& plan : by_room) {
      if (SaveDecision(plan) == decision) return plan;
    }
    // A short prompt has a single plan, decided already.
    if (by_room.empty() && SaveDecision(open) == decision) return open;
    return absl::InvalidArgumentError(fmt::format("policy auto has no choice '{}'", decision));
  }

  PolicyReport Report(const CachePlan& plan) const override {
    std::string policy = StateOf(plan).policy, why = StateOf(plan).why;
    if (const auto* shrunk = dynamic_cast<const ShrunkRetention*>(plan.retention.get());
        shrunk != nullptr) {
      if (policy == "full") policy = "echo";
      why += fmt::format("; cut to {} entries a head after {} tokens, as others needed the room",
                         plan.cap, shrunk->tokens());
    }
    return {"auto_choice", {{"policy", std::move(policy)}, {"why", std::move(why)}}};
  }

 private:
  struct AutoState final : PolicyState {
    std::string policy;  // the policy it acts as
    std::string why;
    std::vector<CachePlan> by_room;  // choices of an open plan, largest budget first
    int choice = -1;                 // index in by_room; -1: the request left no choice
  };
  static const AutoState& StateOf(const CachePlan& plan) {
    return static_cast<const AutoState&>(*plan.state);
  }

  static std::vector<CachePlan> PlansByFreePages(const CacheSpec& open, const PromptShape& prompt) {
    std::vector<CachePlan> plans;
    CacheSpec spec = open;
    for (const double ratio : kRatiosByRoom) {
      spec.cache_ratio = ratio;
      absl::StatusOr<CachePlan> plan = PlanCache(spec, prompt);
      if (!plan.ok() || plan->state == nullptr) continue;  // null: no layer to plan for
      // A short prompt keeps everything at several ratios.
      if (!plans.empty() && plan->budget == plans.back().budget) continue;
      const bool repeats = !plans.empty() && !plan->Compresses() && !plans.back().Compresses();
      if (repeats) continue;
      auto state = std::make_shared<AutoState>(StateOf(*plan));
      state->choice = static_cast<int>(plans.size());
      plan->state = std::move(state);
      plans.push_back(*std::move(plan));
    }
    return plans;
  }

  static void Choose(const CacheSpec& spec, const CachePlan& plan, bool twice, AutoState* state) {
    if (!plan.Compresses()) {
      state->policy = "full";
      state->why = fmt::format("the prompt has {} tokens, the budget is {} entries a head",
                               plan.prompt.tokens, plan.budget);
      return;
    }
    std::string& why = state->why;
    why = plan.share.scope == BudgetScope::kModel
              ? fmt::format("all heads share {} entries a head of {}", plan.budget,
                            plan.prompt.tokens)
              : fmt::format("each of the few heads without a window keeps {} entries of {}",
                            plan.budget, plan.prompt.tokens);
    if (spec.min_retained_mass) {
      why += fmt::format(", and each keeps more until it retains {} of the echo's attention",
                         *spec.min_retained_mass);
    }
    if (plan.prompt.predicts_scores) {
      why += "; predicted scores are added to those of the echo";
    } else if (plan.prompt.HasLaterQuestion() && !plan.prompt.HasFewHeads()) {
      why += twice ? "; its question comes later, so it is read twice"
                   : "; its question comes later, and there is no room to read it twice";
    }
    state->policy = plan.prompt.predicts_scores ? "learned" : twice ? "reconstruct" : "echo";
  }
};

}  // namespace

std::unique_ptr<Policy> NewAutoPolicy() { return std::make_unique<AutoPolicy>(); }

}  // namespace hydrant
