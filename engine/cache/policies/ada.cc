#include <utility>

#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

// Ada-KV (arXiv 2407.11550, section 3): the heads of a layer share its budget in proportion to
// their numbers of the layer's best entries; head_floor of an even share is guaranteed. Applies to
// the scores of any policy: the same policy with budget_scope layer.
class AdaPolicy final : public Policy {
 public:
  AdaPolicy(std::string name, std::unique_ptr<Policy> base)
      : name_(std::move(name)), base_(std::move(base)) {}

  PolicyInfo Info() const override {
    PolicyInfo info = base_->Info();
    info.description = "the heads of a layer share the budget of " + info.name;
    info.name = name_;
    for (PolicyParameter& row : info.parameters) {
      if (row.name == "budget_scope") row.default_value = "layer";
    }
    return info;
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    CacheSpec shared = spec;
    shared.params.try_emplace("budget_scope", "layer");
    return base_->Fill(shared, plan);
  }

 private:
  std::string name_;
  std::unique_ptr<Policy> base_;
};

}  // namespace

std::unique_ptr<Policy> NewAdaSnapKvPolicy() {
  return std::make_unique<AdaPolicy>("ada-snapkv", NewSnapKvPolicy());
}
std::unique_ptr<Policy> NewAdaPyramidPolicy() {
  return std::make_unique<AdaPolicy>("ada-pyramid", NewPyramidKvPolicy());
}
std::unique_ptr<Policy> NewAdaH2oPolicy() {
  return std::make_unique<AdaPolicy>("ada-h2o", NewH2oPolicy());
}

}  // namespace hydrant
