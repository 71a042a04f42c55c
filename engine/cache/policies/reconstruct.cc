#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// After KVzip (arXiv 2505.23416, section 3): the model prefills the prompt, an instruction to
// repeat it, and the prompt again. The context can be reconstructed from the entries that the
// second pass attends to, whatever the question. KVzip ranks by the maximum over the second pass's
// queries; here by a weighted sum and maximum. All heads of all layers share the budget. The
// second pass's entries are dropped.
class ReconstructPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {"reconstruct", "keeps what the prompt attends to when it is read again",
                       ProbeParameters(kSecondReadingMaxWeight)};
    info.parameters.push_back({"echo",
                               "the first reading's queries are asked again, too, as those of echo",
                               "false", "true, false"});
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_ASSIGN_OR_RETURN(const std::string echo, ChoiceParam(spec, "echo", kFalseFirst));
    HYDRANT_ASSIGN_OR_RETURN(const ProbeWeights weights,
                             FillProbe(spec, kSecondReadingMaxWeight, plan));
    const bool both = echo == "true" && plan->Compresses();
    plan->scorer = std::make_shared<ProbeScorer>(
        weights, ProbeScorer::Passes{.second_reading = true, .echo = both});
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewReconstructPolicy() { return std::make_unique<ReconstructPolicy>(); }

}  // namespace hydrant
