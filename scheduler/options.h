// The operator's options for scheduling. Plain data.
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

inline constexpr double kMaxTenantWeight = 1000;

struct SchedulerOptions {
  int max_num_queued_reqs = 1024;
  int64_t max_num_queued_tokens = 4'000'000;
  // Prefill work of a step while others decode, in whole-model tokens; unset: the engine's
  // prefill_rows.
  std::optional<int> max_num_batched_tokens = {};
  // Latency targets of requests without their own (scheduler/pacer.h); unset: maximum throughput
  // without regard to a single request's latency.
  std::optional<TimeUs> target_ttft_us = {};
  std::optional<TimeUs> target_tpot_us = {};
  double watermark = 0.02;  // share of the pages kept free at admission, for growth
  // By tenant, in (0, kMaxTenantWeight]: waiting tenants share the machine in proportion to their
  // weights; others have 1.
  std::map<std::string, double> tenant_weights = {};
  // interval of Progress for a request without other events
  TimeUs progress_interval_us = 1'000'000;
  // The policy of requests for the full cache that do not fit at admission without compression
  // (CheckedRequest::fallback_plan); `full`: they wait until they fit.
  CacheSpec policy_under_pressure = {};
};

// InvalidArgument names the option, its value and the allowed range.
absl::Status ValidateOptions(const SchedulerOptions& options);

// Parses policy_under_pressure: "wait" (`full`), or a policy (engine/cache/cache_spec_parser.h).
// InvalidArgument names the problem, without the option's name.
absl::StatusOr<CacheSpec> ParsePolicyUnderPressure(const std::string& text);
// As above, for the default policy of requests that name none.
absl::StatusOr<CacheSpec> ParseDefaultCachePolicy(const std::string& text);
// "NAME=WEIGHT,NAME=WEIGHT"; a name has no comma. Empty: no weights. InvalidArgument names the
// wrong entry.
absl::StatusOr<std::map<std::string, double>> ParseTenantWeights(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OPTIONS_H_
