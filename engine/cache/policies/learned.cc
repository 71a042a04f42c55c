#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Approximates `reconstruct` without a second pass: a predictor of each KV head, fitted to the model
// once (tools/eval/fit/fit.h), gives an entry's score from the hidden state of its token (KVzap,
// arXiv 2601.07891; the gates of Fast KVzip, arXiv 2601.17668, are larger). The score depends on the
// token and the tokens before it alone, so tokens of later turns and decoded ones have scores that
// compare with it. With an echo both scores are added. All heads of all layers share the budget.
class LearnedPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {
        "learned",
        "keeps by scores that a fitted predictor gives; needs a file of hydrant-eval "
        "fit",
        ProbeParameters(kEchoMaxWeight)};
    info.parameters.push_back(
        {"echo", "the scores of echo, by the weights above, are added", "false", "true, false"});
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    if (!plan->prompt.predicts_scores) {
      return absl::InvalidArgumentError(
          "cache.cache_policy: learned needs a score predictor, and this server has none for its "
          "model; "
          "make one with hydrant-eval fit, beside the model or named by --score-predictor");
    }
    HYDRANT_ASSIGN_OR_RETURN(const std::string echo, ChoiceParam(spec, "echo", kFalseFirst));
    HYDRANT_ASSIGN_OR_RETURN(const ProbeWeights weights, FillProbe(spec, kEchoMaxWeight, plan));
    if (!MayEvict(*plan)) return absl::OkStatus();
    plan->scorer = std::make_shared<ProbeScorer>(
        weights, ProbeScorer::Passes{.echo = echo == "true", .predicted = true});
    plan->rule.predicted = !plan->rule.scored;
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewLearnedPolicy() { return std::make_unique<LearnedPolicy>(); }

}  // namespace hydrant
