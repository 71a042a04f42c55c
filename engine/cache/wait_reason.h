// Why the front of the queue waits. It is first come, first served, so all who wait wait for it,
// but where it is kPrefix.
#ifndef HYDRANT_ENGINE_CACHE_WAIT_REASON_H_
#define HYDRANT_ENGINE_CACHE_WAIT_REASON_H_

#include <cstdint>

namespace hydrant {

enum class WaitReason : uint8_t {
  kArrived,       // since the last step: nothing is lacking yet
  kMaxNumSeqs,    // so many run
  kPages,         // the pool is used up, but for what is kept free for growth
  kPrefillArena,  // prompts that are being read fill the room for them
  kBlockTables,   // the block tables are full
  kPreempted,     // it comes back when there is room for what it has to replay
  kTpot,          // with one more, a step would take longer than the target for a token
  kTtft,          // how long prompts take is not known yet: those that are to be in time take turns
  kPrefix,        // a prompt that begins alike is being read; those behind it go ahead
};
inline constexpr int kNumWaitReasons = 9;

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_WAIT_REASON_H_
