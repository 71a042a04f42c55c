#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

// Where nothing is asked for: what loses hardly anything in docs/quality.md.
constexpr double kDefaultRatio = 0.2;
// Beside a quality: what the few heads that look things up need is known between heads, not within.
constexpr double kRatioBesideQuality = 0.1;

// A question that looks something up needs what one query would pay much, more than what all would
// pay a little.
constexpr double kAskedLaterMaxWeight = 30.0;

// For users who name a target and no policy. It acts as `echo`, whose scores lose least of what
// follows the prompt. A prompt whose question is kept back, and so is about to be looked things up
// in, is read a second time, where there is room, and asked by both readings' queries: they find
// more of it, and lose a little of what would follow it. What the request leaves open it takes from
// the prompt (docs/quality.md):
//   a memory target (max_cache_tokens, cache_ratio): the heads share that many entries;
//   a quality target (min_retained_mass): the heads share a tenth, and each keeps more where that
//     does not retain as much of what the prompt's queries pay when asked from behind it, so that a
//     prompt whose attention is concentrated takes less memory;
//   neither: a fifth, or what the scheduler finds room for;
//   a prompt within its budget keeps everything.
class AutoPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"auto",
            "chooses for you, by a budget or by min_retained_mass, and says what it chose",
            {MaxCacheTokensParameter(), CacheRatioParameter(), MinCacheTokensParameter(),
             DecodeCapParameter()}};
  }

  std::optional<double> DefaultRatio(const CacheSpec& spec) const override {
    return spec.min_retained_mass ? kRatioBesideQuality : kDefaultRatio;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    plan->echo_mass = spec.min_retained_mass.has_value();
    plan->open_budget = !spec.cache_ratio && !spec.max_cache_tokens && !spec.min_retained_mass;
    const double max_weight = plan->prompt.AskedLater() ? kAskedLaterMaxWeight : kEchoMaxWeight;
    if (absl::Status status = FillProbe(spec, max_weight, plan); !status.ok()) return status;
    const bool twice = plan->Compresses() && plan->prompt.AskedLater() && plan->prompt.fits_twice;
    plan->prompt_score = twice ? PromptScore::kProbeAndEcho : EchoIfNeeded(*plan);
    plan->choice = Choose(spec, *plan, twice);
    return absl::OkStatus();
  }

 private:
  static AutoChoice Choose(const CacheSpec& spec, const CachePlan& plan, bool twice) {
    if (!plan.Compresses()) {
      return {"full", fmt::format("the prompt has {} tokens, the budget is {} entries a head",
                                  plan.prompt.tokens, plan.budget)};
    }
    std::string why =
        fmt::format("all heads share {} entries a head of {}", plan.budget, plan.prompt.tokens);
    if (spec.min_retained_mass) {
      why += fmt::format(", and each keeps more until it retains {} of the echo's attention",
                         *spec.min_retained_mass);
    }
    if (plan.prompt.AskedLater()) {
      why += twice ? "; its question comes later, so it is read twice"
                   : "; its question comes later, and there is no room to read it twice";
    }
    return {twice ? "reconstruct" : "echo", std::move(why)};
  }
};

}  // namespace

std::unique_ptr<Policy> NewAutoPolicy() { return std::make_unique<AutoPolicy>(); }

}  // namespace hydrant
