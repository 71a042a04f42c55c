// Decides which calls are traced, and sends their spans to a sink. A call with W3C's `traceparent`
// is sampled if that header's flag is set; a share of the other calls is sampled, each as a new
// trace. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_TRACER_H_
#define HYDRANT_SERVER_OBSERVE_TRACER_H_

#include <grpcpp/server_context.h>

#include <memory>
#include <string_view>

#include "server/observe/request_span.h"

namespace hydrant {

class Tracer {
 public:
  // `sample_ratio` is in [0, 1]. The sink outlives the tracer's spans and is called from
  // any thread.
  Tracer(double sample_ratio, RequestSpan::Sink sink);

  // Begins the span of a call to "service/method"; null: the call has no trace.
  std::unique_ptr<RequestSpan> Begin(const grpc::CallbackServerContext& context,
                                     std::string_view method) const;

 private:
  const double sample_ratio_;
  const RequestSpan::Sink sink_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACER_H_
