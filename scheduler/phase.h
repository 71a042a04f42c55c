// The phases of a sequence, and the moves between them.
//
//   kWaiting ---admitted---> kReading ---prompt read---> kRunning ---> kEnded
//                               ^                        |   ^  |
//                               |<------- next turn -----'   |  |
//   kPreempted --admitted-------'                            |  |
//       ^                                                    |  |
//       '---- cache lost ---- kReading, kRunning             |  |
//   kSwapped --cache comes back--> kResuming --same step-----'  |
//       ^                                                       |
//       '------------------------ cache in host memory ---------'
//
// A request that continues a context moves from kWaiting or kPreempted to kResuming, a sample that
// is forked from kWaiting to kRunning. Each phase but kResuming may end.
#ifndef HYDRANT_SCHEDULER_PHASE_H_
#define HYDRANT_SCHEDULER_PHASE_H_

#include <cstdint>

namespace hydrant {

enum class Phase : uint8_t {
  kWaiting,    // in the queue; has not been admitted, or not since a fork failed
  kPreempted,  // in the queue; its cache was released and is computed again
  kSwapped,    // in the queue; its cache is in host memory
  kReading,    // a prompt, or what follows a compressed one, goes through prefill
  kResuming,   // its cache is copied into the pool in this step; it decodes from the next step on
  kRunning,    // decodes a token a step
  kEnded,      // kept only until the steps in flight that name it have returned
};

constexpr uint8_t PhaseBit(Phase phase) {
  return static_cast<uint8_t>(1u << static_cast<unsigned>(phase));
}

// In the queue.
constexpr bool IsQueued(Phase phase) { return phase <= Phase::kSwapped; }

constexpr bool MayMove(Phase from, Phase to) {
  constexpr uint8_t kReading = PhaseBit(Phase::kReading), kRunning = PhaseBit(Phase::kRunning),
                    kResuming = PhaseBit(Phase::kResuming), kEnded = PhaseBit(Phase::kEnded),
                    kPreempted = PhaseBit(Phase::kPreempted), kSwapped = PhaseBit(Phase::kSwapped);
  constexpr uint8_t kAllowed[] = {
      /*kWaiting*/ kReading | kResuming | kRunning | kEnded,
      /*kPreempted*/ kReading | kResuming | kEnded,
      /*kSwapped*/ kResuming | kEnded,
      /*kReading*/ kRunning | kPreempted | kEnded,
      /*kResuming*/ kRunning,
      /*kRunning*/ kReading | kPreempted | kSwapped | kEnded,
      /*kEnded*/ 0,
  };
  return (kAllowed[static_cast<unsigned>(from)] & PhaseBit(to)) != 0;
}

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PHASE_H_
