// Which calls are traced, and where their spans go. A call that comes with W3C's `traceparent` is
// sampled where that says so; of the others a share is, each as a trace of its own. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_TRACER_H_
#define HYDRANT_SERVER_OBSERVE_TRACER_H_

#include <grpcpp/server_context.h>

#include <memory>
#include <string_view>

#include "server/observe/request_span.h"

namespace hydrant {

class Tracer {
 public:
  // `sample_ratio` is in [0, 1]. The sink outlives the tracer's spans, and is called from any
  // thread.
  Tracer(double sample_ratio, RequestSpan::Sink sink);

  // Of a call that has just come to "service/method"; null: it has no place in any trace.
  std::unique_ptr<RequestSpan> Begin(const grpc::CallbackServerContext& context,
                                     std::string_view method) const;

 private:
  const double sample_ratio_;
  const RequestSpan::Sink sink_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACER_H_
