// Saves contexts in a store outside of the process, and brings them back: after a restart, or what
// another replica has read. Calls wait for the store up to their deadline, so the loop's thread
// must not call; no step waits for them. Save(), Load() and Delete() of one context run one after
// another: when Delete() has succeeded, the context is gone, even if other calls were saving or
// loading it. Thread-safe.
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
#include "scheduler/save_queue.h"
#include "scheduler/serving_loop.h"
#include "scheduler/store/circuit.h"
#include "scheduler/store/guarded_store.h"
#include "scheduler/store/store_wait.h"
#include "scheduler/turns.h"

namespace hydrant {

// Totals since the start; read at any time, as StepHistograms.
struct ContextArchiveMetrics {
  Histogram save_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};  // of those that succeeded
  Histogram load_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
  std::atomic<uint64_t> saved_bytes{0};
  std::atomic<uint64_t> loaded_bytes{0};
  std::atomic<uint64_t> failed_saves{0};
  std::atomic<uint64_t> failed_loads{0};
};

struct ContextArchiveOptions {
  // Contexts that requests leave are saved soon after, on a thread of the archive, and no call
  // waits for the result. This function gets the errors, on that thread.
  std::function<void(const absl::Status&)> on_unsaved = {};
  Circuit::OnChange on_circuit = {};     // called when the circuit breaker opens or closes
  std::chrono::milliseconds patience{};  // of that thread, for one context; 0: 30 seconds
};

class ContextArchive {
 public:
  // Borrows loop and memory, which outlive it. store: may be null; then contexts cannot be saved.
  ContextArchive(ServingLoop* loop, const KeptMemory& memory, const ContextHome& home,
                 std::unique_ptr<ContextStore> store, ContextArchiveOptions options = {});
  // REQUIRES: the loop has stopped
  ~ContextArchive() { Stop(StoreWait::For(kStoreGrace).deadline); }
  // Waits until what requests have left is saved; false: it took longer.
  bool Flush(std::chrono::steady_clock::time_point deadline);
  // Waits for running calls until the deadline. Then the store gets no more calls, and calls that
  // still wait for it return UNAVAILABLE.
  void Stop(StoreDeadline deadline = {});

  bool HasStore() const { return store_ != nullptr; }
  bool IsHere(const ContextId& id) const;  // in memory

  // All calls that wait: UNAVAILABLE: the store did not answer in time, or its circuit breaker is
  // open; CANCELLED: the caller was told to stop.
  //
  // Into the store; returns when it is safe there. NOT_FOUND: there is no such context.
  absl::Status Save(const ContextId& id, const StoreWait& wait);
  // From the store, unless it is here already. NOT_FOUND: it is not there either;
  // FailedPrecondition or DataLoss: what is there cannot be used; ResourceExhausted: there is no
  // room for it here.
  absl::Status Load(const ContextId& id, const StoreWait& wait);
  // Deletes from the store, then from memory; if the store fails, the context stays in memory. A
  // store that did not answer in time may still delete its value later. Requests that continue the
  // context go on. NOT_FOUND: there was no such context.
  absl::Status Delete(const ContextId& id, const StoreWait& wait);

  struct Entry {
    ContextId id;
    std::shared_ptr<const Context> context;  // null: it is in the store alone
    int64_t stored_bytes = -1;               // -1: it is not in the store
  };
  // Of a salt, by handle.
  absl::StatusOr<std::vector<Entry>> List(const std::string& salt, const StoreWait& wait);
  // One of them, NOT_FOUND where there is none.
  absl::StatusOr<Entry> Get(const ContextId& id, const StoreWait& wait);

  const ContextArchiveMetrics& metrics() const { return metrics_; }
  // Null: there is no store.
  const Circuit* circuit() const { return store_ == nullptr ? nullptr : &store_->circuit(); }

 private:
  absl::Status TrySave(const ContextId& id, const StoreWait& wait);
  absl::Status TryLoad(const ContextId& id, const StoreWait& wait);
  void SaveKept(const ContextId& id);

  ServingLoop* const loop_;
  const KeptMemory memory_;
  const ContextHome home_;
  const ContextArchiveOptions options_;
  const std::unique_ptr<GuardedStore> store_;

  Turns turns_;  // by context; all loads share "": one loaded value is in memory at a time
  ContextArchiveMetrics metrics_;

  std::unique_ptr<SaveQueue<ContextId>> queue_;  // null: there is no store
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_
