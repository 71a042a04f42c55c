// Fetches one page with libcurl. Thread safe.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_HTTP_GET_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_HTTP_GET_H_

#include <string>

#include "absl/status/statusor.h"

namespace hydrant::load {

// The body of a 200. Unavailable describes any other result. `bearer`: a key, or "". Waits for at
// most `seconds`.
absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& bearer = "",
                                    double seconds = 5.0);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_HTTP_GET_H_
