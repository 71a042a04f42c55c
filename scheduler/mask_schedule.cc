#include "scheduler/mask_schedule.h"

#include <memory>

#include "scheduler/next_mask.h"

namespace hydrant {

void MaskSchedule::Begin(const std::vector<Sequence*>& live) {
  steps_left_ = kMaskStepsBesideAStep;
  for (Sequence* sequence : live) Add(sequence);
}

void MaskSchedule::Add(Sequence* sequence) {
  SequenceOutput& output = sequence->output;
  if (output.logits == nullptr || output.logits->grammar() == nullptr) return;
  const std::shared_ptr<NextMask>& mask = output.logits->grammar();
  const bool is_wanted = sequence->DrawsNext() && !mask->IsMade();
  const bool is_slow = is_wanted && mask->ExpectedSteps() > steps_left_;
  if (is_wanted && !is_slow) steps_left_ -= mask->ExpectedSteps();
  if (is_slow && !output.waits_for_mask) slow_masks_.Add(mask);
  output.waits_for_mask = is_slow;
}

}  // namespace hydrant
