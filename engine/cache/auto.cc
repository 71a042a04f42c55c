#include <memory>
#include <optional>

#include "engine/cache/policy_registry.h"
#include "engine/cache/probe_score.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

// Where nothing is asked for: what loses hardly anything in docs/quality.md.
constexpr double kDefaultRatio = 0.2;
// Beside a quality: what the few heads that look things up need is known between heads, not within.
constexpr double kRatioBesideQuality = 0.1;

// For users who name a target and no policy. It acts as `echo`, whose scores lose least of those
// that need no second reading, with the settings that do best over all tasks of docs/quality.md,
// and what the request leaves open it takes from the prompt:
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
    CacheSpec settings = spec;
    settings.params["head_floor"] = "0";
    plan->echo_mass = spec.min_retained_mass.has_value();
    plan->open_budget = !spec.cache_ratio && !spec.max_cache_tokens && !spec.min_retained_mass;
    if (absl::Status status = FillProbe(settings, kEchoDefaults, plan); !status.ok()) return status;
    if (absl::Status status = FillDecodeCap(settings, plan); !status.ok()) return status;
    plan->prompt_score = EchoIfNeeded(*plan);
    if (absl::Status status = FillSharing(settings, kModelFirst, plan); !status.ok()) return status;
    plan->choice = Choose(spec, *plan);
    return absl::OkStatus();
  }

 private:
  static AutoChoice Choose(const CacheSpec& spec, const CachePlan& plan) {
    if (!plan.Compresses()) {
      return {"full", fmt::format("the prompt has {} tokens, the budget is {} entries a head",
                                  plan.prompt.tokens, plan.budget)};
    }
    if (spec.min_retained_mass) {
      return {"echo",
              fmt::format("all heads share {} entries a head of {}, and each keeps more until "
                          "it retains {} of the echo's attention",
                          plan.budget, plan.prompt.tokens, *spec.min_retained_mass)};
    }
    return {"echo", fmt::format("all heads share {} entries a head of {}", plan.budget,
                                plan.prompt.tokens)};
  }
};

}  // namespace

std::unique_ptr<Policy> NewAutoPolicy() { return std::make_unique<AutoPolicy>(); }

}  // namespace hydrant
