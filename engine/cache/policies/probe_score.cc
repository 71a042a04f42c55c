#include "engine/cache/policies/probe_score.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultProbeWindow = 8;
constexpr double kDefaultSumWeight = 1.0;
constexpr double kMaxWeight = 1e6;
constexpr double kNoFloor = 0.0;
constexpr std::string_view kTrueFirst[] = {"true", "false"};

}  // namespace

std::vector<PolicyParameter> ProbeParameters(double default_max_weight) {
  std::vector<PolicyParameter> parameters = {
      MaxCacheTokensParameter(),
      CacheRatioParameter(),
      MinCacheTokensParameter(),
      {"sink_tokens", "first entries that never leave", "0", "[0, budget]"},
      {"protected_window_size", "last entries of the prompt that never leave",
       "8, at most a quarter of the budget", "[1, budget]"},
      {"sum_weight", "of the sum of the asking queries' attention", "1", "[0, 1e6]"},
      {"max_weight", "of the largest weight of one of them",
       fmt::format("{:g}", default_max_weight), "[0, 1e6]"},
      {"value_norms", "scores are multiplied by the length of the entry's value", "true",
       "true, false"},
      DecodeCapParameter()};
  for (PolicyParameter& row : SharingParameters(kModelFirst, kNoFloor))
    parameters.push_back(std::move(row));
  return parameters;
}

absl::StatusOr<ProbeWeights> FillProbe(const CacheSpec& spec, double default_max_weight,
                                       CachePlan* plan, double default_floor) {
  HYDRANT_ASSIGN_OR_RETURN(const double sum,
                           RealParam(spec, "sum_weight", kDefaultSumWeight, 0.0, kMaxWeight));
  HYDRANT_ASSIGN_OR_RETURN(const double max,
                           RealParam(spec, "max_weight", default_max_weight, 0.0, kMaxWeight));
  if (sum == 0.0 && max == 0.0) {
    return absl::InvalidArgumentError(
        "cache.params.max_weight: 0, and sum_weight is 0 too, ranks nothing; one of them above 0");
  }
  HYDRANT_ASSIGN_OR_RETURN(const std::string norms, ChoiceParam(spec, "value_norms", kTrueFirst));
  const int64_t quarter = std::max(1, plan->budget / 4);
  const int64_t window =
      spec.protected_window_size.value_or(std::min(kDefaultProbeWindow, quarter));
  plan->rule.sinks = static_cast<int32_t>(std::min<int64_t>(spec.sink_tokens.value_or(0), kNoCap));
  plan->rule.recent = static_cast<int32_t>(std::min<int64_t>(window, kNoCap));
  HYDRANT_RETURN_IF_ERROR(FillDecodeCap(spec, plan));
  HYDRANT_RETURN_IF_ERROR(FillSharing(spec, kModelFirst, plan, default_floor));
  return ProbeWeights{static_cast<float>(sum), static_cast<float>(max), norms == "true"};
}

namespace {

// The sum and the maximum of the attention of the queries from `first_query` on.
std::vector<ColumnStatistic> SumAndMax(const CachePlan& plan, int32_t first_query) {
  return {{.reduce = plan.rule.reduce, .first_query = first_query},
          {.kind = ColumnStatistic::Kind::kMax,
           .reduce = GroupReduce::kMax,
           .first_query = first_query}};
}

}  // namespace

std::string_view ProbeScorer::Name() const {
  if (passes_.predicted) return passes_.echo ? "predicted+echo" : "predicted";
  if (!passes_.second_reading) return "echo";
  return passes_.echo ? "probe+echo" : "probe";
}

// The second pass over the prompt is the last part of the `read` tokens.
std::vector<ColumnStatistic> ProbeScorer::Statistics(const CachePlan& plan, int read) const {
  if (!passes_.second_reading) return {};
  return SumAndMax(plan, read - static_cast<int32_t>(plan.prompt.tokens));
}

std::vector<ColumnStatistic> ProbeScorer::Echo(const CachePlan& plan) const {
  if (!passes_.echo) return {};
  return SumAndMax(plan, 0);
}

const float* ProbeScorer::Score(const PromptLayer& layer) const {
  if (!passes_.second_reading && !passes_.echo) return layer.scores;  // predicted
  float* const attention = passes_.predicted ? layer.statistics[0] : layer.scores;
  DeriveScoresArgs add = layer.Derivation();
  add.b = layer.statistics[1];
  add.weight_a = weights_.sum;
  add.weight_b = weights_.max;
  add.out = attention;
  layer.backend->DeriveScores(add);
  if (weights_.value_norms) {
    DeriveScoresArgs weigh = layer.Derivation();
    weigh.step = ScoreStep::kTimesLength;
    weigh.a = weigh.out = attention;
    weigh.rows = layer.kv.v;
    weigh.row_head_stride = layer.kv.head_stride;
    weigh.dims = layer.kv.head_dim;
    layer.backend->DeriveScores(weigh);
  }
  if (!passes_.predicted) return attention;
  DeriveScoresArgs both = layer.Derivation();
  both.b = layer.scores;
  both.weight_b = 1.0f;
  layer.backend->DeriveScores(both);
  return layer.scores;
}

}  // namespace hydrant
