// Counts what is queued and who is live, and turns requests away when the queue is full or an id is
// taken. A request enters with all of its samples, each of which counts as one that waits, and is
// live until the last of them has left. No clock, no lock: the serving loop keeps it under its own
// mutex, so that a refusal does not wait for a step.
#ifndef HYDRANT_SCHEDULER_REQUEST_GATE_H_
#define HYDRANT_SCHEDULER_REQUEST_GATE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "scheduler/options.h"
#include "scheduler/request.h"

namespace hydrant {

class RequestGate {
 public:
  explicit RequestGate(const SchedulerOptions& options) : options_(options) {}

  // Counts the request in with all of its samples, or says why none of them: RESOURCE_EXHAUSTED
  // QUEUE_FULL with the time after which room is likely, INVALID_ARGUMENT INVALID where an empty
  // queue has no room for so many, or ALREADY_EXISTS DUPLICATE_REQUEST_ID. An empty request_id is
  // never a duplicate. `tokens`: of each sample, prompt and resumed ones. REQUIRES: a sample at
  // least, none of them live
  std::optional<Failed> Enter(std::span<const RequestHandle> samples, const std::string& request_id,
                              int64_t tokens, TimeUs now);
  // The sample's one terminal event is about to be delivered. With a request's last one its id is
  // free.
  void Leave(RequestHandle sample);
  // The live samples of the request whose first one this is, or was, in their order; none: it is
  // not live.
  std::vector<RequestHandle> LiveSamples(RequestHandle first) const;
  // What waits now, as the scheduler and the inbox count it. What has gone since feeds the estimate
  // of retry times.
  void SetQueue(int num_requests, int64_t num_tokens, TimeUs now);

  bool Empty() const { return live_.empty(); }
  int num_queued_reqs() const { return num_reqs_; }
  int64_t num_queued_tokens() const { return num_tokens_; }

 private:
  struct Live {
    std::string request_id;
    std::vector<RequestHandle> samples;  // that are live
  };
  TimeUs RetryAfter(int num_requests, int64_t tokens) const;
  void Decay(TimeUs now);

  SchedulerOptions options_;
  std::unordered_map<RequestHandle, Live> live_;               // by the first sample
  std::unordered_map<RequestHandle, RequestHandle> first_of_;  // of the live samples
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
