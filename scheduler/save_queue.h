// A queue of items to be saved in a store, and the thread that saves them. Thread-safe.
#ifndef HYDRANT_SCHEDULER_SAVE_QUEUE_H_
#define HYDRANT_SCHEDULER_SAVE_QUEUE_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/mutex.h"

namespace hydrant {

template <typename T>
class SaveQueue {
 public:
  using Save = std::function<void(std::span<const T>)>;
  // Calls `save` on its thread with up to `at_once` items, in their order. If more than `most`
  // items wait, because saving is too slow, the oldest are dropped.
  SaveQueue(size_t capacity, size_t at_once, Save save)
      : capacity_(capacity),
        at_once_(at_once),
        save_(std::move(save)),
        thread_([this] { Run(); }) {}
  // Waits until all items are saved.
  ~SaveQueue() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }

  void Add(std::span<const T> more) {
    const MutexLock lock(mutex_);
    waiting_.insert(waiting_.end(), more.begin(), more.end());
    while (waiting_.size() > capacity_) waiting_.pop_front();
    wake_.notify_one();
  }

  // Waits until all are saved; false: the deadline passed.
  bool Flush(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    return saved_.wait_until(lock.native(), deadline, [this]() HYDRANT_REQUIRES(mutex_) {
      return waiting_.empty() && !saving_;
    });
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    while (true) {
      wake_.wait(lock.native(),
                 [this]() HYDRANT_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto end = waiting_.begin() + static_cast<int64_t>(std::min(at_once_, waiting_.size()));
      const std::vector<T> next(waiting_.begin(), end);
      waiting_.erase(waiting_.begin(), end);
      saving_ = true;
      lock.Unlock();
      save_(next);
      lock.Lock();
      saving_ = false;
      saved_.notify_all();
    }
  }

  const size_t capacity_, at_once_;
  const Save save_;
  Mutex mutex_;
  std::deque<T> waiting_ HYDRANT_GUARDED_BY(mutex_);
  bool saving_ HYDRANT_GUARDED_BY(mutex_) = false;  // items taken from waiting_
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;

  std::condition_variable wake_, saved_;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SAVE_QUEUE_H_
