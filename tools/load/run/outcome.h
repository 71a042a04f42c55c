// What became of one request of a load, as the client saw it. Plain data. Times are seconds from
// the start of the run; a request counts from the moment it was to be sent, not from when it was:
// what a stalled server keeps a generator from sending is waited for as well (coordinated
// omission).
#ifndef HYDRANT_TOOLS_LOAD_RUN_OUTCOME_H_
#define HYDRANT_TOOLS_LOAD_RUN_OUTCOME_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant::load {

// A message with tokens in it.
struct TokenMessage {
  double at = 0.0;
  int32_t tokens = 0;
};

enum class Ending : uint8_t {
  kCompleted,   // the stream ended as it should
  kFailed,      // it ended with an error that nobody ordered
  kFault,       // it ended by a fault that the load ordered: a cancel, a deadline, ...
  kUnfinished,  // it was open when the run was broken off
};

struct Outcome {
  int64_t index = 0;  // in the order of the load
  int arm = 0;        // of the load's mix
  double intended = 0.0;
  double sent = 0.0;
  double ended = 0.0;
  Ending ending = Ending::kUnfinished;
  std::string status = {};  // "OK", "RESOURCE_EXHAUSTED", ...
  std::string reason = {};  // the server's own word, QUEUE_FULL; RESUMABLE: the stream was lost
  std::string error = {};
  int64_t input_tokens = 0;
  std::vector<TokenMessage> messages = {};
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // Of the server's usage, where it came.
  bool has_usage = false;
  double queue = 0.0;         // seconds
  double kv_tokens_kept = 0;  // entries of a KV head, on average over the heads
  double kv_tokens_evicted = 0;
  int64_t kv_bytes = 0, kv_bytes_of_full = 0;  // held at the end; the full cache's
  int64_t preemptions = 0;
  int64_t cached_tokens = -1;            // of the input, not read again; -1: nobody says
  std::string text = {};                 // where it is wanted
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
