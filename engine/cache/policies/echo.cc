#include <memory>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Approximates `reconstruct` without a second pass. The prompt's queries stand for future queries:
// each is rotated to the position right after the prompt and scored against all keys, including the
// keys after it. So a query that looks for the successor of a token finds the entry that followed,
// as in a second pass. Expected Attention (arXiv 2510.00636) uses the mean and covariance of the
// same queries; here every query counts, by a weighted sum and maximum. All heads of all layers
// share the budget.
class EchoPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"echo", "keeps what the prompt's own queries attend to when asked again from behind it",
            ProbeParameters(kEchoMaxWeight)};
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_ASSIGN_OR_RETURN(const ProbeWeights weights, FillProbe(spec, kEchoMaxWeight, plan));
    if (MayEvict(*plan))
      plan->scorer = std::make_shared<ProbeScorer>(weights, ProbeScorer::Passes{.echo = true});
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewEchoPolicy() { return std::make_unique<EchoPolicy>(); }

}  // namespace hydrant
