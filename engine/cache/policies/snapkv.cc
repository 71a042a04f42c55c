#include "engine/cache/policies/snapkv.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultWindow = 32;
constexpr int64_t kDefaultKernel = 7;
constexpr int64_t kLargestKernel = 63;

struct PoolingChoice {
  Pooling pooling = Pooling::kMax;
  int32_t kernel = 1;
};

absl::StatusOr<PoolingChoice> ChoosePooling(const CacheSpec& spec) {
  HYDRANT_ASSIGN_OR_RETURN(const int64_t kernel,
                           IntegerParam(spec, "kernel_size", kDefaultKernel, 1, kLargestKernel));
  if (kernel % 2 == 0) {
    return absl::InvalidArgumentError(
        fmt::format("cache.params.kernel_size: {} is not odd; an odd number in [1, {}]", kernel,
                    kLargestKernel));
  }
  constexpr std::array<std::string_view, 2> kPoolings = {"max", "avg"};
  HYDRANT_ASSIGN_OR_RETURN(const std::string pooling, ChoiceParam(spec, "pooling", kPoolings));
  return PoolingChoice{pooling == "avg" ? Pooling::kMean : Pooling::kMax,
                       static_cast<int32_t>(kernel)};
}

// SnapKV keeps the prompt's last entries, the observation window, and the entries with the most
// attention from the window's queries, pooled over neighbours so that passages stay whole. C limits
// the prompt alone; generated tokens are appended, unless decode_cap sets a cap: then H2O's rule
// continues from the pooled scores.
class SnapKvPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {
        "snapkv", "keeps of the prompt what its last queries attend to; what is generated stays",
        SnapKvParameters()};
    for (PolicyParameter& row : SharingParameters(kHeadFirst))
      info.parameters.push_back(std::move(row));
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_RETURN_IF_ERROR(FillSnapKv(spec, plan));
    return FillSharing(spec, kHeadFirst, plan);
  }
};

}  // namespace

// The window's own positions are not pooled.
const float* PooledWindow::Score(const PromptLayer& layer) const {
  const float* sums = layer.statistics[0];
  const int before = layer.n - queries();
  if (before <= 0) return sums;
  layer.backend->PoolScores({.scores = sums,
                             .score_stride = layer.stride,
                             .num_kv_heads = layer.num_kv_heads,
                             .n = before,
                             .kernel = kernel_,
                             .pooling = pooling_,
                             .out = layer.scores,
                             .out_stride = layer.stride});
  for (int head = 0; head < layer.num_kv_heads; ++head) {
    const int64_t tail = head * layer.stride + before;
    layer.backend->CopyOnDevice(layer.scores + tail, sums + tail, queries() * sizeof(float));
  }
  return layer.scores;
}

absl::Status FillSnapKv(const CacheSpec& spec, CachePlan* plan) {
  const int64_t half = std::max(1, plan->budget / 2);
  const int64_t window = spec.protected_window_size.value_or(std::min(kDefaultWindow, half));
  if (window < 1) {
    return absl::InvalidArgumentError(fmt::format(
        "cache.protected_window_size: {} leaves no query to choose by; at least 1", window));
  }
  HYDRANT_ASSIGN_OR_RETURN(const PoolingChoice choice, ChoosePooling(spec));
  plan->rule.recent = static_cast<int32_t>(std::min<int64_t>(window, kNoCap));
  plan->scorer = std::make_shared<PooledWindow>(plan->rule.recent, choice.pooling, choice.kernel);
  return FillDecodeCap(spec, plan);
}

std::vector<PolicyParameter> SnapKvParameters() {
  return {
      MaxCacheTokensParameter(),
      CacheRatioParameter(),
      MinCacheTokensParameter(),
      {"protected_window_size", "last entries of the prompt, whose queries decide",
       "32, at most half the budget", "[1, budget]"},
      {"kernel_size", "positions that are pooled", std::to_string(kDefaultKernel), "odd, [1, 63]"},
      {"pooling", "of their scores", "max", "max or avg"},
      DecodeCapParameter()};
}

std::unique_ptr<Policy> NewSnapKvPolicy() { return std::make_unique<SnapKvPolicy>(); }

}  // namespace hydrant
