// Runs trials over a daemon, one request at a time: the context is compressed by CompressContext,
// and each dialogue goes on from it; a trial whose question stands in its context is one request.
// A daemon reports no likelihoods: outcomes have the texts of answers alone, and Answer's numbers,
// Outcome::kept and Outcome::kept_entries are empty.
#ifndef HYDRANT_TOOLS_EVAL_DAEMON_DAEMON_RUNNER_H_
#define HYDRANT_TOOLS_EVAL_DAEMON_DAEMON_RUNNER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "tools/eval/trial_runner.h"

namespace hydrant::eval {

// As client/access.h, which needs gRPC.
struct DaemonOptions {
  std::string address;
  std::string tls_ca, tls_certificate, tls_key, token_file;
  double wait_seconds = 10;  // until it serves
};

// Used by one thread. REQUIRES of its trials: no oracle among the arms; no foreseen tokens. An arm
// that the daemon refuses as invalid is refused; any other error is that of every outcome.
// FailedPrecondition: the daemon serves another model than `config`, by its layers and vocabulary.
// Unimplemented: built without gRPC.
absl::StatusOr<std::unique_ptr<TrialRunner>> ConnectToDaemon(const DaemonOptions& options,
                                                             const ModelConfig& config);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_DAEMON_DAEMON_RUNNER_H_
