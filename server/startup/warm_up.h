// Generates one token through the whole path before the daemon reports ready.
#ifndef HYDRANT_SERVER_STARTUP_WARM_UP_H_
#define HYDRANT_SERVER_STARTUP_WARM_UP_H_

#include "absl/status/status.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/serving_loop.h"
#include "server/requests/event_router.h"

namespace hydrant {

// Waits for the token; the error is the request's.
absl::Status WarmUp(ServingLoop* loop, EventRouter* router, RequestHandle handle,
                    const Tokenizer& tokenizer);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_WARM_UP_H_
