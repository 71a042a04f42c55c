// The policies by name. A policy turns a request's CacheSpec into the plain data that prefill and
// decode follow; it holds no state, so one object of each serves every request from any thread. A
// new policy is one file with one factory function, with its scorer (prompt_scorer.h) and its
// retention schedule (retention_schedule.h) if the existing ones do not suffice, one row in
// policy_registry.cc, one row in its test and one row of documentation.
#ifndef HYDRANT_ENGINE_CACHE_POLICY_REGISTRY_H_
#define HYDRANT_ENGINE_CACHE_POLICY_REGISTRY_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/cache_plan.h"

namespace hydrant {

class Policy {
 public:
  virtual ~Policy() = default;
  virtual PolicyInfo Info() const = 0;
  virtual bool Evicts() const { return true; }  // false: keeps every entry and takes no budget
  // The share of the prompt that the policy keeps if the request sets no budget.
  virtual double DefaultRatio(const CacheSpec& /*spec*/) const { return kDefaultCacheRatio; }
  // Fills in the rest of the plan; plan->prompt is set, plan->budget and plan->cap are C. Returns
  // errors as PlanCache() does.
  virtual absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const = 0;
  // Why a filled plan cannot guarantee min_retained_mass ("keeps samples, ..."); null: it can.
  virtual const char* CheckMassGuarantee(const CachePlan& /*plan*/) const { return nullptr; }
  // Decides the open part of the plan by the inputs. REQUIRES: the plan is this policy's.
  virtual CachePlan Resolve(const CachePlan& plan, const ResolveInputs& /*inputs*/) const {
    return plan;
  }
  // The choice of Resolve() as text that another process can read, and the decided plan from this
  // text and an open plan of Fill(). InvalidArgument: not a text of this policy.
  virtual std::string SaveDecision(const CachePlan& /*plan*/) const { return {}; }
  virtual absl::StatusOr<CachePlan> RestoreDecision(const CachePlan& open,
                                                    std::string_view decision) const;
  // The decisions for the request.
  virtual PolicyReport Report(const CachePlan& /*plan*/) const { return {}; }
};

std::unique_ptr<Policy> NewFullPolicy();
std::unique_ptr<Policy> NewLocalPolicy();
std::unique_ptr<Policy> NewStreamingPolicy();
std::unique_ptr<Policy> NewH2oPolicy();
std::unique_ptr<Policy> NewScissorhandsPolicy();
std::unique_ptr<Policy> NewTovaPolicy();
std::unique_ptr<Policy> NewSnapKvPolicy();
std::unique_ptr<Policy> NewPyramidKvPolicy();
std::unique_ptr<Policy> NewAdaSnapKvPolicy();
std::unique_ptr<Policy> NewAdaPyramidPolicy();
std::unique_ptr<Policy> NewAdaH2oPolicy();
std::unique_ptr<Policy> NewCo2Policy();
std::unique_ptr<Policy> NewReconstructPolicy();
std::unique_ptr<Policy> NewEchoPolicy();
std::unique_ptr<Policy> NewLearnedPolicy();
std::unique_ptr<Policy> NewAutoPolicy();
std::unique_ptr<Policy> NewSubGenPolicy();
std::unique_ptr<Policy> NewSubGenKCenterPolicy();
std::unique_ptr<Policy> NewRandomPolicy();

// Null: unknown name.
const Policy* FindPolicy(std::string_view name);
std::span<const Policy* const> Policies();

// The budget to print in error messages: the request's own if `budget` was clamped to kNoCap.
inline int64_t RequestedBudget(const CacheSpec& spec, int64_t budget) {
  if (budget != kNoCap) return budget;
  return spec.max_cache_tokens.value_or(spec.min_cache_tokens.value_or(budget));
}

// A policy's own parameter, or `otherwise` if the request does not set it. Errors name
// "cache.params.<name>", the value and the allowed range.
absl::StatusOr<int64_t> IntegerParam(const CacheSpec& spec, const std::string& name,
                                     int64_t otherwise, int64_t least, int64_t most);
absl::StatusOr<double> RealParam(const CacheSpec& spec, const std::string& name, double otherwise,
                                 double least, double most);
// One of `choices`; the first is the default.
absl::StatusOr<std::string> ChoiceParam(const CacheSpec& spec, const std::string& name,
                                        std::span<const std::string_view> choices);

// budget_scope and head_floor. scopes: the default first; always head and layer, and model unless
// the policy sets budgets per layer. With PromptShape::HasFewHeads() head is the default, not model.
inline constexpr double kDefaultFloor = 0.2;
absl::Status FillScope(const CacheSpec& spec, std::span<const std::string_view> scopes,
                       CachePlan* plan, double default_floor = kDefaultFloor);
std::vector<PolicyParameter> ScopeParameters(std::span<const std::string_view> scopes,
                                             double default_floor = kDefaultFloor);
// For policies that compress a prompt at once by per-head scores: budget_scope, head_floor,
// candidates and group_reduce.
absl::Status FillSharing(const CacheSpec& spec, std::span<const std::string_view> scopes,
                         CachePlan* plan, double default_floor = kDefaultFloor);
std::vector<PolicyParameter> SharingParameters(std::span<const std::string_view> scopes,
                                               double default_floor = kDefaultFloor);
inline constexpr std::string_view kHeadFirst[] = {"head", "layer", "model"};
inline constexpr std::string_view kHeadOrLayer[] = {"head", "layer"};
inline constexpr std::string_view kModelFirst[] = {"model", "layer", "head"};

// group_reduce alone. reductions: the default first.
absl::Status FillGroupReduce(const CacheSpec& spec, std::span<const std::string_view> reductions,
                             CachePlan* plan);
PolicyParameter GroupReduceParameter(std::span<const std::string_view> reductions);
inline constexpr std::string_view kReductions[] = {"mean", "max", "sum_of_squares"};

// decode_cap: without it, entries are appended while decoding. With a cap, or a later one
// (CacheSpec::evictable), H2O's rule continues from the prompt's scores.
absl::Status FillDecodeCap(const CacheSpec& spec, CachePlan* plan);
PolicyParameter DecodeCapParameter();

// `rolling`: positions within the cache (DecodeRule), so that a sequence may run past the model's
// context. Without sinks most models lose coherence there (StreamingLLM, arXiv 2309.17453, section
// 3.1); it is allowed.
PolicyParameter RollingParameter();
absl::Status FillRolling(const CacheSpec& spec, CachePlan* plan);

// Rows of Info() that every evicting policy has.
PolicyParameter MaxCacheTokensParameter();
PolicyParameter CacheRatioParameter();
PolicyParameter MinCacheTokensParameter();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICY_REGISTRY_H_
