// Generates one token through the whole path before the daemon reports ready.
#ifndef HYDRANT_SERVER_STARTUP_WARM_UP_H_
#define HYDRANT_SERVER_STARTUP_WARM_UP_H_

#include "absl/status/status.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "server/startup/startup_requests.h"

namespace hydrant {

// Waits for the token; the error is the request's.
absl::Status WarmUp(const StartupRequests& requests, const Tokenizer& tokenizer);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_WARM_UP_H_
