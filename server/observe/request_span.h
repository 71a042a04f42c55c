// What a trace is told of one call: a span of the call, and below it spans of the request's
// queueing, prefill and decode, and of the times in which others had its room. They are made once,
// when the request has ended, from its usage; nothing that a client has sent or was sent as text is
// in them. Not thread safe: a call is told of in its order.
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
  // Takes all spans of a call; must not wait.
  using Sink = std::function<void(std::vector<Span>)>;

  // The call has just come. `own` is its place in the trace; where that is not sampled, it is for
  // the log alone. `parent_span_id`: "" where the trace begins here. `method`: "service/method".
  RequestSpan(TraceContext own, std::string parent_span_id, std::string_view method, Sink sink);

  const TraceContext& context() const { return own_; }

  // What the request is, before it is submitted.
  void SetRequest(const ServedModel& model, const Request& request, size_t samples);

  // One of these, once.
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
    bool has_token = false;  // one came; else first_token is the end
  };

  // usage: null where it was refused.
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
  Span span_;  // what is known of it; empty where it is not sampled
};

// For the log of requests; null where nothing is traced.
inline const TraceContext* ContextOf(const RequestSpan* span) {
  return span == nullptr ? nullptr : &span->context();
}

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_REQUEST_SPAN_H_
