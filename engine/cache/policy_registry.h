// The policies by name. A policy turns a request's CacheSpec into the plain data that prefill and
// decode follow; it holds no state, so one object of each serves every request from any thread. A
// new policy is one file with one factory function, with its scorer if it ranks a prompt in a way
// of its own (prompt_scorer.h) and its lifecycle if it lives in a way of its own (lifecycle.h), one
// row in policy_registry.cc, one row in its test and one row of documentation.
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
  virtual bool Evicts() const { return true; }  // false: every entry stays and no budget is taken
  // The share of the prompt that the policy keeps if the request names no budget.
  virtual double DefaultRatio(const CacheSpec& /*spec*/) const { return kDefaultCacheRatio; }
  // plan->prompt is set, plan->budget and plan->cap are C already. Fills in the rest. Errors as
  // PlanCache's.
  virtual absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const = 0;
  // Why a filled plan cannot promise min_retained_mass ("keeps samples, ..."); null: it can.
  virtual const char* WhyNoMassIsGuaranteed(const CachePlan& /*plan*/) const { return nullptr; }
  // What it has left open, decided by what is known now. REQUIRES: the plan is this policy's.
  virtual CachePlan Decide(const CachePlan& plan, const Observations& /*observations*/) const {
    return plan;
  }
  // What Decide() has chosen, in words that outlive the process, and the plan again from them,
  // where Fill() has made an open one. InvalidArgument: these are not its words.
  virtual std::string SaveDecision(const CachePlan& /*plan*/) const { return {}; }
  virtual absl::StatusOr<CachePlan> RestoreDecision(const CachePlan& open,
                                                    std::string_view decision) const;
  // What it has decided for the request.
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
std::unique_ptr<Policy> NewAutoPolicy();
std::unique_ptr<Policy> NewSubGenPolicy();
std::unique_ptr<Policy> NewSubGenKCenterPolicy();
std::unique_ptr<Policy> NewRandomPolicy();

// Null where the name is unknown.
const Policy* FindPolicy(std::string_view name);
std::span<const Policy* const> Policies();

// The budget to print in an error message: where `budget` was clamped to kNoCap, the number that
// the request asked for.
inline int64_t AskedFor(const CacheSpec& spec, int64_t budget) {
  if (budget != kNoCap) return budget;
  return spec.max_cache_tokens.value_or(spec.min_cache_tokens.value_or(budget));
}

// A policy's own parameter, `otherwise` where the request does not give it. Errors name
// "cache.params.<name>", the value and what is allowed.
absl::StatusOr<int64_t> IntegerParam(const CacheSpec& spec, const std::string& name,
                                     int64_t otherwise, int64_t least, int64_t most);
absl::StatusOr<double> RealParam(const CacheSpec& spec, const std::string& name, double otherwise,
                                 double least, double most);
// One of `choices`, the first where the request gives none.
absl::StatusOr<std::string> ChoiceParam(const CacheSpec& spec, const std::string& name,
                                        std::span<const std::string_view> choices);

// budget_scope and head_floor. The names of the scopes, the default one first: head and layer
// always, model where the policy's budgets are not a layer's own.
inline constexpr double kDefaultFloor = 0.2;
absl::Status FillScope(const CacheSpec& spec, std::span<const std::string_view> scopes,
                       CachePlan* plan, double default_floor = kDefaultFloor);
std::vector<PolicyParameter> ScopeParameters(std::span<const std::string_view> scopes,
                                             double default_floor = kDefaultFloor);
// What policies have in common that compress a prompt at once by scores that tell heads apart:
// these, candidates and group_reduce.
absl::Status FillSharing(const CacheSpec& spec, std::span<const std::string_view> scopes,
                         CachePlan* plan, double default_floor = kDefaultFloor);
std::vector<PolicyParameter> SharingParameters(std::span<const std::string_view> scopes,
                                               double default_floor = kDefaultFloor);
inline constexpr std::string_view kHeadFirst[] = {"head", "layer", "model"};
inline constexpr std::string_view kHeadOrLayer[] = {"head", "layer"};
inline constexpr std::string_view kModelFirst[] = {"model", "layer", "head"};

// group_reduce alone, the default reduction first.
absl::Status FillGroupReduce(const CacheSpec& spec, std::span<const std::string_view> reductions,
                             CachePlan* plan);
PolicyParameter GroupReduceParameter(std::span<const std::string_view> reductions);
inline constexpr std::string_view kReductions[] = {"mean", "max", "sum_of_squares"};

// A cap of what is otherwise appended while decoding. Where there is one, or may come to be one
// (CacheSpec::may_shrink), H2O's rule goes on from the prompt's scores.
absl::Status FillDecodeCap(const CacheSpec& spec, CachePlan* plan);
PolicyParameter DecodeCapParameter();

// `rolling`: positions within the cache (DecodeRule), so that a stream may outrun the model's
// context. Without sinks to hold on to, most models lose the thread there (StreamingLLM, arXiv
// 2309.17453, section 3.1); it is allowed.
PolicyParameter RollingParameter();
absl::Status FillRolling(const CacheSpec& spec, CachePlan* plan);

// Rows of Info() that every evicting policy has.
PolicyParameter MaxCacheTokensParameter();
PolicyParameter CacheRatioParameter();
PolicyParameter MinCacheTokensParameter();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICY_REGISTRY_H_
