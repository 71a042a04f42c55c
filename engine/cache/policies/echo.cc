#include <memory>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// What `reconstruct` finds without a second reading. The queries of the prompt stand for those that
// will come: each is turned to the position right after the prompt and asked of all its keys, those
// too that came after it. So a query that looks for what followed a token finds the entry that did
// follow, as the second reading's would. Expected Attention (arXiv 2510.00636) takes the mean and
// covariance of the same queries; here it is every one of them, their sum and maxima, weighted, and
// the budget is shared by all heads of all layers.
class EchoPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"echo", "keeps what the prompt's own queries attend to when asked again from behind it",
            ProbeParameters(kEchoMaxWeight)};
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_ASSIGN_OR_RETURN(const ProbeWeights weights, FillProbe(spec, kEchoMaxWeight, plan));
    if (EverEvicts(*plan))
      plan->scorer = std::make_shared<ProbeScorer>(weights, ProbeScorer::Asks{.echo = true});
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewEchoPolicy() { return std::make_unique<EchoPolicy>(); }

}  // namespace hydrant
