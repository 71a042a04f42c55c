// Locates the model of --model, and downloads it first if it is a model of the Hugging Face hub
// that is not in the cache. Blocks, and logs progress.
#ifndef HYDRANT_SERVER_STARTUP_MODEL_FETCH_H_
#define HYDRANT_SERVER_STARTUP_MODEL_FETCH_H_

#include "absl/status/statusor.h"
#include "server/startup/daemon_options.h"

namespace hydrant {

// `options` with model_path as a path. A model "hf:ORG/NAME" is served as ORG/NAME if no name was
// given, because its folder in the cache is named by a commit.
absl::StatusOr<DaemonOptions> WithLocalModel(DaemonOptions options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MODEL_FETCH_H_
