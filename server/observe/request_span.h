// The trace spans of one call: a span of the call with child spans for queueing, prefill, decode,
// and the times in which the request was preempted or swapped out. They are made when the request
// has ended, from its usage, and contain no prompt and no output text. Not thread safe: the calls
// follow the request's order.
#ifndef HYDRANT_SERVER_OBSERVE_REQUEST_SPAN_H_
#define HYDRANT_SERVER_OBSERVE_REQUEST_SPAN_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "opentelemetry/proto/trace/v1/trace.pb.h"
#include "scheduler/request.h"
#include "server/observe/trace_context.h"
#include "server/wire/served_model.h"
#include "server/wire/status_details.h"

namespace hydrant {

class RequestSpan {
 public:
  using Span = opentelemetry::proto::trace::v1::Span;
  // Takes all spans of a call; must not block.
  using Sink = std::function<void(std::vector<Span>)>;

  // Created when the call arrives. `own` is its trace context; if that is not sampled, only the log
  // uses it. `parent_span_id`: "" for a new trace. `method`: "service/method".
  RequestSpan(TraceContext own, std::string parent_span_id, std::string_view method, Sink sink);

  const TraceContext& context() const { return own_; }

  // Sets the request's attributes; called before it is submitted.
  void SetRequest(const ServedModel& model, const Request& request, size_t samples);

  // Exactly one of the following is called, once.
  void Refuse(const Refusal& refusal);
  void End(const Finished& finished);
  void End(const Failed& failed);

 private:
  using Clock = std::chrono::steady_clock;

  struct Interval {
    Clock::time_point begin, end;
  };
  struct Phases {
    Clock::time_point begin, prefill, first_token, end;
    bool has_token = false;  // if false, first_token is the end of the request
  };

  // usage: null for a refused request.
  void End(absl::StatusCode code, std::string_view outcome, std::string_view reason,
           const Usage* usage);
  Phases PhasesOf(const Usage& usage) const;
  void AddFirstToken(Clock::time_point at);
  std::vector<Span> Below(const Phases& phases, const Usage& usage) const;
  void Place(Interval when, const std::string& id, const std::string& parent, Span* span) const;
  uint64_t UnixNanos(Clock::time_point time) const;

  const TraceContext own_;
  const std::string parent_span_id_;
  const Sink sink_;
  const Clock::time_point arrived_ = Clock::now();
  const std::chrono::system_clock::time_point arrived_at_ = std::chrono::system_clock::now();
  size_t resumed_tokens_ = 0;
  std::string policy_;  // of the cache: the request's, or the context's that it continues
  Span span_;           // without times and ids until the end; empty if not sampled
};

// For the request log; null if there is no trace.
inline const TraceContext* ContextOf(const RequestSpan* span) {
  return span == nullptr ? nullptr : &span->context();
}

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_REQUEST_SPAN_H_
