// One holder at a time for each name. A call waits for its turn until a deadline, or until it is
// told to stop. Thread safe.
#ifndef HYDRANT_SCHEDULER_TURNS_H_
#define HYDRANT_SCHEDULER_TURNS_H_

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "scheduler/store/store_wait.h"

namespace hydrant {

class Turns {
 public:
  // The turn ends when this object is destroyed, on any thread. The Turns must outlive it.
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

  // Nullopt: the turn did not come in time, or the caller was told to stop.
  std::optional<Turn> Take(const std::string& name, const StoreWait& wait) {
    std::unique_lock lock(mutex_);
    const auto is_free = [&] { return !taken_.contains(name); };
    const bool came = changed_.wait_until(lock, wait.stop, wait.deadline, is_free);
    if (!came || wait.stop.stop_requested()) return std::nullopt;
    taken_.insert(name);
    return std::optional<Turn>(std::in_place, this, name);
  }

 private:
  void End(const std::string& name) {
    const std::lock_guard lock(mutex_);
    taken_.erase(name);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::set<std::string> taken_;  // guarded by mutex_
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_TURNS_H_
