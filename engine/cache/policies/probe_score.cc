#include "engine/cache/policies/probe_score.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultWindow = 8;
constexpr double kDefaultSumWeight = 1.0;
constexpr double kMostWeight = 1e6;
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
      {"sum_weight", "of the sum of what the asking queries pay", "1", "[0, 1e6]"},
      {"max_weight", "of the most that one of them pays", fmt::format("{:g}", default_max_weight),
       "[0, 1e6]"},
      {"value_norms", "scores are multiplied by the length of the entry's value", "true",
       "true, false"},
      DecodeCapParameter()};
  for (PolicyParameter& row : SharingParameters(kModelFirst, kNoFloor))
    parameters.push_back(std::move(row));
  return parameters;
}

absl::Status FillProbe(const CacheSpec& spec, double default_max_weight, CachePlan* plan) {
  const absl::StatusOr<double> sum =
      RealParam(spec, "sum_weight", kDefaultSumWeight, 0.0, kMostWeight);
  if (!sum.ok()) return sum.status();
  const absl::StatusOr<double> max =
      RealParam(spec, "max_weight", default_max_weight, 0.0, kMostWeight);
  if (!max.ok()) return max.status();
  if (*sum == 0.0 && *max == 0.0) {
    return absl::InvalidArgumentError(
        "cache.params.max_weight: 0, and sum_weight is 0 too, ranks nothing; one of them above 0");
  }
  const absl::StatusOr<std::string> norms = ChoiceParam(spec, "value_norms", kTrueFirst);
  if (!norms.ok()) return norms.status();
  const int64_t quarter = std::max(1, plan->budget / 4);
  const int64_t window = spec.protected_window_size.value_or(std::min(kDefaultWindow, quarter));
  plan->probe = {.sum_weight = static_cast<float>(*sum),
                 .max_weight = static_cast<float>(*max),
                 .value_norms = *norms == "true"};
  plan->rule.sinks = static_cast<int32_t>(std::min<int64_t>(spec.sink_tokens.value_or(0), kNoCap));
  plan->rule.recent = static_cast<int32_t>(std::min<int64_t>(window, kNoCap));
  if (absl::Status status = FillDecodeCap(spec, plan); !status.ok()) return status;
  return FillSharing(spec, kModelFirst, plan, kNoFloor);
}

const PromptScorer* EchoIfNeeded(const CachePlan& plan) {
  return plan.Compresses() || plan.cap != kNoCap ? PromptScore::kEcho : PromptScore::kNone;
}

std::vector<ColumnStatistic> ProbeStatistics(const CachePlan& plan, int32_t first_query) {
  return {{.reduce = plan.rule.reduce, .first_query = first_query},
          {.kind = ColumnStatistic::Kind::kMax,
           .reduce = GroupReduce::kMax,
           .first_query = first_query}};
}

const float* ProbeScores(const PromptLayer& layer) {
  DeriveScoresArgs add = layer.Derivation();
  add.b = layer.noted[1];
  add.weight_a = layer.plan->probe.sum_weight;
  add.weight_b = layer.plan->probe.max_weight;
  layer.backend->DeriveScores(add);
  if (layer.plan->probe.value_norms) {
    DeriveScoresArgs weigh = layer.Derivation();
    weigh.step = ScoreStep::kTimesLength;
    weigh.a = layer.scores;
    weigh.rows = layer.kv.v;
    weigh.row_head_stride = layer.kv.head_stride;
    weigh.dims = layer.kv.head_dim;
    layer.backend->DeriveScores(weigh);
  }
  return layer.scores;
}

}  // namespace hydrant
