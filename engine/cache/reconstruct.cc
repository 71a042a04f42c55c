#include <algorithm>
#include <utility>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultWindow = 8;
constexpr double kDefaultSumWeight = 1.0;
constexpr double kDefaultMaxWeight = 5.0;
constexpr double kMostWeight = 1e6;

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
        {MaxCacheTokensParameter(),
         CacheRatioParameter(),
         MinCacheTokensParameter(),
         {"sink_tokens", "first entries that never leave", "0", "[0, budget]"},
         {"protected_window_size", "last entries of the prompt that never leave",
          "8, at most a quarter of the budget", "[1, budget]"},
         {"sum_weight", "of the sum of what the second reading pays", "1", "[0, 1e6]"},
         {"max_weight", "of the most that one of its queries pays", "5", "[0, 1e6]"},
         DecodeCapParameter()}};
    for (PolicyParameter& row : SharingParameters(kModelFirst))
      info.parameters.push_back(std::move(row));
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    const absl::StatusOr<double> sum =
        RealParam(spec, "sum_weight", kDefaultSumWeight, 0.0, kMostWeight);
    if (!sum.ok()) return sum.status();
    const absl::StatusOr<double> max =
        RealParam(spec, "max_weight", kDefaultMaxWeight, 0.0, kMostWeight);
    if (!max.ok()) return max.status();
    if (*sum == 0.0 && *max == 0.0) {
      return absl::InvalidArgumentError(
          "cache.params.max_weight: 0, and sum_weight is 0 too, ranks nothing; one of them above "
          "0");
    }
    const int64_t quarter = std::max(1, plan->budget / 4);
    const int64_t window = spec.protected_window_size.value_or(std::min(kDefaultWindow, quarter));
    plan->prompt_score = PromptScore::kProbe;
    plan->probe = {.sum_weight = static_cast<float>(*sum), .max_weight = static_cast<float>(*max)};
    plan->rule.sinks =
        static_cast<int32_t>(std::min<int64_t>(spec.sink_tokens.value_or(0), kNoCap));
    plan->rule.recent = static_cast<int32_t>(std::min<int64_t>(window, kNoCap));
    if (absl::Status status = FillDecodeCap(spec, plan); !status.ok()) return status;
    return FillSharing(spec, kModelFirst, plan);
  }
};

class Probe final : public PromptScorer {
 public:
  bool ReadsProbe() const override { return true; }
  // Of the prompt's second reading, with which the probe ends.
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override {
    const int32_t first = read - static_cast<int32_t>(plan.prompt.tokens);
    return {
        {.reduce = plan.rule.reduce, .first_query = first},
        {.kind = ColumnStatistic::Kind::kMax, .reduce = GroupReduce::kMax, .first_query = first}};
  }
  const float* Score(const PromptLayer& layer) const override {
    DeriveScoresArgs add = layer.Derivation();
    add.b = layer.noted[1];
    add.weight_a = layer.plan->probe.sum_weight;
    add.weight_b = layer.plan->probe.max_weight;
    layer.backend->DeriveScores(add);
    return add.out;
  }
};
constexpr Probe kScorer;

}  // namespace

const PromptScorer* const PromptScore::kProbe = &kScorer;

std::unique_ptr<Policy> NewReconstructPolicy() { return std::make_unique<ReconstructPolicy>(); }

}  // namespace hydrant
