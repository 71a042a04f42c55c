#include "scheduler/next_mask.h"

namespace hydrant {

void NextMask::Make() {
  const MutexLock lock(mutex_);
  if (is_made_) return;
  next_ = constraint_->FillMask(words_);
  if (next_ == NextTokens::kTooCostly) was_wrong_ = false;  // Accept() took too many steps
  if (was_wrong_) next_ = NextTokens::kNone;
  if (expected_steps_ <= kMaskStepsBesideAStep) expected_steps_ = constraint_->MaskSteps();
  is_made_.store(true, std::memory_order_release);
}

void NextMask::Accept(TokenId token) {
  const MutexLock lock(mutex_);
  was_wrong_ = !constraint_->Accept(token);
  is_made_ = false;
}

}  // namespace hydrant
