#include <algorithm>
#include <limits>

#include "engine/cache/policy_registry.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int64_t kLeastWindow = 2;  // kernels/ops/subgen.h
constexpr int64_t kLeastBudget = kLeastWindow + 2;
constexpr int64_t kDefaultClusterSamples = 4;
constexpr double kLargestRadius = 1e9;
constexpr double kLeastGrowth = 1.1, kLargestGrowth = 16.0;

// A head's budget: sinks + window + value_samples + max_clusters * cluster_samples entries.
struct Split {
  int64_t sinks = 0;
  int64_t window = 0;
  int64_t value_samples = 0;
  int64_t cluster_samples = 0;
  int64_t max_clusters = 0;
};

// For a prompt beyond its budget: samples are taken during prefill.
class SampledAtPrefill final : public RetentionSchedule {
 public:
  explicit SampledAtPrefill(const SubGenRule& rule) : rule_(rule) {}
  LayerCompaction CompactLayer(const CachePlan& plan, int layer) const override {
    LayerCompaction compaction = RetentionSchedule::CompactLayer(plan, layer);
    compaction.samples = &rule_;
    return compaction;
  }
  const SubGenRule* Samples() const override { return &rule_; }

 private:
  SubGenRule rule_;
};

// For a prompt within its budget: samples are taken once the budget is full.
class SampledWhileDecoding final : public DelayedCompaction {
 public:
  SampledWhileDecoding(const SubGenRule& rule, int32_t tokens)
      : DelayedCompaction(tokens), rule_(rule) {}
  PageCompaction CompactionAfter(const CachePlan& plan, int64_t tokens) const override {
    PageCompaction compaction = DelayedCompaction::CompactionAfter(plan, tokens);
    compaction.samples = &rule_;
    return compaction;
  }
  const SubGenRule* Samples() const override { return &rule_; }

 private:
  SubGenRule rule_;
};

// SubGen (arXiv 2402.06082, algorithm 1): entries that leave the window are represented by samples:
// of values for attention's numerator, of clusters of keys for its denominator
// (kernels/ops/subgen.h). By default half of the budget is the window, a quarter value samples, the
// rest clusters of four samples; entries that do not fill a cluster are added to the window.
class SubGenPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {
        "subgen",
        "keeps the last entries, and of all others samples that stand for them",
        {MaxCacheTokensParameter(),
         CacheRatioParameter(),
         MinCacheTokensParameter(),
         {"sink_tokens", "first entries that are kept as they are", "0", "[0, budget - 4]"},
         {"protected_window_size", "last entries that are kept as they are, at least",
          "half the budget", "[2, budget - sink_tokens - 2]"},
         {"value_samples", "entries that stand for all values", "half of what the window leaves",
          "[1, budget - sink_tokens - window - 1]"},
         {"cluster_samples", "entries that stand for the keys of a cluster", "4",
          "[1, budget - sink_tokens - window - value_samples]"},
         {"max_clusters", "clusters of keys a head holds at most",
          "as many as the budget has room for", "[1, what the budget has room for]"},
         {"delta", "radius of a cluster at first", "0: what the first clusters need", "[0, 1e9]"},
         {"delta_growth", "factor of the radius when all clusters are taken", "2", "[1.1, 16]"},
         {"sample_seed", "of the samples", "0", "[0, 2^63 - 1]"}}};
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_ASSIGN_OR_RETURN(const Split split, SplitBudget(spec, plan->budget));
    HYDRANT_ASSIGN_OR_RETURN(const double delta,
                             RealParam(spec, "delta", 0.0, 0.0, kLargestRadius));
    HYDRANT_ASSIGN_OR_RETURN(const double growth,
                             RealParam(spec, "delta_growth", 2.0, kLeastGrowth, kLargestGrowth));
    HYDRANT_ASSIGN_OR_RETURN(const int64_t seed, IntegerParam(spec, "sample_seed", 0, 0,
                                                              std::numeric_limits<int64_t>::max()));
    const SubGenRule rule = {.sinks = static_cast<int32_t>(split.sinks),
                             .recent = static_cast<int32_t>(split.window),
                             .value_samples = static_cast<int32_t>(split.value_samples),
                             .cluster_samples = static_cast<int32_t>(split.cluster_samples),
                             .max_clusters = static_cast<int32_t>(split.max_clusters),
                             .radius_squared = static_cast<float>(delta * delta),
                             .growth = static_cast<float>(growth),
                             .seed = static_cast<uint64_t>(seed)};
    plan->rule.weighted = true;
    plan->rule.sinks = rule.sinks;
    plan->rule.recent = rule.recent;
    // Sampling begins when the budget is exceeded, which may be while decoding.
    if (plan->prompt.tokens > plan->budget) {
      plan->retention = std::make_shared<SampledAtPrefill>(rule);
    } else {
      plan->retention =
          std::make_shared<SampledWhileDecoding>(rule, std::min(plan->budget, kNoCap - 1));
    }
    return absl::OkStatus();
  }
  const char* CheckMassGuarantee(const CachePlan&) const override {
    return "keeps samples, whose mass is not known";
  }

 private:
  static absl::StatusOr<Split> SplitBudget(const CacheSpec& spec, int64_t whole_budget) {
    if (whole_budget < kLeastBudget) {
      return absl::InvalidArgumentError(fmt::format(
          "cache.{}: policy subgen cannot work with a budget of {} entries a head; at least {}",
          spec.BudgetField(), whole_budget, kLeastBudget));
    }
    const int64_t sinks = spec.sink_tokens.value_or(0);
    if (sinks > whole_budget - kLeastBudget) {
      return absl::InvalidArgumentError(
          fmt::format("cache.sink_tokens: {} is outside [0, {}]", sinks,
                      RequestedBudget(spec, whole_budget) - kLeastBudget));
    }
    const int64_t budget = whole_budget - sinks;
    const int64_t window = spec.protected_window_size.value_or(budget / 2);
    if (window < kLeastWindow || window > budget - 2) {
      return absl::InvalidArgumentError(
          fmt::format("cache.protected_window_size: {} is outside [{}, {}]", window, kLeastWindow,
                      RequestedBudget(spec, whole_budget) - sinks - 2));
    }
    // A default window shrinks to make room for the samples that the request sets.
    const int64_t room = budget - spec.protected_window_size.value_or(kLeastWindow);
    Split split;
    split.sinks = sinks;
    absl::Status status;
    const auto take = [&](const char* name, int64_t otherwise, int64_t most, int64_t* out) {
      if (!status.ok()) return;
      const absl::StatusOr<int64_t> value =
          IntegerParam(spec, name, std::clamp<int64_t>(otherwise, 1, most), 1, most);
      status = value.status();
      if (value.ok()) *out = *value;
    };
    take("value_samples", (budget - window) / 2, room - 1, &split.value_samples);
    const int64_t keys = room - split.value_samples;
    const int64_t beside_window = budget - window - split.value_samples;
    take("cluster_samples", std::min(kDefaultClusterSamples, beside_window), keys,
         &split.cluster_samples);
    if (!status.ok()) return status;
    take("max_clusters", beside_window / split.cluster_samples, keys / split.cluster_samples,
         &split.max_clusters);
    if (!status.ok()) return status;
    split.window = budget - split.value_samples - split.max_clusters * split.cluster_samples;
    return split;
  }
};

}  // namespace

std::unique_ptr<Policy> NewSubGenPolicy() { return std::make_unique<SubGenPolicy>(); }

}  // namespace hydrant
