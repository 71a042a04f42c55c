#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

constexpr std::string_view kFalseFirst[] = {"false", "true"};

// After KVzip (arXiv 2505.23416, section 3): the model reads the prompt, is told to repeat it, and
// reads it again; entries that the second reading attends to are those that the context can be
// rebuilt from, whatever will be asked about it. KVzip ranks by the maximum over the second
// reading's queries; here it is their sum and maxima, weighted. The budget is shared by all heads
// of all layers. The second reading's entries are dropped.
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
    const absl::StatusOr<std::string> echo = ChoiceParam(spec, "echo", kFalseFirst);
    if (!echo.ok()) return echo.status();
    if (absl::Status status = FillProbe(spec, kSecondReadingMaxWeight, plan); !status.ok())
      return status;
    const bool both = *echo == "true" && plan->Compresses();
    plan->prompt_score = both ? PromptScore::kProbeAndEcho : PromptScore::kProbe;
    return absl::OkStatus();
  }
};

// Of the prompt's second reading, with which the probe ends.
std::vector<ColumnStatistic> OfSecondReading(const CachePlan& plan, int read) {
  return ProbeStatistics(plan, read - static_cast<int32_t>(plan.prompt.tokens));
}

class Probe final : public PromptScorer {
 public:
  bool ReadsProbe() const override { return true; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override {
    return OfSecondReading(plan, read);
  }
  const float* Score(const PromptLayer& layer) const override { return ProbeScores(layer); }
};
constexpr Probe kScorer;

// The queries of both, as if they were one's.
class ProbeAndEcho final : public PromptScorer {
 public:
  bool ReadsProbe() const override { return true; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override {
    return OfSecondReading(plan, read);
  }
  std::vector<ColumnStatistic> Echo(const CachePlan& plan) const override {
    return ProbeStatistics(plan, 0);
  }
  const float* Score(const PromptLayer& layer) const override { return ProbeScores(layer); }
};
constexpr ProbeAndEcho kBothScorer;

}  // namespace

const PromptScorer* const PromptScore::kProbe = &kScorer;
const PromptScorer* const PromptScore::kProbeAndEcho = &kBothScorer;

std::unique_ptr<Policy> NewReconstructPolicy() { return std::make_unique<ReconstructPolicy>(); }

}  // namespace hydrant
