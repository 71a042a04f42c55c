// A lock per name. Callers wait for it until a deadline or a stop request. Thread safe.
#ifndef HYDRANT_SCHEDULER_NAMED_LOCKS_H_
#define HYDRANT_SCHEDULER_NAMED_LOCKS_H_

#include <condition_variable>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/mutex.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

class NamedLocks {
 public:
  // Holds the name until it is destroyed, on any thread. The NamedLocks must outlive it.
  class Lock {
   public:
    Lock(NamedLocks* locks, std::string name) : locks_(locks), name_(std::move(name)) {}
    ~Lock() {
      if (locks_ != nullptr) locks_->End(name_);
    }
    Lock(Lock&& other) noexcept
        : locks_(std::exchange(other.locks_, nullptr)), name_(std::move(other.name_)) {}
    Lock& operator=(Lock&&) = delete;

   private:
    NamedLocks* locks_;
    std::string name_;
  };

  // nullopt: the name was not free in time, or the caller's stop was requested.
  std::optional<Lock> Acquire(const std::string& name, const StoreWait& wait) {
    MutexLock lock(mutex_);
    const auto is_free = [&]() HYDRANT_REQUIRES(mutex_) { return !taken_.contains(name); };
    const bool came = changed_.wait_until(lock.native(), wait.stop, wait.deadline, is_free);
    if (!came || wait.stop.stop_requested()) return std::nullopt;
    taken_.insert(name);
    return std::optional<Lock>(std::in_place, this, name);
  }

 private:
  void End(const std::string& name) {
    const MutexLock lock(mutex_);
    taken_.erase(name);
    changed_.notify_all();
  }

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::set<std::string> taken_ HYDRANT_GUARDED_BY(mutex_);
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_NAMED_LOCKS_H_
