#include "engine/run/mask_thread.h"

namespace hydrant {

MaskThread::~MaskThread() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MaskThread::Start(std::span<RowMask* const> masks) {
  if (masks.empty()) return;
  {
    const MutexLock lock(mutex_);
    masks_ = masks;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void MaskThread::Wait() {
  MutexLock lock(mutex_);
  changed_.wait(lock.native(), [this]() HYDRANT_REQUIRES(mutex_) { return masks_.empty(); });
}

void MaskThread::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(),
                  [this]() HYDRANT_REQUIRES(mutex_) { return stopping_ || !masks_.empty(); });
    if (stopping_) return;
    const std::span<RowMask* const> masks = masks_;
    lock.Unlock();
    for (RowMask* mask : masks) mask->Make();
    lock.Lock();
    masks_ = {};
    changed_.notify_all();
  }
}

}  // namespace hydrant
