#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

class FullPolicy final : public Policy {
 public:
  PolicyInfo Info() const override { return {"full", "keeps every entry", {}}; }
  bool Evicts() const override { return false; }
  absl::Status Fill(const CacheSpec&, CachePlan*) const override { return absl::OkStatus(); }
};

}  // namespace

std::unique_ptr<Policy> NewFullPolicy() { return std::make_unique<FullPolicy>(); }

}  // namespace hydrant
