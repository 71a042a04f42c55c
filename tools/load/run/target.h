// The receiver of a load. One thread sends and waits; a target shows no threads of its own. The
// target provides the clock, so that tests can simulate time.
#ifndef HYDRANT_TOOLS_LOAD_RUN_TARGET_H_
#define HYDRANT_TOOLS_LOAD_RUN_TARGET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/load/run/planned_request.h"

namespace hydrant::load {

// An event of the stream of request `index`.
struct StreamEvent {
  int64_t index = 0;
  double at = 0.0;
  int32_t tokens = 0;  // received with it
  std::vector<uint32_t> token_ids = {};
  uint64_t bytes = 0;  // of the message
  bool ended = false;  // with the status below; the last event
  std::string status = {};
  std::string reason = {};
  std::string error = {};
  // With the end, if the server reports them.
  int64_t more_tokens = 0;  // not counted in messages; received with the last one
  bool has_usage = false;
  int64_t prompt_tokens = 0;  // 0: not reported
  double queue = 0.0;         // seconds
  double kv_tokens_kept = 0;  // entries per KV head, averaged over heads
  double kv_tokens_evicted = 0;
  int64_t kv_bytes = 0, kv_bytes_of_full = 0;  // held at the end; the full cache's
  int64_t preemptions = 0;
  int64_t cached_tokens = -1;  // prompt tokens from the prefix cache; -1: not reported
};

class Target {
 public:
  virtual ~Target() = default;

  // Seconds from the start of the run.
  virtual double Now() = 0;
  // Returns the bytes of the request. Events of its stream follow.
  virtual uint64_t Send(const PlannedRequest& request) = 0;
  // Ends the stream soon, unless it has ended.
  virtual void Cancel(int64_t index) = 0;
  // The same, and breaks its connection. For a request with Fault::kDisconnect.
  virtual void Disconnect(int64_t index) = 0;
  // The next event of any stream; false if `until` comes first.
  virtual bool Wait(double until, StreamEvent* event) = 0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_TARGET_H_
