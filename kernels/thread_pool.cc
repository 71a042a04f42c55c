// Loop scheduling. Tasks lie in one range per thread; a thread drains its own range first. One
// 64-bit word holds a range's end and its next task; taking a task is one fetch_add. A thread that
// sees next < end owns a task of the current loop, and the loop cannot end before that task is
// counted in `done`, so reading the loop's function then is safe. A worker that wakes up late finds
// no task: the caller waits for taken tasks only, never for a sleeping thread.
#include "kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hydrant {
namespace {

// Longer than the gaps between the operations of a step.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerClockRead = 16;
constexpr int kTaskBits = 32;
constexpr uint64_t kNextMask = (uint64_t{1} << kTaskBits) - 1;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until `ready` returns true; false if it does not within kSpin.
template <typename Ready>
bool SpinUntil(const Ready& ready) {
  if (ready()) return true;
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

struct ThreadPool::Impl {
  using LoopFn = std::function<void(int, int)>;
  using ThreadFn = std::function<void(int)>;

  // Written by the caller between loops.
  const LoopFn* loop_fn = nullptr;
  const ThreadFn* thread_fn = nullptr;

  struct alignas(64) Range {
    std::atomic<uint64_t> tasks{0};  // end << kTaskBits | next task

    void Set(uint64_t begin, uint64_t end) { tasks.store(end << kTaskBits | begin); }
    static bool HasTask(uint64_t tasks) { return (tasks & kNextMask) < tasks >> kTaskBits; }
  };
  std::vector<Range> ranges;                    // one per thread
  alignas(64) std::atomic<int> done{0};         // tasks finished in this loop
  alignas(64) std::atomic<uint32_t> signal{0};  // grows with every loop and at the end
  std::atomic<uint32_t> thread_round{0};        // grows with every OnEachThread
  std::atomic<int> thread_done{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // orders a sleep and its wake-up; guards no member, so not a Mutex
  std::condition_variable wake;
  std::condition_variable finished;
  std::atomic<bool> caller_sleeps{false};
  std::vector<std::thread> workers;

  void Signal() {
    signal.fetch_add(1);
    if (sleepers.load() == 0) return;
    // Waits for a worker between its last check and its sleep.
    { std::lock_guard<std::mutex> lock(mutex); }
    wake.notify_all();
  }

  // Counts one finished unit. The caller sleeps only after it has spun for kSpin.
  void Count(std::atomic<int>& counter) {
    counter.fetch_add(1);
    if (!caller_sleeps.load()) return;
    { std::lock_guard<std::mutex> lock(mutex); }
    finished.notify_one();
  }

  void AwaitCount(const std::atomic<int>& counter, int target) {
    const auto reached = [&] { return counter.load() == target; };
    if (SpinUntil(reached)) return;
    caller_sleeps.store(true);
    {
      std::unique_lock<std::mutex> lock(mutex);
      finished.wait(lock, reached);
    }
    caller_sleeps.store(false);
  }

  void RunTasks(int thread) {
    while (RunOneTask(thread)) {
    }
  }

  // Checks the thread's own range first, each time: a worker left over from the
  // previous loop that finds a task of the new loop in another thread's range runs that
  // one task and then its own range.
  bool RunOneTask(int thread) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      Range& range = ranges[(thread + i) % ranges.size()];
      if (!Range::HasTask(range.tasks.load())) continue;  // a load is cheaper than a fetch_add
      const uint64_t taken = range.tasks.fetch_add(1);
      if (!Range::HasTask(taken)) continue;
      (*loop_fn)(static_cast<int>(taken & kNextMask), thread);
      Count(done);
      return true;
    }
    return false;
  }

  void AwaitSignal(uint32_t seen) {
    const auto changed = [&] { return signal.load() != seen; };
    if (SpinUntil(changed)) return;
    sleepers.fetch_add(1);
    {
      std::unique_lock<std::mutex> lock(mutex);
      wake.wait(lock, changed);
    }
    sleepers.fetch_sub(1);
  }

  void Work(int thread) {
    uint32_t seen = 0;
    uint32_t seen_round = 0;
    for (;;) {
      AwaitSignal(seen);
      seen = signal.load();
      if (stop.load()) return;
      const uint32_t round = thread_round.load();
      if (round != seen_round) {
        seen_round = round;
        (*thread_fn)(thread);
        Count(thread_done);
      }
      RunTasks(thread);
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(std::max(1, num_threads)), impl_(std::make_unique<Impl>()) {
  impl_->ranges = std::vector<Impl::Range>(num_threads_);
  for (int thread = 1; thread < num_threads_; ++thread) {
    impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true);
  impl_->Signal();
  for (std::thread& worker : impl_->workers) worker.join();
}

void ThreadPool::ParallelFor(int num_tasks, const std::function<void(int task, int thread)>& fn) {
  Run(num_tasks, 1, fn);
}

void ThreadPool::ParallelForRanges(int num_tasks,
                                   const std::function<void(int task, int thread)>& fn) {
  Run(num_tasks, num_threads_, fn);
}

void ThreadPool::Run(int num_tasks, int num_ranges,
                     const std::function<void(int task, int thread)>& fn) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || num_threads_ == 1) {
    for (int task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  impl_->loop_fn = &fn;
  impl_->done.store(0);
  const auto tasks = static_cast<uint64_t>(num_tasks);
  for (int i = 0; i < num_ranges; ++i)
    impl_->ranges[i].Set(tasks * i / num_ranges, tasks * (i + 1) / num_ranges);
  impl_->Signal();
  impl_->RunTasks(0);
  impl_->AwaitCount(impl_->done, num_tasks);
}

void ThreadPool::OnEachThread(const std::function<void(int thread)>& fn) {
  if (num_threads_ > 1) {
    impl_->thread_fn = &fn;
    impl_->thread_done.store(0);
    impl_->thread_round.fetch_add(1);
    impl_->Signal();
  }
  fn(0);
  if (num_threads_ > 1) impl_->AwaitCount(impl_->thread_done, num_threads_ - 1);
}

}  // namespace hydrant
