// Counts ended requests and measures latencies. Streams write, a scrape reads; atomics only, no
// locks. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_REQUEST_METRICS_H_
#define HYDRANT_SERVER_OBSERVE_REQUEST_METRICS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/histogram.h"
#include "scheduler/request.h"

namespace hydrant {

// A counter for each value of one label. The set of values is fixed; unknown values count as the
// last one.
class LabelledCounter {
 public:
  explicit LabelledCounter(std::vector<std::string> values)
      : values_(std::move(values)), counts_(new std::atomic<uint64_t>[values_.size()]()) {}

  void Add(std::string_view value, uint64_t count = 1) {
    counts_[Find(value)].fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t Count(std::string_view value) const { return counts_[Find(value)]; }
  const std::vector<std::string>& values() const { return values_; }

 private:
  size_t Find(std::string_view value) const {
    size_t i = 0;
    while (i + 1 < values_.size() && values_[i] != value) ++i;
    return i;
  }

  const std::vector<std::string> values_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
};

class RequestMetrics {
 public:
  RequestMetrics();

  // `reason`: a reason of docs/guide/api.md.
  void Refused(std::string_view reason) { refused.Add(reason); }
  // For accepted requests, all samples included. Entries count for Usage::compressed_by if it is
  // set, else for Usage::policy, else for `policy`, the one that the request names.
  void Ended(std::string_view policy, const Finished& finished);
  void Ended(std::string_view policy, const Failed& failed);

  LabelledCounter refused;                   // by reason
  LabelledCounter ended;                     // by outcome
  LabelledCounter prompt_tokens;             // of ended requests, by outcome
  LabelledCounter generation_tokens;         // by outcome
  LabelledCounter evicted, kept;             // entries in the usage of ended requests, by policy
  std::atomic<uint64_t> recalled_tokens{0};  // of ended requests
  std::atomic<uint64_t> sent_bytes{0};

  // Seconds from the arrival of the call until a message is passed to gRPC. The first token may be
  // of any sample; inter-token latency is per sample.
  Histogram time_to_first_token, inter_token_latency, end_to_end;
  // Seconds, for finished requests; by the scheduler's clock.
  Histogram queue_time, prefill_time, decode_time;

 private:
  void CountUsage(std::string_view policy, std::string_view outcome, const Usage& usage);
};

// The outcome of an accepted request: "stop", "length" (at least one sample), "cancelled" (the
// client left), "deadline", "slow_reader", "overloaded" (the first token would have been too late),
// "draining" (it outlasted the shutdown), "error".
std::string_view OutcomeOf(const Finished& finished);
std::string_view OutcomeOf(const Failed& failed);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_REQUEST_METRICS_H_
