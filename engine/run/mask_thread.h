// Makes a step's masks on a thread of its own while the layers run. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_MASK_THREAD_H_
#define HYDRANT_ENGINE_RUN_MASK_THREAD_H_

#include <condition_variable>
#include <span>
#include <thread>

#include "engine/run/step/batch.h"
#include "kernels/mutex.h"

namespace hydrant {

class MaskThread {
 public:
  MaskThread() = default;
  ~MaskThread();
  MaskThread(const MaskThread&) = delete;
  MaskThread& operator=(const MaskThread&) = delete;

  // `masks` and its elements must outlive the next Wait(). REQUIRES: no masks are being made
  void Start(std::span<RowMask* const> masks);
  // Returns when all masks are made.
  void Wait();

 private:
  void Run();

  Mutex mutex_;
  std::condition_variable changed_;
  std::span<RowMask* const> masks_ HYDRANT_GUARDED_BY(mutex_);  // empty: no work
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // started with the first masks
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_MASK_THREAD_H_
