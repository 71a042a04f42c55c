// The daemon's life cycle: open the port, load the model, serve, drain on a signal, exit.
#ifndef HYDRANT_SERVER_STARTUP_DAEMON_H_
#define HYDRANT_SERVER_STARTUP_DAEMON_H_

#include "absl/status/status.h"
#include "server/startup/daemon_options.h"
#include "server/startup/model_loader.h"

namespace hydrant {

// The signals must be blocked in the calling thread before any other thread exists
// (BlockSignals()); they are read from a descriptor, so no code runs in a signal handler. Returns
// OK after a drain, or the reason why the daemon could not serve.
absl::Status RunDaemon(const DaemonOptions& options, const ModelLoader& load = LoadModel);

void BlockSignals();

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_DAEMON_H_
