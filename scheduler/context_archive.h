// Saves contexts in a store outside of the process, and brings them back: after a restart, or what
// another replica has read. Calls wait for the store as long as they say and no longer, so none
// comes from the loop's thread; no step waits for them. What is done to one context is done in an
// order: one that is deleted is not there afterwards, whoever was saving or loading it.
// Thread-safe.
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

// Totals since the start; read at any time, as LoopMetrics.
struct ContextArchiveMetrics {
  Histogram save_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};  // of those that succeeded
  Histogram load_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
  std::atomic<uint64_t> saved_bytes{0};
  std::atomic<uint64_t> loaded_bytes{0};
  std::atomic<uint64_t> failed_saves{0};
  std::atomic<uint64_t> failed_loads{0};
};

struct ContextArchiveOptions {
  // Whatever a request leaves is saved soon after, by a thread of the archive's, and nobody waits
  // to hear that it could not be: this hears it, on that thread.
  std::function<void(const absl::Status&)> on_unsaved = {};
  Circuit::OnChange on_circuit = {};     // of the store
  std::chrono::milliseconds patience{};  // of that thread, with one context; 0: half a minute
};

class ContextArchive {
 public:
  // Borrowed: loop and memory outlive it. store: may be null, then nothing can be saved.
  ContextArchive(ServingLoop* loop, const KeptMemory& memory, const ContextHome& home,
                 std::unique_ptr<ContextStore> store, ContextArchiveOptions options = {});
  // REQUIRES: the loop has stopped
  ~ContextArchive() { Stop(StoreWait::For(kStoreGrace).deadline); }
  // Waits until what requests have left is saved; false: it took longer.
  bool Flush(std::chrono::steady_clock::time_point deadline);
  // Gives calls that are at work until the deadline; then the store is asked for nothing any more,
  // and whoever waits for it is told so.
  void Stop(StoreDeadline deadline = {});

  bool HasStore() const { return store_ != nullptr; }
  bool IsHere(const ContextId& id) const;  // in memory

  // All calls that wait: UNAVAILABLE where the store did not answer in time, or is left alone
  // because it did not before; CANCELLED where they were told to stop.
  //
  // Into the store; returns when it is safe there. NOT_FOUND: there is no such context.
  absl::Status Save(const ContextId& id, const StoreWait& wait);
  // From the store, unless it is here already. NOT_FOUND: it is not there either;
  // FailedPrecondition or DataLoss: what is there cannot be used; ResourceExhausted: there is no
  // room for it here.
  absl::Status Load(const ContextId& id, const StoreWait& wait);
  // In the store and here, or in neither where the store fails. Requests that go on from it do so.
  // NOT_FOUND: there was none.
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

  Turns turns_;  // of each context; that of no name is for loading: one lies in memory at a time
  ContextArchiveMetrics metrics_;

  std::unique_ptr<SaveQueue<ContextId>> queue_;  // null: there is no store
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_
