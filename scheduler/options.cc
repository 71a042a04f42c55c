#include "scheduler/options.h"

#include "absl/strings/str_cat.h"

namespace hydrant {

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
  return absl::OkStatus();
}

}  // namespace hydrant
