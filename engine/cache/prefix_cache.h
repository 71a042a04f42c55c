// The prefix cache: which prefix blocks (kernels/ops/prefix_blocks.h) hold which prefixes. Ids and
// counts only. Owned by the scheduler's thread; the destructor checks that every lease has ended.
//
// A block is free, being filled by one lease, or filled. A filled block is found by its key and
// stays until its memory is needed. Eviction is LRU, a prompt's last blocks before its first ones;
// blocks that a lease reads are never evicted.
#ifndef HYDRANT_ENGINE_CACHE_PREFIX_CACHE_H_
#define HYDRANT_ENGINE_CACHE_PREFIX_CACHE_H_

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/prefix_watcher.h"

namespace hydrant {

// The blocks of a prompt during its prefill. Empty if it has none.
struct PrefixLease {
  std::vector<int32_t> cached;       // filled blocks, of its first tokens
  std::vector<int32_t> fresh;        // blocks to fill with the tokens after the cached ones
  std::vector<PrefixKey> keys;       // keys of the fresh blocks
  int32_t tokens = 0;                // leading tokens that need no prefill
  std::vector<int32_t> checkpoints;  // PrefixLayout::Checkpoints

  bool IsEmpty() const { return cached.empty() && fresh.empty(); }
};

// Tokens since the start, blocks now.
struct PrefixCacheStats {
  uint64_t queried_tokens = 0;  // of prompts looked up, at each admission
  uint64_t hit_tokens = 0;      // the part of queried_tokens that needed no prefill
  uint64_t evicted_blocks = 0;  // since the start
  int64_t filled_blocks = 0;
  int64_t blocks = 0;
};

class PrefixCache {
 public:
  explicit PrefixCache(int num_blocks);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Borrowed: it outlives the cache. Null: no watcher.
  void Watch(PrefixWatcher* watcher) { watcher_ = watcher; }

  bool IsFilled(const PrefixKey& key) const { return filled_.contains(key); }
  std::optional<int32_t> Find(const PrefixKey& key) const {
    const auto it = filled_.find(key);
    return it == filled_.end() ? std::nullopt : std::optional(it->second);
  }
  // The number of filled blocks of a prompt, from its first on. keys: of its blocks, in order.
  int NumFilled(std::span<const PrefixKey> keys) const;
  // Leases the filled blocks `cached`, and blocks for `fresh`, in this order, as far as available.
  PrefixLease Open(std::span<const PrefixKey> cached, std::span<const PrefixKey> fresh);
  // Counts the lookup of a prompt.
  void CountLookup(int64_t prompt_tokens, int64_t hit_tokens) {
    totals_.queried_tokens += prompt_tokens;
    totals_.hit_tokens += hit_tokens;
  }
  // After the prompt's prefill: the fresh blocks are filled. Empties the lease. text: passed to the
  // watcher; empty for a private prompt.
  void Fill(PrefixLease* lease, const PrefixText& text = {});
  // Frees the fresh blocks of a prompt without a complete prefill. Empties the lease.
  void Abandon(PrefixLease* lease);

  // Frees the filled blocks without readers and returns their number.
  int EvictUnleased();

  PrefixCacheStats Stats() const;
  // For tests, O(blocks). leases: all open leases.
  absl::Status CheckInvariants(std::span<const PrefixLease* const> leases) const;

 private:
  struct Block {
    PrefixKey key;    // of a filled block
    int readers = 0;  // leases
    bool filled = false;
    std::list<int32_t>::iterator place;  // in evictable_; of a filled block without readers
  };

  bool TakeBlock(int32_t* id);
  int32_t EvictOldest();
  void EndLease(const PrefixLease& lease);
  void AddEvictable(int32_t id);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::list<int32_t> evictable_;  // filled, without readers; the least recently used first
  std::unordered_map<PrefixKey, int32_t, PrefixKeyHash> filled_;
  PrefixWatcher* watcher_ = nullptr;
  PrefixCacheStats totals_;  // only the counts since the start
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_CACHE_H_
