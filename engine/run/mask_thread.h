// Makes a step's masks beside it, on a thread of its own: while the layers run. Used by one thread,
// the engine's.
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

  // What `masks` names stays until Wait() has returned. REQUIRES: none are being made
  void Start(std::span<RowMask* const> masks);
  // Until all are made.
  void Wait();

 private:
  void Run();

  Mutex mutex_;
  std::condition_variable changed_;
  std::span<RowMask* const> masks_ HYDRANT_GUARDED_BY(mutex_);  // empty: nothing is to be done
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // begins with the first masks
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_MASK_THREAD_H_
