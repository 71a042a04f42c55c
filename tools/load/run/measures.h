// Computes the figures of a run from its outcomes, in the terms of `vllm bench serve`: TTFT is the
// first message with a token, ITL the gap between messages with tokens (reported beside the tokens
// per message), TPOT the time from the first token to the last divided by the tokens minus one,
// E2EL the last token. All values are kept, so quantiles are exact. Times in milliseconds.
#ifndef HYDRANT_TOOLS_LOAD_RUN_MEASURES_H_
#define HYDRANT_TOOLS_LOAD_RUN_MEASURES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/outcome.h"

namespace hydrant::load {

// Statistics of values; quantiles interpolate linearly (numpy's default).
struct Distribution {
  int64_t count = 0;
  double mean = 0.0;
  double deviation = 0.0;  // of the values, not of a sample
  double p50 = 0.0, p90 = 0.0, p95 = 0.0, p99 = 0.0, p999 = 0.0;
  double max = 0.0;
};
// Sorts the values.
Distribution Describe(std::vector<double>* values);
// REQUIRES: sorted, not empty, 0 <= q <= 1.
double Quantile(std::span<const double> sorted, double q);

// Latency objectives of a good request; unset: no limit.
struct Objectives {
  std::optional<double> ttft_ms, tpot_ms, itl_ms, e2el_ms;

  // "ttft:500 tpot:50", in any order, separated by spaces or commas. InvalidArgument.
  static absl::StatusOr<Objectives> Parse(std::string_view text);
  bool Any() const { return ttft_ms || tpot_ms || itl_ms || e2el_ms; }
  // For a completed request. Its ITL is its largest.
  bool MetBy(const Outcome& outcome) const;
  // The same for times in seconds.
  bool MetBy(double ttft, double tpot, double itl, double e2el) const;
};

struct Measures {
  double seconds = 0.0;  // from the start to the last end
  int64_t requests = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t faults = 0;
  int64_t unfinished = 0;
  int64_t good = 0;           // completed and within the objectives
  int64_t input_tokens = 0;   // of completed requests
  int64_t output_tokens = 0;  // of all requests, as received
  int64_t messages = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  double kv_tokens_kept = 0;     // sum over completed requests of the mean over their heads
  double kv_tokens_evicted = 0;  // the same
  int64_t kv_bytes = 0, kv_bytes_of_full = 0;  // sums over completed requests at their ends
  int64_t preemptions = 0;
  int64_t cached_tokens = 0;                   // input tokens found in the prefix cache
  int64_t hits = 0;                            // completed requests with cached tokens
  std::map<std::string, int64_t> errors = {};  // "RESOURCE_EXHAUSTED QUEUE_FULL", of failed ones
  // For completed requests.
  Distribution ttft_hit, ttft_miss;  // TTFT with and without a hit, if reported
  Distribution ttft, tpot, itl, e2el, queue, tokens_per_message;
  Distribution lateness;  // sent - intended, of all sent requests

  double RequestThroughput() const { return Rate(completed); }
  double Goodput() const { return Rate(good); }
  double OutputThroughput() const { return Rate(output_tokens); }
  double CacheHitRate() const {
    return input_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(input_tokens)
                            : 0.0;
  }
  double TotalThroughput() const { return Rate(input_tokens + output_tokens); }

 private:
  double Rate(int64_t count) const {
    return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0;
  }
};

// The key for counting errors: the status, then the server's reason.
std::string ErrorOf(const Outcome& outcome);

// For the outcomes of one arm, or of all (arm < 0), intended at `from` or later; earlier ones are
// warm-up.
Measures Measure(std::span<const Outcome> outcomes, const Objectives& objectives, int arm = -1,
                 double from = 0.0);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_MEASURES_H_
