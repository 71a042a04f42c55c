// A fixed set of threads that run one parallel loop at a time. The caller takes part as
// thread 0; workers spin for a few microseconds between loops (a decode step has hundreds)
// and then sleep, so an idle daemon uses no CPU. ParallelFor may be called from one thread at
// a time and must not be nested.
#ifndef HYDRANT_KERNELS_THREAD_POOL_H_
#define HYDRANT_KERNELS_THREAD_POOL_H_

#include <functional>
#include <memory>

namespace hydrant {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // REQUIRES: num_threads >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) for every task in [0, num_tasks), in any order; 0 <= thread <
  // num_threads(). Returns when all are done. Threads take tasks one by one; a task's result must
  // not depend on its thread.
  void ParallelFor(int num_tasks, const std::function<void(int task, int thread)>& fn);

  // As ParallelFor, but each thread runs a range of its own, in order, and then helps the others:
  // for neighbouring tasks that read neighbouring memory. A worker that comes straight from the
  // previous loop may take one task of another thread's range first.
  void ParallelForRanges(int num_tasks, const std::function<void(int task, int thread)>& fn);

  // Calls fn(thread) exactly once on every thread, for work bound to a thread
  // (its packed weight slice).
  void OnEachThread(const std::function<void(int thread)>& fn);

 private:
  struct Impl;
  void Run(int num_tasks, int num_ranges, const std::function<void(int task, int thread)>& fn);

  int num_threads_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_THREAD_POOL_H_
