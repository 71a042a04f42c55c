#include <algorithm>
#include <utility>

#include "engine/cache/policies/snapkv.h"
#include "engine/cache/policy_registry.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultBeta = 20;
constexpr int64_t kMaxBeta = 1000;

// Entries that each layer keeps beside the window: linear from `highest` in the first layer to
// base / beta in the last, or more in the last if the first is limited to `most`. Rounded up in the
// lower half of the layers and down by as much in the upper half, so that the layers keep
// num_layers * base together. (The authors' code rounds the step between two layers instead. With
// few entries and many layers its step is 1 or 0 for any beta, and with more its layers add up to
// more than the budget.)
std::vector<int32_t> Pyramid(int32_t base, int32_t most, int64_t beta, int num_layers) {
  const int64_t wanted = 2 * int64_t{base} - base / beta;
  const int64_t highest = std::min<int64_t>(wanted, most);
  const int64_t fall = 2 * (highest - base);      // first layer minus last layer
  std::vector<int32_t> layers(num_layers, base);  // the middle layer of an odd number keeps base
  for (int low = 0, high = num_layers - 1; low < high; ++low, --high) {
    layers[low] = static_cast<int32_t>(highest - low * fall / (num_layers - 1));
    layers[high] = 2 * base - layers[low];
  }
  return layers;
}

// PyramidKV (arXiv 2406.02069, section 4.2): SnapKV's selection, with more entries in the lower
// layers, where attention is spread widely, than in the upper ones.
class PyramidKvPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    PolicyInfo info = {"pyramidkv",
                       "snapkv with more entries in the lower layers than in the upper ones",
                       SnapKvParameters()};
    info.parameters.push_back(
        {"beta", "the last layer's part of the average is 1 / beta", "20", "[1, 1000]"});
    for (PolicyParameter& row : SharingParameters(kHeadOrLayer))
      info.parameters.push_back(std::move(row));
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    HYDRANT_RETURN_IF_ERROR(FillSnapKv(spec, plan));
    HYDRANT_RETURN_IF_ERROR(FillSharing(spec, kHeadOrLayer, plan));
    HYDRANT_ASSIGN_OR_RETURN(const int64_t beta,
                             IntegerParam(spec, "beta", kDefaultBeta, 1, kMaxBeta));
    const int32_t window = plan->rule.recent;
    if (plan->prompt.tokens <= plan->budget || window > plan->budget) return absl::OkStatus();
    plan->layer_budgets =
        Pyramid(plan->budget - window, static_cast<int32_t>(plan->prompt.tokens) - window, beta,
                plan->prompt.num_layers);
    for (int32_t& entries : plan->layer_budgets) entries += window;
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewPyramidKvPolicy() { return std::make_unique<PyramidKvPolicy>(); }

}  // namespace hydrant
