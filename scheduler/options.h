// What an operator may set about scheduling. Plain data.
#ifndef HYDRANT_SCHEDULER_OPTIONS_H_
#define HYDRANT_SCHEDULER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/cache_spec.h"
#include "scheduler/request.h"

namespace hydrant {

inline constexpr double kMostTenantWeight = 1000;

struct SchedulerOptions {
  int max_num_queued_reqs = 1024;
  int64_t max_num_queued_tokens = 4'000'000;
  // Prefill work of a step while others decode, in whole-model tokens; unset: the engine's
  // prefill_rows.
  std::optional<int> max_num_batched_tokens = {};
  // What requests that name no targets of their own are held to (scheduler/pacer.h); unset: the
  // most tokens a second, whatever one of them waits.
  std::optional<TimeUs> target_ttft_us = {};
  std::optional<TimeUs> target_tpot_us = {};
  double watermark = 0.02;  // share of the pages kept free at admission, for growth
  // By tenant, in (0, kMostTenantWeight]: while several wait, their shares of the machine are as
  // their weights; who is not named has 1.
  std::map<std::string, double> tenant_weights = {};
  TimeUs progress_interval_us = 1'000'000;  // a silent request hears Progress this often
  // By which a request for the full cache is admitted whose whole cache does not fit when its turn
  // comes (CheckedRequest::under_pressure); `full`: it waits until it does.
  CacheSpec policy_under_pressure = {};
};

// InvalidArgument names the option, its value and the allowed range.
absl::Status ValidateOptions(const SchedulerOptions& options);

// What an operator writes of policy_under_pressure: "wait" (`full`), or a policy
// (engine/cache/cache_spec_parser.h). InvalidArgument says what is wrong with it, without the
// option's name.
absl::StatusOr<CacheSpec> ParsePolicyUnderPressure(const std::string& text);
// The same of the policy that requests get which name none.
absl::StatusOr<CacheSpec> ParseDefaultCachePolicy(const std::string& text);
// "NAME=WEIGHT,NAME=WEIGHT"; a name has no comma. Empty: none. InvalidArgument says what of which
// entry is wrong.
absl::StatusOr<std::map<std::string, double>> ParseTenantWeights(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OPTIONS_H_
