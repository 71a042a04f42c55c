// The outcome of one request, as seen by the client. Plain data. Times are seconds from the start
// of the run; latency counts from the intended, not the actual, send time, so that a stalled
// server's delay of later requests is included (coordinated omission).
#ifndef HYDRANT_TOOLS_LOAD_RUN_OUTCOME_H_
#define HYDRANT_TOOLS_LOAD_RUN_OUTCOME_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant::load {

// A message with tokens.
struct TokenMessage {
  double at = 0.0;
  int32_t tokens = 0;
};

enum class Ending : uint8_t {
  kCompleted,   // the stream ended normally
  kFailed,      // it ended with an unexpected error
  kFault,       // it ended by an injected fault: a cancel, a deadline, ...
  kUnfinished,  // it was open when the run was aborted
};

struct Outcome {
  int64_t index = 0;  // in the order of the load
  int arm = 0;        // of the load's mix
  double intended = 0.0;
  double sent = 0.0;
  double ended = 0.0;
  Ending ending = Ending::kUnfinished;
  std::string status = {};  // "OK", "RESOURCE_EXHAUSTED", ...
  std::string reason = {};  // the server's reason, QUEUE_FULL; RESUMABLE: the stream was lost
  std::string error = {};
  int64_t input_tokens = 0;
  std::vector<TokenMessage> messages = {};
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // From the server's usage, if received.
  bool has_usage = false;
  double queue = 0.0;         // seconds
  double kv_tokens_kept = 0;  // entries per KV head, averaged over heads
  double kv_tokens_evicted = 0;
  int64_t kv_bytes = 0, kv_bytes_of_full = 0;  // held at the end; the full cache's
  int64_t preemptions = 0;
  int64_t cached_tokens = -1;            // input tokens from the prefix cache; -1: not reported
  std::string text = {};                 // if requested
  std::vector<uint32_t> token_ids = {};  // the same

  int64_t OutputTokens() const {
    int64_t tokens = 0;
    for (const TokenMessage& message : messages) tokens += message.tokens;
    return tokens;
  }
  bool HasToken() const { return !messages.empty(); }
  double TimeToFirstToken() const { return messages.front().at - intended; }
  double EndToEnd() const { return messages.back().at - intended; }
  // Time per token after the first. REQUIRES: OutputTokens() > 1.
  double TimePerOutputToken() const {
    return (EndToEnd() - TimeToFirstToken()) / static_cast<double>(OutputTokens() - 1);
  }
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_OUTCOME_H_
