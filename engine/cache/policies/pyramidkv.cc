#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/cache/policies/snapkv.h"
#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultBeta = 20;
constexpr int64_t kMostBeta = 1000;

// Entries beside the window that each layer keeps: falling evenly from the first layer to the last,
// whose part is 1 / beta of the average, `base`, or what the first layer leaves it if it keeps all
// of `most`. The published steps are whole numbers and add up to more than num_layers * base; what
// they are too many is taken off one by one, from the first layer on.
std::vector<int32_t> Pyramid(int32_t base, int32_t most, int64_t beta, int num_layers) {
  const int64_t wanted = 2 * int64_t{base} - base / beta;
  const int64_t highest = std::min<int64_t>(wanted, most);
  const int64_t lowest = 2 * int64_t{base} - highest;
  const int64_t step = num_layers > 1 ? (highest - lowest) / (num_layers - 1) : 0;
  std::vector<int32_t> layers(num_layers);
  for (int layer = 0; layer < num_layers; ++layer)
    layers[layer] = static_cast<int32_t>(num_layers > 1 ? highest - layer * step : base);
  int64_t excess =
      std::accumulate(layers.begin(), layers.end(), int64_t{0}) - int64_t{num_layers} * base;
  for (int layer = 0; excess > 0; layer = (layer + 1) % num_layers) {
    if (layers[layer] <= lowest) continue;
    --layers[layer];
    --excess;
  }
  return layers;
}

// PyramidKV (arXiv 2406.02069, section 4.2): SnapKV's choice, with more entries in the lower
// layers, whose attention is spread wide, than in the upper ones.
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
    if (absl::Status status = FillSnapKv(spec, plan); !status.ok()) return status;
    if (absl::Status status = FillSharing(spec, kHeadOrLayer, plan); !status.ok()) return status;
    const absl::StatusOr<int64_t> beta = IntegerParam(spec, "beta", kDefaultBeta, 1, kMostBeta);
    if (!beta.ok()) return beta.status();
    const int32_t window = plan->rule.recent;
    if (plan->prompt.tokens <= plan->budget || window > plan->budget) return absl::OkStatus();
    plan->layer_budgets =
        Pyramid(plan->budget - window, static_cast<int32_t>(plan->prompt.tokens) - window, *beta,
                plan->prompt.num_layers);
    for (int32_t& entries : plan->layer_budgets) entries += window;
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewPyramidKvPolicy() { return std::make_unique<PyramidKvPolicy>(); }

}  // namespace hydrant
