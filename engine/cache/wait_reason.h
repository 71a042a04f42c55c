// Why the head of the queue was not admitted. Admission is FIFO: everything behind it waits too,
// except under kPrefix.
#ifndef HYDRANT_ENGINE_CACHE_WAIT_REASON_H_
#define HYDRANT_ENGINE_CACHE_WAIT_REASON_H_

#include <cstdint>

namespace hydrant {

enum class WaitReason : uint8_t {
  kArrived,       // arrived since the last step; no resource is lacking yet
  kMaxNumSeqs,    // the maximum number of sequences is running
  kPages,         // no free pages beside those kept free for growth
  kPrefillArena,  // other prompts in prefill fill the arena
  kBlockTables,   // the block tables are full
  kPreempted,     // preempted; waits for room for the tokens to recompute
  kTpot,          // with one more sequence a step would exceed the target time per output token
  kTtft,          // prefill speed is unknown yet: requests with a TTFT target run one at a time
  kPrefix,        // another prompt with the same prefix is in prefill; later requests may overtake
};
inline constexpr int kNumWaitReasons = 9;

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_WAIT_REASON_H_
