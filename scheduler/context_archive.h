// Saves contexts in a store outside of the process, and brings them back: after a restart, or what
// another replica has read. Calls block for as long as the store takes, so none comes from the
// loop's thread; no step waits for them. Thread-safe.
#ifndef HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_
#define HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/context_file.h"
#include "scheduler/histogram.h"
#include "scheduler/save_queue.h"
#include "scheduler/serving_loop.h"
#include "scheduler/store/context_store.h"

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

class ContextArchive {
 public:
  using OnUnsaved = std::function<void(const absl::Status&)>;
  // Borrowed: loop and memory outlive it. store: may be null, then nothing can be saved. Whatever
  // a request leaves is saved soon after, by a thread of the archive's; nobody waits to hear that
  // it could not be, so on_unsaved is called on that thread.
  ContextArchive(ServingLoop* loop, const KeptMemory& memory, const ContextHome& home,
                 std::unique_ptr<ContextStore> store, OnUnsaved on_unsaved = {});
  // REQUIRES: the loop has stopped
  ~ContextArchive() = default;
  // Waits until what requests have left is saved; false: it took longer.
  bool Flush(std::chrono::steady_clock::time_point deadline);

  bool HasStore() const { return store_ != nullptr; }
  bool IsHere(const ContextId& id) const;  // in memory

  // Into the store; returns when it is safe there. NOT_FOUND: there is no such context.
  absl::Status Save(const ContextId& id);
  // From the store, unless it is here already. NOT_FOUND: it is not there either;
  // FailedPrecondition or DataLoss: what is there cannot be used; ResourceExhausted: there is no
  // room for it here.
  absl::Status Load(const ContextId& id);
  // Here and in the store. Requests that go on from it do so. NOT_FOUND: there was none.
  absl::Status Delete(const ContextId& id);

  struct Entry {
    ContextId id;
    std::shared_ptr<const Context> context;  // null: it is in the store alone
    int64_t stored_bytes = -1;               // -1: it is not in the store
  };
  // Of a salt, by handle.
  absl::StatusOr<std::vector<Entry>> List(const std::string& salt);
  // One of them, NOT_FOUND where there is none.
  absl::StatusOr<Entry> Get(const ContextId& id);

  const ContextArchiveMetrics& metrics() const { return metrics_; }

 private:
  absl::Status TrySave(const ContextId& id);
  absl::Status TryLoad(const ContextId& id);
  void SaveKept(const ContextId& id);

  ServingLoop* const loop_;
  const KeptMemory memory_;
  const ContextHome home_;
  const std::unique_ptr<ContextStore> store_;

  std::mutex load_mutex_;  // one comes at a time: others may want the same
  ContextArchiveMetrics metrics_;
  const OnUnsaved on_unsaved_;

  std::unique_ptr<SaveQueue<ContextId>> queue_;  // null: there is no store
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_ARCHIVE_H_
