// What becomes of the prefix cache's blocks, for routers that send a prompt where its beginning has
// been read: batches of changes, numbered one by one, of which the last ones are kept, and the
// blocks that are there. Blocks of a prompt whose tokens are its client's secret are not told.
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
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/cache/prefix_key.h"
#include "engine/cache/prefix_watcher.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {

// Names a block by its tokens and all that come before them: a part of its key.
using KvBlockHash = int64_t;

struct KvBlock {
  KvBlockHash hash = 0;
  std::optional<KvBlockHash> parent{};  // the block before it; unset: it is a prompt's first
  int32_t place = 0;                    // in the prompt
  std::array<TokenId, kPrefixBlockTokens> tokens{};
};

struct KvBlockRemoved {
  KvBlockHash hash = 0;
};

using KvChange = std::variant<KvBlock, KvBlockRemoved>;  // stored, or removed

struct KvEventBatch {
  uint64_t sequence = 0;  // the one before, and 1
  double unix_seconds = 0;
  std::vector<KvChange> changes;
};

// At most so many changes are in a batch, and so many are kept in all.
inline constexpr size_t kMostKvChanges = 4096;
inline constexpr size_t kKvHistory = 4 * kMostKvChanges;

class KvEvents final : public PrefixWatcher {
 public:
  // Batches are numbered from `first` + 1 on. One that grows from one process to the next, as a
  // clock, keeps a reader from taking the numbers of a process that is gone for this one's.
  explicit KvEvents(uint64_t first) : last_(first) {}

  void OnFilled(const PrefixText& text, std::span<const PrefixKey> filled) override;
  void OnEvicted(const PrefixKey& key) override;
  // Makes what has happened since the last call known.
  void Publish(double unix_seconds);

  // The batch of this number; null: it has not come yet. Unset: it is not kept any more, or it is
  // of another process; Blocks() says what is there.
  std::optional<std::shared_ptr<const KvEventBatch>> Find(uint64_t sequence) const;

  struct Snapshot {
    uint64_t sequence = 0;        // of the last batch in it
    std::vector<KvBlock> blocks;  // each behind its parent, where that is there
  };
  Snapshot Blocks() const;

  // Calls it when batches have come, on the cache's thread; it must not block. Returns a number by
  // which it is not called any more. Not from within such a call.
  uint64_t Listen(std::function<void()> on_batch);
  void StopListening(uint64_t listener);

 private:
  // REQUIRES: mutex_ held.
  void Append(std::vector<KvChange> changes, double unix_seconds);

  std::vector<KvChange> changes_;  // the cache's thread only: not published

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<KvBlockHash, KvBlock> blocks_;
  std::deque<std::shared_ptr<const KvEventBatch>> history_;
  size_t history_changes_ = 0;
  uint64_t last_;

  std::mutex listeners_mutex_;                           // before mutex_
  std::map<uint64_t, std::function<void()>> listeners_;  // guarded by listeners_mutex_
  uint64_t next_listener_ = 0;                           // guarded by listeners_mutex_
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_KV_EVENTS_H_
