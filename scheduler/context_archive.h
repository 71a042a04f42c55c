// Saves contexts in a store outside of the process and loads them again, after a restart or on
// another replica. Calls wait for the store up to their deadline, so the loop's thread must not
// call; no step waits for them. Save(), Load() and Delete() of one context run one after another:
// when Delete() has succeeded, the context is gone, even if other calls were saving or loading
// it. Thread-safe.
#ifndef HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_
#define HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/context_file.h"
#include "scheduler/histogram.h"
#include "scheduler/named_locks.h"
#include "scheduler/save_queue.h"
#include "scheduler/serving_loop.h"
#include "scheduler/store/circuit.h"
#include "scheduler/store/guarded_store.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

// Totals since the start; can be read at any time, as StepHistograms.
struct ContextArchiveMetrics {
  Histogram save_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};  // successful saves
  Histogram load_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
  std::atomic<uint64_t> saved_bytes{0};
  std::atomic<uint64_t> loaded_bytes{0};
  std::atomic<uint64_t> failed_saves{0};
  std::atomic<uint64_t> failed_loads{0};
};

struct ContextArchiveOptions {
  // Kept contexts are saved in the background by a thread of the archive. It passes errors to
  // this function.
  std::function<void(const absl::Status&)> on_unsaved = {};
  Circuit::OnChange on_circuit = {};     // called when the circuit breaker opens or closes
  std::chrono::milliseconds patience{};  // time limit of a background save; 0: 30 seconds
};

class ContextArchive {
 public:
  // Borrows loop and memory, which outlive it. store: may be null; then contexts cannot be saved.
  ContextArchive(ServingLoop* loop, const OffloadMemory& memory, const ContextHome& home,
                 std::unique_ptr<ContextStore> store, ContextArchiveOptions options = {});
  // REQUIRES: the loop has stopped
  ~ContextArchive() { Stop(StoreWait::For(kStoreGrace).deadline); }
  // Waits until all kept contexts are saved; false: the deadline passed.
  bool Flush(std::chrono::steady_clock::time_point deadline);
  // Waits for running calls until the deadline. Then the store gets no more calls, and waiting
  // calls return UNAVAILABLE.
  void Stop(StoreDeadline deadline = {});

  bool HasStore() const { return store_ != nullptr; }
  bool IsInMemory(const ContextId& id) const;  // in memory

  // Common errors of the waiting calls: UNAVAILABLE: the store did not answer in time, or its
  // circuit breaker is open; CANCELLED: the caller's stop token was triggered.
  //
  // Saves to the store; returns when the value is durable. NOT_FOUND: no such context.
  absl::Status Save(const ContextId& id, const StoreWait& wait);
  // Loads from the store unless the context is in memory. NOT_FOUND: not in the store;
  // FailedPrecondition or DataLoss: the stored value is unusable; ResourceExhausted: no memory
  // for it.
  absl::Status Load(const ContextId& id, const StoreWait& wait);
  // Deletes from the store, then from memory; if the store fails, the context stays in memory. A
  // store that did not answer in time may still delete its value later. Requests that continue the
  // context are not affected. NOT_FOUND: no such context.
  absl::Status Delete(const ContextId& id, const StoreWait& wait);

  struct Entry {
    ContextId id;
    std::shared_ptr<const Context> context;  // null: only in the store
    int64_t stored_bytes = -1;               // -1: not in the store
  };
  // All contexts of a salt, sorted by handle.
  absl::StatusOr<std::vector<Entry>> List(const std::string& salt, const StoreWait& wait);
  // One context; NOT_FOUND.
  absl::StatusOr<Entry> Get(const ContextId& id, const StoreWait& wait);

  const ContextArchiveMetrics& metrics() const { return metrics_; }
  // Null without a store.
  const Circuit* circuit() const { return store_ == nullptr ? nullptr : &store_->circuit(); }

 private:
  absl::Status TrySave(const ContextId& id, const StoreWait& wait);
  absl::Status TryLoad(const ContextId& id, const StoreWait& wait);
  void SaveKept(const ContextId& id);

  ServingLoop* const loop_;
  const OffloadMemory memory_;
  const ContextHome home_;
  const ContextArchiveOptions options_;
  const std::unique_ptr<GuardedStore> store_;

  NamedLocks locks_;  // by context; all loads share "": one loaded value is in memory at a time
  ContextArchiveMetrics metrics_;

  std::unique_ptr<SaveQueue<ContextId>> queue_;  // null without a store
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_
