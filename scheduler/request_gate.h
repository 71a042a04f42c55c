// Counts queued requests, tracks live ones, and refuses requests when the queue is full, an id is
// taken, or their first token would be too late. A request enters with all of its samples, each of
// which counts as a waiting request, and is live until its last sample has left. No clock, no lock:
// the serving loop keeps it under its own mutex, so that a refusal does not wait for a step.
#ifndef HYDRANT_SCHEDULER_REQUEST_GATE_H_
#define HYDRANT_SCHEDULER_REQUEST_GATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/options.h"
#include "scheduler/queue_forecast.h"
#include "scheduler/request.h"

namespace hydrant {

class RequestGate {
 public:
  explicit RequestGate(const SchedulerOptions& options) : options_(options) {}

  // Accepts the request with all of its samples, or refuses all: RESOURCE_EXHAUSTED QUEUE_FULL, or
  // OVERLOADED if the estimated wait exceeds its target, each with a retry time; INVALID_ARGUMENT
  // INVALID if even an empty queue has no room for its samples; ALREADY_EXISTS
  // DUPLICATE_REQUEST_ID. An empty request_id is never a duplicate. REQUIRES: at least one sample,
  // none of them live
  std::optional<Failed> Enter(std::span<const RequestHandle> samples, const Request& request,
                              TimeUs now);
  // Called before the sample's terminal event is delivered. After a request's last one its id
  // is free.
  void Remove(RequestHandle sample);
  // The first sample of the live request of this owner and id.
  std::optional<RequestHandle> Find(const std::string& owner, const std::string& request_id) const;
  // The live samples of the request with this first sample, in their order; empty: it is not live.
  std::vector<RequestHandle> LiveSamples(RequestHandle first) const;
  // Sets the queue's state: the scheduler's queue plus requests and tokens in the inbox.
  void SetQueue(const QueueForecast& scheduler, int inbox_requests, int64_t inbox_tokens);

  bool Empty() const { return live_.empty(); }
  int num_queued_reqs() const { return num_reqs_; }
  int64_t num_queued_tokens() const { return num_tokens_; }

 private:
  using OwnId = std::pair<std::string, std::string>;  // a request's owner and id
  struct Live {
    OwnId id;
    std::vector<RequestHandle> samples;  // the live ones
  };
  std::optional<Failed> Full(int count, int64_t tokens) const;
  std::optional<Failed> TooLate(const Request& request, TimeUs now) const;
  TimeUs RetryWhenFull(int count, int64_t tokens) const;

  SchedulerOptions options_;
  std::unordered_map<RequestHandle, Live> live_;               // by first sample
  std::unordered_map<RequestHandle, RequestHandle> first_of_;  // by live sample
  std::map<OwnId, RequestHandle> ids_;                         // first sample by request
  int num_reqs_ = 0;
  int64_t num_tokens_ = 0;
  QueueForecast forecast_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_REQUEST_GATE_H_
