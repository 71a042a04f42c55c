// The checks of --check-config beyond the flags themselves.
#ifndef HYDRANT_SERVER_STARTUP_OPTIONS_CHECK_H_
#define HYDRANT_SERVER_STARTUP_OPTIONS_CHECK_H_

#include <string>
#include <vector>

#include "server/startup/daemon_options.h"

namespace hydrant {

// Problems that would keep a daemon with these options from starting, as far as they can be found
// without loading the model and binding the addresses: missing or invalid files, and addresses that
// other machines can reach without TLS. Each names the flag. Downloads nothing.
std::vector<std::string> FindProblems(const DaemonOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_OPTIONS_CHECK_H_
