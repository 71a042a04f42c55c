// Saves prefix blocks in a store outside of the process and fetches them for prompts with the same
// prefix, after a restart or on another replica. Every block is a value of its own and is checked
// when it is read; a damaged block counts as missing. Fetch() waits for the store, at most a few
// seconds, so the loop's thread must not call it; no step waits for it. Thread-safe.
#ifndef HYDRANT_SCHEDULER_PREFIX_ARCHIVE_H_
#define HYDRANT_SCHEDULER_PREFIX_ARCHIVE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/offload_memory.h"
#include "engine/cache/prefix_key.h"
#include "kernels/mutex.h"
#include "scheduler/histogram.h"
#include "scheduler/save_queue.h"
#include "scheduler/serving_loop.h"
#include "scheduler/store/circuit.h"
#include "scheduler/store/guarded_store.h"
#include "scheduler/store/store_wait.h"

namespace hydrant {

struct ContextHome;

// The secret for keys shared by all processes that serve the same model in the same number formats
// (SharePrefixKeys), so that each finds the others' blocks.
Sha256Digest PrefixSecretOf(const ContextHome& home);

// Totals since the start; can be read at any time, as StepHistograms.
struct PrefixArchiveMetrics {
  Histogram load_seconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};  // for a prompt's blocks
  std::atomic<uint64_t> saved_bytes{0};
  std::atomic<uint64_t> loaded_bytes{0};
  std::atomic<uint64_t> loaded_tokens{0};  // prompt tokens not prefilled due to loaded blocks
  std::atomic<uint64_t> failed_saves{0};   // blocks
  std::atomic<uint64_t> failed_loads{0};   // blocks found but unusable
};

class PrefixArchive {
 public:
  using OnFailure = std::function<void(const absl::Status&)>;
  // Borrowed: loop, tokenizer and memory outlive it. New blocks are saved in the background by a
  // thread of the archive. on_failure is called on any thread, one call at a time.
  PrefixArchive(ServingLoop* loop, const Tokenizer* tokenizer, const EngineLimits& limits,
                const PrefixMemory& memory, std::unique_ptr<ContextStore> store,
                OnFailure on_failure = {}, Circuit::OnChange on_circuit = {});
  // REQUIRES: the loop has stopped
  ~PrefixArchive() { Stop(StoreWait::For(kStoreGrace).deadline); }

  // Whether Fetch() might load blocks; does not block. False for prompts shorter than a block, and
  // while the circuit breaker refuses calls to the store.
  bool MayFetch(const Request& request) const;
  // Loads the request's prefix blocks that are in the store but not in the cache. After an error or
  // a timeout it loads fewer. `stop`: the client has disconnected.
  void Fetch(const Request& request, const std::stop_token& stop = {});
  // Waits until all blocks are saved; false: the deadline passed.
  bool Flush(std::chrono::steady_clock::time_point deadline);
  // Waits for running calls until the deadline. Then the store gets no more calls, and waiting
  // prompts continue without it.
  void Stop(StoreDeadline deadline = {}) { store_.Stop(deadline); }

  const PrefixArchiveMetrics& metrics() const { return metrics_; }
  const Circuit& circuit() const { return store_.circuit(); }

 private:
  using Blocks = std::unordered_map<PrefixKey, std::string, PrefixKeyHash>;
  size_t BlocksAtOnce() const;
  void RememberStored(std::span<const PrefixKey> keys);
  void Save(std::span<const PrefixKey> keys);
  bool IsStored(const PrefixKey& key, const StoreWait& wait, Blocks* fetched);
  void Install(std::span<const PrefixKey> keys, const PrefixText& text, Blocks* fetched);
  void Failed(const absl::Status& status);

  ServingLoop* const loop_;
  const Tokenizer* const tokenizer_;
  const EngineLimits limits_;
  const PrefixMemory memory_;
  GuardedStore store_;
  const OnFailure on_failure_;
  PrefixArchiveMetrics metrics_;
  std::atomic<int64_t> blocks_in_hand_{0};  // fetched by all calls and not yet installed

  Mutex failure_mutex_;  // one call of on_failure_ at a time
  Mutex mutex_;
  // Known to be in the store.
  std::unordered_set<PrefixKey, PrefixKeyHash> stored_ HYDRANT_GUARDED_BY(mutex_);
  std::unique_ptr<SaveQueue<PrefixKey>> queue_;  // last: its thread uses all members above
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PREFIX_ARCHIVE_H_
