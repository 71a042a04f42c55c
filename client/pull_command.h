// `hydrant pull`: downloads a model of the Hugging Face hub into this machine's cache. Needs
// no server.
#ifndef HYDRANT_CLIENT_PULL_COMMAND_H_
#define HYDRANT_CLIENT_PULL_COMMAND_H_

#include <string>

namespace hydrant {

// Prints the path to stdout, or with `json` an object with it, and progress to stderr unless
// `quiet`. Returns the exit code: 0 success, 1 failure, 2 invalid model name, 3 hub unreachable,
// 130 interrupted.
int PullModel(const std::string& model, bool json, bool quiet);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_PULL_COMMAND_H_
