// From the outcomes of a run to its figures, in the words of `vllm bench serve`: TTFT is the first
// message with a token, ITL the gap between messages with tokens (and how many tokens one has
// stands beside it), TPOT the time from the first token to the last over the tokens but one, E2EL
// the last token. Every value is kept, so quantiles are exact. Times in milliseconds.
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

// Of values; a quantile lies between the two nearest, by a line (numpy's default).
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

// What a request has to keep to count as good; unset: anything.
struct Objectives {
  std::optional<double> ttft_ms, tpot_ms, itl_ms, e2el_ms;

  // "ttft:500 tpot:50", the names in any order, separated by spaces or commas. InvalidArgument.
  static absl::StatusOr<Objectives> Parse(std::string_view text);
  bool Any() const { return ttft_ms || tpot_ms || itl_ms || e2el_ms; }
  // Of a completed request. Its ITL is its largest.
  bool MetBy(const Outcome& outcome) const;
  // The same, of its times in seconds.
  bool MetBy(double ttft, double tpot, double itl, double e2el) const;
};

struct Measures {
  double seconds = 0.0;  // from the start to the last end
  int64_t requests = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t faults = 0;
  int64_t unfinished = 0;
  int64_t good = 0;           // completed, and the objectives met
  int64_t input_tokens = 0;   // of completed requests
  int64_t output_tokens = 0;  // of all, as they came
  int64_t messages = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  double kv_tokens_kept = 0;     // sum over completed requests of the mean over their heads
  double kv_tokens_evicted = 0;  // the same
  int64_t kv_bytes = 0, kv_bytes_of_full = 0;  // sums over completed requests, at their ends
  int64_t preemptions = 0;
  int64_t cached_tokens = 0;                   // of input_tokens, those that were not read again
  int64_t hits = 0;                            // completed requests that had any
  std::map<std::string, int64_t> errors = {};  // "RESOURCE_EXHAUSTED QUEUE_FULL", of failed ones
  // Of completed requests.
  Distribution ttft_hit, ttft_miss;  // TTFT, where the server says which it was
  Distribution ttft, tpot, itl, e2el, queue, tokens_per_message;
  Distribution lateness;  // sent - intended, of all that were sent

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

// What errors are counted by: the status, and the server's own word behind it.
std::string ErrorOf(const Outcome& outcome);

// Of the outcomes of one arm, or of all (arm < 0), that were to be sent at `from` or later: what
// comes before is warm-up.
Measures Measure(std::span<const Outcome> outcomes, const Objectives& objectives, int arm = -1,
                 double from = 0.0);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_MEASURES_H_
