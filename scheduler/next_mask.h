// The mask of what may follow a sequence's text by its grammar. Some take a moment to make, others
// as long as a step or more. Thread safe: one thread makes it at a time, and who asks for it waits.
#ifndef HYDRANT_SCHEDULER_NEXT_MASK_H_
#define HYDRANT_SCHEDULER_NEXT_MASK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/grammar/token_constraint.h"

namespace hydrant {

// What one step waits for, in steps of TokenConstraint::MaskSteps(): about 10 milliseconds.
inline constexpr int64_t kMaskStepsBesideAStep = 2'000'000;

class NextMask {
 public:
  NextMask(std::unique_ptr<TokenConstraint> constraint, size_t num_words)
      : constraint_(std::move(constraint)), words_(num_words) {}

  // Makes it, where that has not been done since the last token.
  void Make();
  bool IsMade() const { return is_made_.load(std::memory_order_acquire); }
  // What it will take is not known: as much as the last one, but of one that has been longer than a
  // step may wait, as much as then.
  int64_t ExpectedSteps() const { return expected_steps_.load(std::memory_order_relaxed); }

  // REQUIRES, for both: IsMade(). Valid until the next token.
  NextTokens next() const { return next_; }
  const std::vector<uint32_t>& words() const { return words_; }

  // The next token of the text, one that may follow.
  void Accept(TokenId token);

 private:
  std::mutex mutex_;  // held while it is made or changed
  std::atomic<bool> is_made_{false};
  std::atomic<int64_t> expected_steps_{0};
  const std::unique_ptr<TokenConstraint> constraint_;
  NextTokens next_ = NextTokens::kAny;
  std::vector<uint32_t> words_;  // where that is kSome or kEnd
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_NEXT_MASK_H_
