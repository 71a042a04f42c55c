#include <algorithm>
#include <string_view>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultHistory = 400;
constexpr int64_t kDefaultRecent = 10;
constexpr int64_t kMaxHistory = 1 << 20;
// Without sum_of_squares: its mean over the entries is not 1 / length.
constexpr std::string_view kWeightReductions[] = {"mean", "max"};

// Score: minus the number of queries that give the entry less than the mean weight.
class BelowMean final : public WindowScorer {
 public:
  using WindowScorer::WindowScorer;
  std::string_view Name() const override { return "below-mean"; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int /*read*/) const override {
    ColumnStatistic counts = Sums(plan);
    counts.kind = ColumnStatistic::Kind::kBelowMean;
    return {counts};
  }
  const float* Score(const PromptLayer& layer) const override {
    DeriveScoresArgs negate = layer.Derivation();
    negate.weight_a = -1.0f;
    layer.backend->DeriveScores(negate);
    return negate.out;
  }
  // The counts, continued while decoding (kernels/ops/revise_scores.h).
  const float* Second(const PromptLayer& layer) const override { return layer.statistics[0]; }
};

// Scissorhands (arXiv 2305.17118, algorithms 1 and 2): when a head is at its budget, it evicts
// `drop_tokens` entries at once: the entries to which most of the last `history_window` queries
// gave less than the mean weight (kernels/ops/prefill_attention.h: kBelowMean); the last few are
// protected. A prompt beyond the budget is compacted to the same number, budget - drop_tokens. A
// drop resets the counts, so at most drop_tokens queries count while decoding.
class ScissorhandsPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"scissorhands",
            "drops many entries at once: those that the last tokens mostly weighed below the mean",
            {MaxCacheTokensParameter(),
             CacheRatioParameter(),
             MinCacheTokensParameter(),
             {"sink_tokens", "first entries that never leave", "0", "[0, budget - drop_tokens]"},
             {"protected_window_size", "last entries that never leave",
              "10, at most budget - drop_tokens - sink_tokens",
              "[0, budget - drop_tokens - sink_tokens]"},
             {"drop_tokens", "entries that leave at once", "half the budget", "[1, budget - 1]"},
             {"history_window", "queries that count", "400", "[1, 1048576]"},
             GroupReduceParameter(kWeightReductions)}};
  }
  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    const int64_t cap = plan->cap;
    if (cap < 2) {
      return absl::InvalidArgumentError(
          fmt::format("cache.{}: a budget of {} entries a head leaves nothing to drop; at least 2",
                      spec.BudgetField(), cap));
    }
    HYDRANT_ASSIGN_OR_RETURN(const int64_t drop,
                             IntegerParam(spec, "drop_tokens", cap / 2, 1, cap - 1));
    HYDRANT_ASSIGN_OR_RETURN(const int64_t history,
                             IntegerParam(spec, "history_window", kDefaultHistory, 1, kMaxHistory));
    HYDRANT_RETURN_IF_ERROR(FillProtection(spec, cap - drop, plan));
    plan->retention = std::make_shared<ChunkedEviction>(static_cast<int32_t>(drop));
    plan->rule.scored = true;
    plan->rule.decay = 0.0f;
    plan->rule.revision = Revision::kBelowMean;
    plan->rule.history = static_cast<int32_t>(std::min(history, drop));
    // A prompt within the budget: only queries in the history before its first drop count.
    const int64_t n = plan->prompt.tokens;
    const int64_t queries = n > cap ? history : n - (cap - plan->rule.history);
    plan->scorer =
        std::make_shared<BelowMean>(static_cast<int32_t>(std::clamp<int64_t>(queries, 0, n)));
    if (n > cap) plan->budget = static_cast<int32_t>(cap - drop);
    return FillGroupReduce(spec, kWeightReductions, plan);
  }
  const char* CheckMassGuarantee(const CachePlan&) const override {
    return "drops as many entries of every head at once";
  }

 private:
  // Sets sinks and recent. keep: entries that a drop leaves.
  static absl::Status FillProtection(const CacheSpec& spec, int64_t keep, CachePlan* plan) {
    const int64_t sinks = spec.sink_tokens.value_or(0);
    const int64_t room = std::max<int64_t>(0, keep - sinks);
    const int64_t recent = spec.protected_window_size.value_or(std::min(kDefaultRecent, room));
    if (sinks + recent > keep) {
      return absl::InvalidArgumentError(
          fmt::format("cache.{}: sink_tokens + protected_window_size = {} + {} is above the {} "
                      "entries that stay when the others are dropped",
                      sinks > keep ? "sink_tokens" : "protected_window_size", sinks, recent, keep));
    }
    plan->rule.sinks = static_cast<int32_t>(sinks);
    plan->rule.recent = static_cast<int32_t>(recent);
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewScissorhandsPolicy() { return std::make_unique<ScissorhandsPolicy>(); }

}  // namespace hydrant
