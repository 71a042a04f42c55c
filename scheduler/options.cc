#include "scheduler/options.h"

#include <charconv>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/cache_spec_parser.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// A prompt long enough that every budget compresses it.
constexpr PromptShape kLongPrompt = {.tokens = 1 << 24, .predicts_scores = true};

absl::Status CheckSpec(const CacheSpec& spec) { return PlanCache(spec, kLongPrompt).status(); }

constexpr const char* kWeights = "tenant-weights";

absl::Status CheckWeight(const std::string& tenant, double weight) {
  if (tenant.empty())
    return absl::InvalidArgumentError(absl::StrCat(kWeights, ": a tenant's name is empty"));
  if (tenant.size() > kMaxTenantBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kWeights, ": a name has ", tenant.size(),
                                                   " bytes; at most ", kMaxTenantBytes));
  }
  if (weight > 0.0 && weight <= kMaxTenantWeight) return absl::OkStatus();  // also rejects NaN
  return absl::InvalidArgumentError(absl::StrCat(kWeights, ": the weight ", weight, " of '", tenant,
                                                 "' is outside (0, ", kMaxTenantWeight, "]"));
}

}  // namespace

absl::StatusOr<std::map<std::string, double>> ParseTenantWeights(std::string_view text) {
  std::map<std::string, double> weights;
  if (text.empty()) return weights;
  const std::vector<std::string> entries =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& entry : entries) {
    const auto wrong = [&](std::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWeights, ": '", entry, "' ", absl::string_view(why.data(), why.size())));
    };
    const size_t equals = entry.rfind('=');
    if (equals == std::string::npos) return wrong("is not NAME=WEIGHT");
    const std::string name = entry.substr(0, equals);
    const char* const begin = entry.data() + equals + 1;
    const char* const end = entry.data() + entry.size();
    double weight = 0;
    const auto [rest, error] = std::from_chars(begin, end, weight);
    if (error != std::errc() || rest != end)
      return wrong(
          absl::StrCat("has no number after '='; a weight is in (0, ", kMaxTenantWeight, "]"));
    const absl::Status status = CheckWeight(name, weight);
    if (!status.ok()) return status;
    if (!weights.emplace(name, weight).second) return wrong("names a tenant a second time");
  }
  return weights;
}

absl::Status ValidateOptions(const SchedulerOptions& options) {
  auto outside = [](const char* field, auto value, const char* range) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is outside ", range));
  };
  if (options.max_num_queued_reqs < 1) {
    return outside("max_num_queued_reqs", options.max_num_queued_reqs, "[1, 2^31)");
  }
  if (options.max_num_queued_tokens < 1) {
    return outside("max_num_queued_tokens", options.max_num_queued_tokens, "[1, 2^63)");
  }
  if (options.max_num_batched_tokens.value_or(1) < 1) {
    return outside("max_num_batched_tokens", *options.max_num_batched_tokens, "[1, 2^31)");
  }
  if (options.target_ttft_us.value_or(1) < 1) {
    return outside("target_ttft_us", *options.target_ttft_us, "[1, 2^63)");
  }
  if (options.target_tpot_us.value_or(1) < 1) {
    return outside("target_tpot_us", *options.target_tpot_us, "[1, 2^63)");
  }
  if (!(options.watermark >= 0.0 && options.watermark <= 0.5)) {
    return outside("watermark", options.watermark, "[0, 0.5]");
  }
  for (const auto& [tenant, weight] : options.tenant_weights) {
    const absl::Status status = CheckWeight(tenant, weight);
    if (!status.ok()) return status;
  }
  if (options.progress_interval_us < 1) {
    return outside("progress_interval_us", options.progress_interval_us, "[1, 2^63)");
  }
  const absl::Status status = CheckSpec(options.policy_under_pressure);
  if (!status.ok())
    return absl::InvalidArgumentError(absl::StrCat("policy_under_pressure: ", status.message()));
  return absl::OkStatus();
}

absl::StatusOr<CacheSpec> ParseDefaultCachePolicy(const std::string& text) {
  HYDRANT_ASSIGN_OR_RETURN(CacheSpec spec, ParseCacheSpec(text));
  HYDRANT_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

absl::StatusOr<CacheSpec> ParsePolicyUnderPressure(const std::string& text) {
  if (text == "wait") return CacheSpec();
  HYDRANT_ASSIGN_OR_RETURN(CacheSpec spec, ParseCacheSpec(text));
  if (spec.policy == "full") {
    return absl::InvalidArgumentError(
        "full: is what finds no room; wait, or another policy with a budget");
  }
  HYDRANT_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

}  // namespace hydrant
