// `hydrant pull`: a model of the Hugging Face hub into the cache of this machine. Needs no server.
#ifndef HYDRANT_CLIENT_PULL_COMMAND_H_
#define HYDRANT_CLIENT_PULL_COMMAND_H_

#include <string>

namespace hydrant {

// Prints the path to stdout, or with `json` an object with it, and to stderr how it goes unless
// `quiet`. Returns the exit code: 0 done, 1 failed, 2 no model's name, 3 the hub was not reached,
// 130 interrupted.
int PullModel(const std::string& model, bool json, bool quiet);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_PULL_COMMAND_H_
