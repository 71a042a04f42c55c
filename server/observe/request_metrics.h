// Counts requests where they end, and times what their clients wait for. Every stream writes, a
// scrape reads; atomics only, so nobody waits for anybody. Thread safe.
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

// A counter for each value of one label. The values are fixed; what is none of them counts as the
// last.
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

  // `reason`: a word of docs/guide/api.md.
  void Refused(std::string_view reason) { refused.Add(reason); }
  // Of requests that were accepted, with all of their samples. `policy`: as the request named it;
  // entries count for the one that it was compressed by instead (Usage::compressed_by).
  void Ended(std::string_view policy, const Finished& finished);
  void Ended(std::string_view policy, const Failed& failed);

  LabelledCounter refused;            // by reason
  LabelledCounter ended;              // by outcome
  LabelledCounter prompt_tokens;      // of ended requests, by outcome
  LabelledCounter generation_tokens;  // the same
  LabelledCounter evicted, kept;      // usage's entries of ended requests, by policy
  std::atomic<uint64_t> sent_bytes{0};

  // In seconds, from the arrival of the call; as its messages are handed to gRPC. The first token
  // is that of any sample, a later one comes after another of its own.
  Histogram time_to_first_token, inter_token_latency, end_to_end;
  // In seconds, of finished requests; by the scheduler's clock.
  Histogram queue_time, prefill_time, decode_time;

 private:
  void CountUsage(std::string_view policy, std::string_view outcome, const Usage& usage);
};

// The outcome of a request that was accepted: "stop", "length" (of one of its samples at least),
// "cancelled" (the client went away), "deadline", "slow_reader", "overloaded" (its first token
// would have come too late), "draining" (it outlasted the shutdown), "error".
std::string_view OutcomeOf(const Finished& finished);
std::string_view OutcomeOf(const Failed& failed);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_REQUEST_METRICS_H_
