// The mask of the tokens that may follow a sequence's text by its grammar. Some masks take little
// time to make, others as long as a step or more. Thread safe: one thread makes the mask at a time,
// and other callers wait.
#ifndef HYDRANT_SCHEDULER_NEXT_MASK_H_
#define HYDRANT_SCHEDULER_NEXT_MASK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/text/grammar/token_constraint.h"
#include "kernels/mutex.h"

namespace hydrant {

// Mask work that one step waits for, in TokenConstraint::MaskSteps(): about 10 milliseconds.
inline constexpr int64_t kMaskStepsBesideAStep = 2'000'000;

class NextMask {
 public:
  NextMask(std::unique_ptr<TokenConstraint> constraint, size_t num_words)
      : constraint_(std::move(constraint)), words_(num_words) {}

  // Makes the mask, unless it has been made since the last token.
  void Make();
  bool IsMade() const { return is_made_.load(std::memory_order_acquire); }
  // The expected steps of the next mask: those of the last mask. After a mask of more than
  // kMaskStepsBesideAStep the value stays at that mask's steps.
  int64_t ExpectedSteps() const { return expected_steps_.load(std::memory_order_relaxed); }

  // REQUIRES, for both: IsMade(). Valid until the next Accept().
  NextTokens next() const HYDRANT_NO_THREAD_SAFETY_ANALYSIS { return next_; }
  const std::vector<uint32_t>& words() const HYDRANT_NO_THREAD_SAFETY_ANALYSIS { return words_; }

  // Adds a token that the mask allowed to the text.
  void Accept(TokenId token);
  // Whether the grammar refused a token that its mask allowed. Then next() is kNone.
  // REQUIRES: IsMade()
  bool was_wrong() const HYDRANT_NO_THREAD_SAFETY_ANALYSIS { return was_wrong_; }

 private:
  // Held while the mask is made or changed. Readers need IsMade() only: Make() releases what it has
  // written, and then changes nothing.
  Mutex mutex_;
  std::atomic<bool> is_made_{false};
  std::atomic<int64_t> expected_steps_{0};
  const std::unique_ptr<TokenConstraint> constraint_ HYDRANT_PT_GUARDED_BY(mutex_);
  bool was_wrong_ HYDRANT_GUARDED_BY(mutex_) = false;
  NextTokens next_ HYDRANT_GUARDED_BY(mutex_) = NextTokens::kAny;
  std::vector<uint32_t> words_ HYDRANT_GUARDED_BY(mutex_);  // valid if next_ is kSome or kEnd
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_NEXT_MASK_H_
