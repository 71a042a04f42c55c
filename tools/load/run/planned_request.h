// A request of a load before it is sent. Plain data.
#ifndef HYDRANT_TOOLS_LOAD_RUN_PLANNED_REQUEST_H_
#define HYDRANT_TOOLS_LOAD_RUN_PLANNED_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant::load {

// An injected client fault.
enum class Fault : uint8_t {
  kNone,
  kCancel,      // it cancels after some tokens
  kDeadline,    // its deadline is too short
  kSlowReader,  // it reads slowly; not an error, and it is answered completely
  kOversized,   // its prompt exceeds any context
  kMalformed,   // a field is out of range
  kDisconnect,  // it disconnects after some tokens
};
inline constexpr int kNumFaults = 6;  // beside kNone

struct PlannedRequest {
  int64_t index = 0;
  int arm = 0;  // of the mix: its cache configuration
  // For a later turn of a conversation, only its new tokens: the runner prepends the earlier turns.
  std::vector<uint32_t> prompt = {};
  int64_t max_tokens = 0;
  uint64_t seed = 0;
  Fault fault = Fault::kNone;
  int64_t cancel_after = 0;  // tokens, of kCancel and kDisconnect
  double deadline = 0.0;     // seconds; 0: none
  double read_delay = 0.0;   // seconds before each message is read, of kSlowReader
  double think = 0.0;        // seconds after the previous answer, for a later turn
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_PLANNED_REQUEST_H_
