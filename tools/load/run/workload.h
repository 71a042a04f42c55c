// The requests of a load: prompts of exact lengths from random token ids or from a text, output
// lengths, cache configurations, and injected faults. All drawn from one seed; request i does not
// depend on earlier calls.
#ifndef HYDRANT_TOOLS_LOAD_RUN_WORKLOAD_H_
#define HYDRANT_TOOLS_LOAD_RUN_WORKLOAD_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tools/load/run/planned_request.h"
#include "tools/load/run/trace.h"

namespace hydrant::load {

struct WorkloadOptions {
  uint64_t seed = 0;
  int64_t num_requests = 1000;
  int64_t input_tokens = 512;
  int64_t output_tokens = 128;
  // Lengths are uniform in [1 - range_ratio, 1 + range_ratio] times these.
  double range_ratio = 0.0;
  uint32_t vocab_size = 0;                  // random ids are below it
  std::vector<uint32_t> text = {};          // prompts are pieces of it; empty: random ids
  int64_t shared_prefixes = 0;              // number of prefixes shared by all requests
  int64_t shared_prefix_tokens = 0;         // added to input_tokens
  int64_t turns = 1;                        // requests per conversation
  double think_seconds = 0.0;               // mean of the exponential pause between turns
  std::vector<double> arm_weights = {1.0};  // of the mix, above 0
  std::vector<TracedRequest> trace = {};    // gives lengths and shared prefixes
  double trace_length_scale = 1.0;
  std::array<double, kNumFaults> fault_rates =
      {};                        // by fault: kCancel, kDeadline, ...; sum at most 1
  double fault_deadline = 0.05;  // seconds
  double slow_read_delay = 0.5;  // seconds
  int64_t oversized_tokens = 10'000'000;
};

class Workload {
 public:
  // InvalidArgument names the option.
  static absl::StatusOr<Workload> Create(WorkloadOptions options);

  int64_t size() const { return options_.num_requests; }
  // Request i is turn i % turns() of conversation i / turns(); the last one may be shorter.
  int64_t turns() const { return options_.turns; }
  int64_t num_conversations() const { return (size() + turns() - 1) / turns(); }
  PlannedRequest Make(int64_t index) const;

 private:
  explicit Workload(WorkloadOptions options) : options_(std::move(options)) {}

  WorkloadOptions options_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_WORKLOAD_H_
