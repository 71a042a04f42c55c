// Requests that the daemon makes itself before it serves, through the same path as a client's.
#ifndef HYDRANT_SERVER_STARTUP_STARTUP_REQUESTS_H_
#define HYDRANT_SERVER_STARTUP_STARTUP_REQUESTS_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "scheduler/serving_loop.h"
#include "server/requests/event_router.h"

namespace hydrant {

struct StartupAnswer {
  std::vector<TokenId> tokens;                 // generated
  std::vector<TokenLogprobs> logprobs;         // of `tokens`, if requested
  std::vector<TokenLogprobs> prompt_logprobs;  // of the prompt but its first token, if requested
};

// Submits all requests, then waits for their ends. The first error is the result. `next_handle`
// gives handles that no other request has. Borrows loop and router during the call.
class StartupRequests {
 public:
  StartupRequests(ServingLoop* loop, EventRouter* router,
                  std::function<RequestHandle()> next_handle)
      : loop_(loop), router_(router), next_handle_(std::move(next_handle)) {}

  absl::StatusOr<std::vector<StartupAnswer>> Run(std::vector<Request> requests) const;

 private:
  ServingLoop* loop_;
  EventRouter* router_;
  std::function<RequestHandle()> next_handle_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_STARTUP_REQUESTS_H_
