// Events of the prefix cache's blocks, for routers that send a prompt to a server with its prefix
// in the cache: numbered batches of changes, of which the last ones are stored, and a snapshot of
// the current blocks. Blocks of prompts with a salt are not published (Request::publish_kv_events).
//
// The cache's thread writes (PrefixWatcher, Publish()), any thread reads.
#ifndef HYDRANT_SCHEDULER_KV_EVENTS_H_
#define HYDRANT_SCHEDULER_KV_EVENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/cache/prefix_key.h"
#include "engine/cache/prefix_watcher.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/mutex.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {

// Identifies a block by its tokens and all tokens before: a part of its key.
using KvBlockHash = int64_t;

struct KvBlock {
  KvBlockHash hash = 0;
  std::optional<KvBlockHash> parent{};  // the previous block; unset: first of a prompt
  int32_t place = 0;                    // index in the prompt
  std::array<TokenId, kPrefixBlockTokens> tokens{};
};

struct KvBlockRemoved {
  KvBlockHash hash = 0;
};

using KvChange = std::variant<KvBlock, KvBlockRemoved>;  // stored, or removed

struct KvEventBatch {
  uint64_t sequence = 0;  // consecutive numbers
  double unix_seconds = 0;
  std::vector<KvChange> changes;
};

// Limits for the changes in a batch, and in all stored batches.
inline constexpr size_t kMaxKvChanges = 4096;
inline constexpr size_t kKvHistory = 4 * kMaxKvChanges;

class KvEvents final : public PrefixWatcher {
 public:
  // Batches are numbered from `first` + 1. If `first` grows from one process to the next, like a
  // clock, a reader cannot confuse the numbers of two processes.
  explicit KvEvents(uint64_t first) : last_(first) {}

  void OnFilled(const PrefixText& text, std::span<const PrefixKey> filled) override;
  void OnEvicted(const PrefixKey& key) override;
  // Publishes the changes since the last call.
  void Publish(double unix_seconds);

  // The batch of this number; null: not published yet. nullopt: no longer stored, or of another
  // process; then use Blocks().
  std::optional<std::shared_ptr<const KvEventBatch>> Find(uint64_t sequence) const;

  struct Snapshot {
    uint64_t sequence = 0;        // of the last batch included
    std::vector<KvBlock> blocks;  // parents before children
  };
  Snapshot Blocks() const;

  // Registers a callback for new batches, called on the cache's thread; it must not block. Returns
  // an id for StopListening(). Not from within a callback.
  uint64_t Listen(std::function<void()> on_batch);
  void StopListening(uint64_t listener);

 private:
  void Append(std::vector<KvChange> changes, double unix_seconds) HYDRANT_REQUIRES(mutex_);

  std::vector<KvChange> changes_;  // not published yet; used by the cache's thread only

  mutable Mutex mutex_;
  std::unordered_map<KvBlockHash, KvBlock> blocks_ HYDRANT_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const KvEventBatch>> history_ HYDRANT_GUARDED_BY(mutex_);
  size_t history_changes_ HYDRANT_GUARDED_BY(mutex_) = 0;
  uint64_t last_ HYDRANT_GUARDED_BY(mutex_);

  Mutex listeners_mutex_;  // locked before mutex_
  std::map<uint64_t, std::function<void()>> listeners_ HYDRANT_GUARDED_BY(listeners_mutex_);
  uint64_t next_listener_ HYDRANT_GUARDED_BY(listeners_mutex_) = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_KV_EVENTS_H_
