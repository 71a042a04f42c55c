// Streams to servers with OpenAI's API over HTTP (POST /v1/completions, "stream": true), round
// robin, to measure them like hydrantd. Single threaded.
//
// A chunk with text counts as one token, as such servers send it; if the server reports the count
// at the end ("usage"), the last chunk gets the rest. Server-side data (queue, cache) are
// unavailable.
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
  std::string model = {};                   // "": the first in /v1/models
  std::string tokenizer = {};               // a GGUF file, tokenizer.json, or a folder with one
  // Sends prompts as token ids instead of text; not all servers accept them.
  bool prompt_ids = false;
  std::string api_key = {};  // for the header Authorization; "": none
  Sampling sampling = {};
  bool ignore_eos = true;  // vLLM's field; other servers ignore or refuse it
  double wait_seconds = 10.0;
};

class OpenAiTarget final : public ServerTarget {
 public:
  // Waits until every address answers /v1/models. Unavailable names an unreachable address,
  // InvalidArgument an unreadable tokenizer.
  static absl::StatusOr<std::unique_ptr<OpenAiTarget>> Create(OpenAiTargetOptions options);
  ~OpenAiTarget() override;

  const TargetInfo& info() const override;
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text) override;
  void Start() override;

  double Now() override;
  uint64_t Send(const PlannedRequest& request) override;
  // Closes the connection, the only way to end an HTTP/1 stream early.
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
