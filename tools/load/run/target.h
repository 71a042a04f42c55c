// Where a load goes. One thread sends and waits; a target has no thread of its own that a caller
// would see. Time is the target's, so that a test can make it up.
#ifndef HYDRANT_TOOLS_LOAD_RUN_TARGET_H_
#define HYDRANT_TOOLS_LOAD_RUN_TARGET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/load/run/planned_request.h"

namespace hydrant::load {

// Something happened to the stream of request `index`.
struct StreamEvent {
  int64_t index = 0;
  double at = 0.0;
  int32_t tokens = 0;  // that came with it
  std::vector<uint32_t> token_ids = {};
  uint64_t bytes = 0;  // of the message
  bool ended = false;  // with the status below; nothing comes after it
  std::string status = {};
  std::string reason = {};
  std::string error = {};
  // With the end, where the server says.
  int64_t more_tokens = 0;  // that the messages did not tell of; they came with the last one
  bool has_usage = false;
  int64_t prompt_tokens = 0;  // 0: it does not say
  double queue = 0.0;         // seconds
  double kv_tokens_kept = 0;  // entries of a KV head, on average over the heads
  double kv_tokens_evicted = 0;
  int64_t kv_bytes = 0, kv_bytes_of_full = 0;  // held at the end; the full cache's
  int64_t preemptions = 0;
  int64_t cached_tokens = -1;  // of the prompt, not read again; -1: it does not say
};

class Target {
 public:
  virtual ~Target() = default;

  // Seconds from the start of the run.
  virtual double Now() = 0;
  // Returns the bytes of the request. Its stream's events follow.
  virtual uint64_t Send(const PlannedRequest& request) = 0;
  // The stream ends soon, if it has not ended yet.
  virtual void Cancel(int64_t index) = 0;
  // The same, and its connection is gone. Of a request with Fault::kDisconnect.
  virtual void Disconnect(int64_t index) = 0;
  // The next event of any stream; false when it is `until` first.
  virtual bool Wait(double until, StreamEvent* event) = 0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_TARGET_H_
