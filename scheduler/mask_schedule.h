// Chooses the grammar masks that a step waits for: those of the oldest sequences, as many as take a
// few milliseconds. SlowMasks makes the others, while steps go on without their sequences. Owned by
// the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_MASK_SCHEDULE_H_
#define HYDRANT_SCHEDULER_MASK_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"
#include "scheduler/slow_masks.h"

namespace hydrant {

class MaskSchedule {
 public:
  // Sets SequenceOutput::waits_for_mask of all live sequences, in their order.
  void Begin(const std::vector<Sequence*>& live);
  // The same for a sequence that joins them in this step.
  void Add(Sequence* sequence);
  void WaitForFirst() { slow_masks_.WaitForFirst(); }

 private:
  SlowMasks slow_masks_;
  int64_t steps_left_ = 0;  // of kMaskStepsBesideAStep
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_MASK_SCHEDULE_H_
