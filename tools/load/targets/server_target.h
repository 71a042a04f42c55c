// A target that is a server somewhere: what a run has to know of it before it begins.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_SERVER_TARGET_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_SERVER_TARGET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/target.h"

namespace hydrant::load {

struct TargetInfo {
  std::string backend = {};  // in the words of `vllm bench serve`: "hydrant", "openai"
  std::string model = {};
  uint32_t vocab_size = 0;
  uint32_t max_model_len = 0;       // 0: the server does not say
  std::string server_version = {};  // "": the same
};

class ServerTarget : public Target {
 public:
  virtual const TargetInfo& info() const = 0;
  // The text's token ids.
  virtual absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text) = 0;
  // The clock of Now() begins.
  virtual void Start() = 0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_SERVER_TARGET_H_
