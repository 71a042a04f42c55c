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
    const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  masks_.push_back(std::move(mask));
  changed_.notify_all();
}

void SlowMasks::WaitForFirst() {
  std::unique_lock lock(mutex_);
  const size_t done = num_done_;
  changed_.wait(lock, [&] { return masks_.empty() || num_done_ != done; });
}

void SlowMasks::Run() {
  setpriority(PRIO_PROCESS, 0, kNiceness);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !masks_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<NextMask> mask = masks_.front();
    lock.unlock();
    if (mask.use_count() > 2) mask->Make();
    lock.lock();
    masks_.pop_front();
    ++num_done_;
    changed_.notify_all();
  }
}

}  // namespace hydrant
