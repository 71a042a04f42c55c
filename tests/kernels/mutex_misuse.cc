// Uses of a mutex for the test thread_safety_finds, which runs clang's analysis on this file and
// counts the faults: every function of Wrong has one, no function of Counter has any. No target
// compiles it.
#include <condition_variable>
#include <memory>

#include "kernels/mutex.h"

namespace hydrant {
namespace {

class Counter {
 public:
  void Wait() {
    MutexLock lock(mutex_);
    changed_.wait(lock.native(), [this]() HYDRANT_REQUIRES(mutex_) { return count_ > 0; });
    --count_;
    lock.Unlock();
    changed_.notify_all();
    lock.Lock();
    Add(*boxed_);
  }
  void AddOne() HYDRANT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex());
    Add(1);
  }
  Mutex& mutex() HYDRANT_RETURN_CAPABILITY(mutex_) { return mutex_; }

 protected:
  void Add(int more) HYDRANT_REQUIRES(mutex_) { count_ += more; }

  Mutex mutex_;
  std::condition_variable changed_;
  int count_ HYDRANT_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<int> boxed_ HYDRANT_PT_GUARDED_BY(mutex_) = std::make_unique<int>(1);
};

class Wrong : public Counter {
 public:
  int ReadWithoutLock() const { return count_; }
  void WriteAfterUnlock() {
    MutexLock lock(mutex_);
    lock.Unlock();
    count_ = 1;
  }
  void CallWithoutLock() { Add(1); }
  void LockTwice() {
    const MutexLock lock(mutex_);
    AddOne();
  }
  int ReadPointeeWithoutLock() const { return *boxed_; }
  void WaitForUnmarkedPredicate() {
    MutexLock lock(mutex_);
    changed_.wait(lock.native(), [this] { return count_ > 0; });
  }
};

}  // namespace
}  // namespace hydrant
