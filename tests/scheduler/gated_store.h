// A store in memory with calls that block on a test's request. Like calls to a dead disk, they
// ignore their deadline. Thread safe.
#ifndef HYDRANT_TESTS_SCHEDULER_GATED_STORE_H_
#define HYDRANT_TESTS_SCHEDULER_GATED_STORE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/store/context_store.h"

namespace hydrant {

// The test's handle to the store's values and blocked calls; it outlives the store.
class Gate {
 public:
  enum class Call { kPut, kGet, kSizeOf, kDelete, kList };
  using IsHeld = std::function<bool(Call call, const std::string& key)>;

  // Chooses the calls that block from now on: a Put or Delete before its change, other calls after
  // their read.
  void Hold(IsHeld is_held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_held_ = std::move(is_held);
    changed_.notify_all();
  }
  void Open() { Hold({}); }
  void WaitUntilHeld(int calls) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return num_held_ >= calls; }))
        << num_held_ << " calls are held, not " << calls;
  }
  std::vector<std::string> Keys() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> keys;
    for (const auto& [key, value] : values_) keys.push_back(key);
    return keys;
  }
  int calls() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_calls_;
  }

 private:
  friend class GatedStore;
  void Pass(Call call, const std::string& key) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_calls_;
    if (!is_held_ || !is_held_(call, key)) return;
    ++num_held_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_held_ || !is_held_(call, key); });
    --num_held_;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, std::string> values_;
  IsHeld is_held_;
  int num_held_ = 0, num_calls_ = 0;
};

class GatedStore final : public ContextStore {
 public:
  explicit GatedStore(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}

  absl::Status Put(std::string_view key, std::string_view value,
                   std::optional<int64_t> /*ttl_seconds*/, StoreDeadline /*deadline*/) override {
    gate_->Pass(Gate::Call::kPut, std::string(key));
    const std::lock_guard<std::mutex> lock(gate_->mutex_);
    gate_->values_[std::string(key)] = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, size_t /*max_bytes*/,
                                  StoreDeadline /*deadline*/) override {
    const absl::StatusOr<std::string> value = Find(key);
    gate_->Pass(Gate::Call::kGet, std::string(key));
    return value;
  }
  absl::StatusOr<int64_t> SizeOf(std::string_view key, StoreDeadline /*deadline*/) override {
    const absl::StatusOr<std::string> value = Find(key);
    gate_->Pass(Gate::Call::kSizeOf, std::string(key));
    if (!value.ok()) return value.status();
    return static_cast<int64_t>(value->size());
  }
  absl::StatusOr<bool> Delete(std::string_view key, StoreDeadline /*deadline*/) override {
    gate_->Pass(Gate::Call::kDelete, std::string(key));
    const std::lock_guard<std::mutex> lock(gate_->mutex_);
    return gate_->values_.erase(std::string(key)) > 0;
  }
  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix,
                                              StoreDeadline /*deadline*/) override {
    std::vector<StoredKey> keys;
    {
      const std::lock_guard<std::mutex> lock(gate_->mutex_);
      for (const auto& [key, value] : gate_->values_) {
        if (key.starts_with(prefix)) keys.push_back({key, static_cast<int64_t>(value.size())});
      }
    }
    gate_->Pass(Gate::Call::kList, std::string(prefix));
    return keys;
  }
  std::string Description() const override { return "the gated store"; }

 private:
  absl::StatusOr<std::string> Find(std::string_view key) const {
    const std::lock_guard<std::mutex> lock(gate_->mutex_);
    const auto found = gate_->values_.find(std::string(key));
    if (found == gate_->values_.end()) return absl::NotFoundError("no such key");
    return found->second;
  }

  const std::shared_ptr<Gate> gate_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_GATED_STORE_H_
