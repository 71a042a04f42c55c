#include <algorithm>
#include <utility>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// H2O (arXiv 2306.14048, section 4, algorithm 1): the entries with the largest accumulated
// attention (heavy hitters) and the recent ones, half and half unless protected_window_size says
// otherwise. Window 0 and window = budget are the paper's ablations (its table 9).
class H2oPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {
        "h2o",
        "keeps the heavy hitters of accumulated attention and the recent entries",
        {MaxCacheTokensParameter(),
         CacheRatioParameter(),
         MinCacheTokensParameter(),
         {"sink_tokens", "first entries that never leave", "0", "[0, budget]"},
         {"protected_window_size", "last entries that never leave, the incoming one included",
          "(budget - sink_tokens) / 2", "[0, budget - sink_tokens]"},
         RollingParameter()}};
    for (PolicyParameter& row : SharingParameters(kHeadFirst))
      info.parameters.push_back(std::move(row));
    return info;
  }
  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    plan->scorer = NewColumnSums();
    plan->rule.scored = true;
    const int64_t sinks = std::min<int64_t>(spec.sink_tokens.value_or(0), kNoCap);
    const int64_t half = std::max<int64_t>(0, plan->cap - sinks) / 2;
    plan->rule.sinks = static_cast<int32_t>(sinks);
    plan->rule.recent =
        static_cast<int32_t>(std::min<int64_t>(spec.protected_window_size.value_or(half), kNoCap));
    HYDRANT_RETURN_IF_ERROR(FillRolling(spec, plan));
    return FillSharing(spec, kHeadFirst, plan);
  }
};

class ColumnSums final : public PromptScorer {
 public:
  explicit ColumnSums(bool mean) : mean_(mean) {}
  std::string_view Name() const override { return "column-sums"; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int /*read*/) const override {
    return {{.reduce = plan.rule.reduce, .end_query = static_cast<int32_t>(plan.prompt.tokens)}};
  }
  const float* Score(const PromptLayer& layer) const override { return layer.statistics[0]; }
  float Scale(const CachePlan& plan) const override {
    return mean_ ? 1.0f / static_cast<float>(plan.prompt.tokens) : 1.0f;
  }

 private:
  bool mean_;
};

}  // namespace

std::shared_ptr<const PromptScorer> NewColumnSums(bool mean) {
  return std::make_shared<ColumnSums>(mean);
}

std::unique_ptr<Policy> NewH2oPolicy() { return std::make_unique<H2oPolicy>(); }

}  // namespace hydrant
