// Finds the model of --model on this machine, and fetches one of the Hugging Face hub first where
// it is not there. Blocks, with lines in the log.
#ifndef HYDRANT_SERVER_STARTUP_MODEL_FETCH_H_
#define HYDRANT_SERVER_STARTUP_MODEL_FETCH_H_

#include "absl/status/statusor.h"
#include "server/startup/daemon_options.h"

namespace hydrant {

// `options` with a path for model_path. A model "hf:ORG/NAME" is served as ORG/NAME where no name
// was given: in the cache its folder is named by a commit.
absl::StatusOr<DaemonOptions> WithLocalModel(DaemonOptions options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MODEL_FETCH_H_
