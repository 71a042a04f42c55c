// What --check-config looks at beyond the flags themselves.
#ifndef HYDRANT_SERVER_STARTUP_OPTIONS_CHECK_H_
#define HYDRANT_SERVER_STARTUP_OPTIONS_CHECK_H_

#include <string>
#include <vector>

#include "server/startup/daemon_options.h"

namespace hydrant {

// All that would keep a daemon with these options from starting, as far as it can be known without
// loading the model and taking the addresses: the files that must be there and what is in them,
// and addresses that other machines reach without TLS. Each names the flag. Fetches nothing.
std::vector<std::string> FindProblems(const DaemonOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_OPTIONS_CHECK_H_
