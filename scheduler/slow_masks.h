// Makes masks beside the steps that would have to wait for them, one after another on a thread of
// its own, which begins with the first. Used by one thread, the scheduler's.
#ifndef HYDRANT_SCHEDULER_SLOW_MASKS_H_
#define HYDRANT_SCHEDULER_SLOW_MASKS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "scheduler/next_mask.h"

namespace hydrant {

class SlowMasks {
 public:
  SlowMasks() = default;
  ~SlowMasks();  // waits for the one that is being made
  SlowMasks(const SlowMasks&) = delete;
  SlowMasks& operator=(const SlowMasks&) = delete;

  // One that is no longer anybody else's when its turn comes is left out.
  void Add(std::shared_ptr<NextMask> mask);
  // Until the first of those that are left has been made, if there is one.
  void WaitForFirst();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::shared_ptr<NextMask>> masks_;  // the first is being made
  size_t num_done_ = 0;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SLOW_MASKS_H_
