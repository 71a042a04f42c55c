// Counts what is queued and who is live, and turns requests away when the queue is full or an id is
// taken. No clock, no lock: the serving loop keeps it under its own mutex, so that a refusal does
// not wait for a step.
#ifndef HYDRANT_SCHEDULER_REQUEST_GATE_H_
#define HYDRANT_SCHEDULER_REQUEST_GATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "scheduler/options.h"
#include "scheduler/request.h"

namespace hydrant {

class RequestGate {
 public:
  explicit RequestGate(const SchedulerOptions& options) : options_(options) {}

  // Counts the request in, or says why not: RESOURCE_EXHAUSTED QUEUE_FULL with the time after which
  // room is likely, or ALREADY_EXISTS DUPLICATE_REQUEST_ID. An empty request_id is never a
  // duplicate. `tokens`: prompt and resumed ones.
  std::optional<Failed> Enter(RequestHandle handle, const std::string& request_id, int64_t tokens,
                              TimeUs now);
  // The request's one terminal event is about to be delivered.
  void Leave(RequestHandle handle);
  // What waits now, as the scheduler and the inbox count it. What has gone since feeds the estimate
  // of retry times.
  void SetQueue(int num_requests, int64_t num_tokens, TimeUs now);

  bool Empty() const { return live_.empty(); }
  bool IsLive(RequestHandle handle) const { return live_.contains(handle); }
  int num_queued_reqs() const { return num_reqs_; }
  int64_t num_queued_tokens() const { return num_tokens_; }

 private:
  TimeUs RetryAfter(int64_t tokens) const;
  void Decay(TimeUs now);

  SchedulerOptions options_;
  std::unordered_map<RequestHandle, std::string> live_;
  std::unordered_set<std::string> ids_;
  int num_reqs_ = 0;
  int64_t num_tokens_ = 0;
  // Requests and tokens that left the queue lately, each weighted by exp(-age / kWindowUs).
  double left_reqs_ = 0;
  double left_tokens_ = 0;
  TimeUs decayed_at_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_REQUEST_GATE_H_
