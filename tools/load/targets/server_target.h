// A target that is a server, with the facts that a run needs beforehand.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_SERVER_TARGET_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_SERVER_TARGET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/target.h"

namespace hydrant::load {

struct TargetInfo {
  std::string backend = {};  // as in `vllm bench serve`: "hydrant", "openai"
  std::string model = {};
  uint32_t vocab_size = 0;
  uint32_t max_model_len = 0;       // 0: unknown
  std::string server_version = {};  // "": unknown
};

class ServerTarget : public Target {
 public:
  virtual const TargetInfo& info() const = 0;
  // The text's token ids.
  virtual absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text) = 0;
  // Starts the clock of Now().
  virtual void Start() = 0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_SERVER_TARGET_H_
