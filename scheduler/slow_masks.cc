#include "scheduler/slow_masks.h"

#include <sys/resource.h>

#include <system_error>
#include <utility>

namespace hydrant {
namespace {

// If all cores are busy, steps go first. On Linux setpriority() affects this thread alone.
constexpr int kNiceness = 10;

}  // namespace

SlowMasks::~SlowMasks() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SlowMasks::Add(std::shared_ptr<NextMask> mask) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {  // no thread available: steps wait for this mask
      return mask->Make();
    }
  }
  const MutexLock lock(mutex_);
  masks_.push_back(std::move(mask));
  changed_.notify_all();
}

void SlowMasks::WaitForFirst() {
  MutexLock lock(mutex_);
  const size_t done = num_done_;
  changed_.wait(lock.native(),
                [&]() HYDRANT_REQUIRES(mutex_) { return masks_.empty() || num_done_ != done; });
}

void SlowMasks::Run() {
  setpriority(PRIO_PROCESS, 0, kNiceness);
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(),
                  [this]() HYDRANT_REQUIRES(mutex_) { return stopping_ || !masks_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<NextMask> mask = masks_.front();
    lock.Unlock();
    if (mask.use_count() > 2) mask->Make();
    lock.Lock();
    masks_.pop_front();
    ++num_done_;
    changed_.notify_all();
  }
}

}  // namespace hydrant
