#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {
namespace {

class FullPolicy final : public Policy {
 public:
  PolicyInfo Info() const override { return {"full", "keeps every entry", {}}; }
  bool Evicts() const override { return false; }
  absl::Status Fill(const CacheSpec&, CachePlan*) const override { return absl::OkStatus(); }
};

class Unranked final : public PromptScorer {};
constexpr Unranked kScorer;

}  // namespace

const PromptScorer* const PromptScore::kNone = &kScorer;

std::unique_ptr<Policy> NewFullPolicy() { return std::make_unique<FullPolicy>(); }

}  // namespace hydrant
