// A request of a load, before it is sent. Plain data.
#ifndef HYDRANT_TOOLS_LOAD_RUN_PLANNED_REQUEST_H_
#define HYDRANT_TOOLS_LOAD_RUN_PLANNED_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant::load {

// What a client does wrong, on order.
enum class Fault : uint8_t {
  kNone,
  kCancel,      // it cancels when it has some of its tokens
  kDeadline,    // it gives too little time
  kSlowReader,  // it reads a message now and then; not an error, and it is answered to the end
  kOversized,   // its prompt is longer than any context
  kMalformed,   // a field of it is out of range
  kDisconnect,  // its connection is gone when it has some of its tokens
};
inline constexpr int kNumFaults = 6;  // beside kNone

struct PlannedRequest {
  int64_t index = 0;
  int arm = 0;  // of the mix: how its cache is kept
  // Of a later turn of a conversation what is new: the runner puts the turns before it.
  std::vector<uint32_t> prompt = {};
  int64_t max_tokens = 0;
  uint64_t seed = 0;
  Fault fault = Fault::kNone;
  int64_t cancel_after = 0;  // tokens, of kCancel and kDisconnect
  double deadline = 0.0;     // seconds; 0: none
  double read_delay = 0.0;   // seconds before each message is read, of kSlowReader
  double think = 0.0;        // seconds from the answer before it, of a later turn
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_PLANNED_REQUEST_H_
