#include "engine/run/mask_thread.h"

namespace hydrant {

MaskThread::~MaskThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MaskThread::Start(std::span<RowMask* const> masks) {
  if (masks.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    masks_ = masks;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void MaskThread::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return masks_.empty(); });
}

void MaskThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !masks_.empty(); });
    if (stopping_) return;
    const std::span<RowMask* const> masks = masks_;
    lock.unlock();
    for (RowMask* mask : masks) mask->Make();
    lock.lock();
    masks_ = {};
    changed_.notify_all();
  }
}

}  // namespace hydrant
