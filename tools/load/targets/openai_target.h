// A load's streams to servers with OpenAI's API over HTTP (POST /v1/completions, "stream": true),
// taken in turn, so that others are measured as hydrantd is. Everything happens in the thread that
// calls.
//
// A chunk with text counts as one token, which is what such servers send; where a server says at
// the end how many they were ("usage"), the last chunk has the rest. What a server knows of a
// stream besides (queue, cache) it does not say.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_OPENAI_TARGET_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_OPENAI_TARGET_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/targets/sampling.h"
#include "tools/load/targets/server_target.h"

namespace hydrant::load {

struct OpenAiTargetOptions {
  std::vector<std::string> addresses = {};  // http://host:port, https://...
  std::string model = {};                   // "": the first that /v1/models names
  std::string tokenizer = {};               // a GGUF file, tokenizer.json, or a folder with one
  // Prompts are sent as token ids, which not all servers take, and not as the text they are.
  bool prompt_ids = false;
  std::string api_key = {};  // of the header Authorization; "": none is sent
  Sampling sampling = {};
  bool ignore_eos = true;  // as vLLM's field; servers that do not know it ignore it, or refuse
  double wait_seconds = 10.0;
};

class OpenAiTarget final : public ServerTarget {
 public:
  // Waits until every address answers /v1/models. Unavailable names the address that does not,
  // InvalidArgument a tokenizer that cannot be read.
  static absl::StatusOr<std::unique_ptr<OpenAiTarget>> Create(OpenAiTargetOptions options);
  ~OpenAiTarget() override;

  const TargetInfo& info() const override;
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text) override;
  void Start() override;

  double Now() override;
  uint64_t Send(const PlannedRequest& request) override;
  // HTTP/1 has one way to end a stream early: its connection is closed.
  void Cancel(int64_t index) override;
  void Disconnect(int64_t index) override;
  bool Wait(double until, StreamEvent* event) override;

 private:
  struct Impl;
  explicit OpenAiTarget(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_OPENAI_TARGET_H_
