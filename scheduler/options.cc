#include "scheduler/options.h"

#include "absl/strings/str_cat.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/cache_words.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// A prompt that every budget compresses.
constexpr PromptShape kLongPrompt = {.tokens = 1 << 24};

absl::Status CheckSpec(const CacheSpec& spec) { return PlanCache(spec, kLongPrompt).status(); }

}  // namespace

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
  if (options.progress_interval_us < 1) {
    return outside("progress_interval_us", options.progress_interval_us, "[1, 2^63)");
  }
  const absl::Status status = CheckSpec(options.policy_under_pressure);
  if (!status.ok())
    return absl::InvalidArgumentError(absl::StrCat("policy_under_pressure: ", status.message()));
  return absl::OkStatus();
}

absl::StatusOr<CacheSpec> ParsePolicyUnderPressure(const std::string& text) {
  if (text == "wait") return CacheSpec();
  HYDRANT_ASSIGN_OR_RETURN(CacheSpec spec, ParseCacheWords(text));
  if (spec.policy == "full") {
    return absl::InvalidArgumentError(
        "full: is what finds no room; wait, or another policy with a budget");
  }
  HYDRANT_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

}  // namespace hydrant
