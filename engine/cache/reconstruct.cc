#include <memory>
#include <utility>

#include "engine/cache/policy_registry.h"
#include "engine/cache/probe_score.h"

namespace hydrant {
namespace {

constexpr ProbeDefaults kDefaults = {.max_weight = 5.0};

// After KVzip (arXiv 2505.23416, section 3): the model reads the prompt, is told to repeat it, and
// reads it again; entries that the second reading attends to are those that the context can be
// rebuilt from, whatever will be asked about it. KVzip ranks by the maximum over the second
// reading's queries; here it is their sum and maxima, weighted. The budget is shared by all heads
// of all layers. The second reading's entries are dropped.
class ReconstructPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {
        "reconstruct",
        "keeps what the prompt attends to when it is read again",
        {MaxCacheTokensParameter(), CacheRatioParameter(), MinCacheTokensParameter()}};
    const auto add = [&](std::vector<PolicyParameter> rows) {
      for (PolicyParameter& row : rows) info.parameters.push_back(std::move(row));
    };
    add(ProbeParameters(kDefaults));
    add({DecodeCapParameter()});
    add(SharingParameters(kModelFirst));
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    plan->prompt_score = PromptScore::kProbe;
    if (absl::Status status = FillProbe(spec, kDefaults, plan); !status.ok()) return status;
    if (absl::Status status = FillDecodeCap(spec, plan); !status.ok()) return status;
    return FillSharing(spec, kModelFirst, plan);
  }
};

class Probe final : public PromptScorer {
 public:
  bool ReadsProbe() const override { return true; }
  // Of the prompt's second reading, with which the probe ends.
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override {
    return ProbeStatistics(plan, read - static_cast<int32_t>(plan.prompt.tokens));
  }
  const float* Score(const PromptLayer& layer) const override { return ProbeScores(layer); }
};
constexpr Probe kScorer;

}  // namespace

const PromptScorer* const PromptScore::kProbe = &kScorer;

std::unique_ptr<Policy> NewReconstructPolicy() { return std::make_unique<ReconstructPolicy>(); }

}  // namespace hydrant
