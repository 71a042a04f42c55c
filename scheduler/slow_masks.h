// Computes grammar masks that would delay a step, one after another on a thread of its own, which
// starts with the first mask. For one calling thread, the scheduler's.
#ifndef HYDRANT_SCHEDULER_SLOW_MASKS_H_
#define HYDRANT_SCHEDULER_SLOW_MASKS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "kernels/mutex.h"
#include "scheduler/next_mask.h"

namespace hydrant {

class SlowMasks {
 public:
  SlowMasks() = default;
  ~SlowMasks();  // waits for the mask in progress
  SlowMasks(const SlowMasks&) = delete;
  SlowMasks& operator=(const SlowMasks&) = delete;

  // Queues a mask. A mask without another owner when the thread reaches it is skipped.
  void Add(std::shared_ptr<NextMask> mask);
  // Waits until the first mask in the queue is computed; returns at once if the queue is empty.
  void WaitForFirst();

 private:
  void Run();

  Mutex mutex_;
  std::condition_variable changed_;
  // The first one is being made.
  std::deque<std::shared_ptr<NextMask>> masks_ HYDRANT_GUARDED_BY(mutex_);
  size_t num_done_ HYDRANT_GUARDED_BY(mutex_) = 0;
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SLOW_MASKS_H_
