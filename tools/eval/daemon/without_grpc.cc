#include "tools/eval/daemon/daemon_runner.h"

namespace hydrant::eval {

absl::StatusOr<std::unique_ptr<TrialRunner>> ConnectToDaemon(const DaemonOptions& /*options*/,
                                                             const ModelConfig& /*config*/) {
  return absl::UnimplementedError("this hydrant-eval was built without gRPC");
}

}  // namespace hydrant::eval
