// A lock per name. Callers wait for it until a deadline or a stop request. Thread safe.
#ifndef HYDRANT_SCHEDULER_TURNS_H_
#define HYDRANT_SCHEDULER_TURNS_H_

#include <condition_variable>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/mutex.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

class Turns {
 public:
  // Holds the name until it is destroyed, on any thread. The Turns must outlive it.
  class Turn {
   public:
    Turn(Turns* turns, std::string name) : turns_(turns), name_(std::move(name)) {}
    ~Turn() {
      if (turns_ != nullptr) turns_->End(name_);
    }
    Turn(Turn&& other) noexcept
        : turns_(std::exchange(other.turns_, nullptr)), name_(std::move(other.name_)) {}
    Turn& operator=(Turn&&) = delete;

   private:
    Turns* turns_;
    std::string name_;
  };

  // nullopt: the name was not free in time, or the caller's stop was requested.
  std::optional<Turn> Take(const std::string& name, const StoreWait& wait) {
    MutexLock lock(mutex_);
    const auto is_free = [&]() HYDRANT_REQUIRES(mutex_) { return !taken_.contains(name); };
    const bool came = changed_.wait_until(lock.native(), wait.stop, wait.deadline, is_free);
    if (!came || wait.stop.stop_requested()) return std::nullopt;
    taken_.insert(name);
    return std::optional<Turn>(std::in_place, this, name);
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

#endif  // HYDRANT_SCHEDULER_TURNS_H_
