// Which prefix blocks (kernels/ops/prefix_blocks.h) hold the beginning of which prompts. Ids and
// counts only. Owned by the scheduler's thread; the destructor checks that every lease has ended.
//
// A block is free, or being filled by one lease, or filled. A filled block is found by its key and
// stays until its room is wanted: the least recently used leaves first, of a prompt the last before
// the first, and never one that a lease reads.
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

// What a prompt that is being read has of the blocks. Empty where it has none.
struct PrefixLease {
  std::vector<int32_t> cached;       // filled ones, of its first tokens
  std::vector<int32_t> fresh;        // to be filled with the tokens that follow those
  std::vector<PrefixKey> keys;       // of the fresh ones
  int32_t tokens = 0;                // the first ones, that need not be read
  std::vector<int32_t> checkpoints;  // PrefixLayout::Checkpoints

  bool IsEmpty() const { return cached.empty() && fresh.empty(); }
};

// Tokens since the start, blocks now.
struct PrefixCacheStats {
  uint64_t queried_tokens = 0;  // of prompts that were looked for, at each admission
  uint64_t hit_tokens = 0;      // of these, not read
  uint64_t evicted_blocks = 0;  // filled ones whose room was wanted, since the start
  int64_t filled_blocks = 0;
  int64_t blocks = 0;
};

class PrefixCache {
 public:
  explicit PrefixCache(int num_blocks);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Borrowed: it outlives the cache. Null: nobody.
  void Watch(PrefixWatcher* watcher) { watcher_ = watcher; }

  bool IsFilled(const PrefixKey& key) const { return filled_.contains(key); }
  std::optional<int32_t> Find(const PrefixKey& key) const {
    const auto it = filled_.find(key);
    return it == filled_.end() ? std::nullopt : std::optional(it->second);
  }
  // How many of a prompt's blocks are filled, from its first on. keys: of its blocks in order.
  int NumFilled(std::span<const PrefixKey> keys) const;
  // Blocks that are filled, and room for as many others, in this order, as can be had.
  PrefixLease Open(std::span<const PrefixKey> cached, std::span<const PrefixKey> fresh);
  // A prompt was looked for, and so much of it found.
  void CountLookup(int64_t prompt_tokens, int64_t hit_tokens) {
    totals_.queried_tokens += prompt_tokens;
    totals_.hit_tokens += hit_tokens;
  }
  // The prompt has been read: the fresh blocks are filled. The lease is empty afterwards. `text`:
  // what the watcher is told of it; empty where it is nobody's business.
  void Fill(PrefixLease* lease, const PrefixText& text = {});
  // It has not: they are free again.
  void Abandon(PrefixLease* lease);

  // Filled blocks that nobody reads are free again; how many there were.
  int DropUnread();

  PrefixCacheStats Stats() const;
  // For tests, O(blocks). leases: all that are open.
  absl::Status CheckInvariants(std::span<const PrefixLease* const> leases) const;

 private:
  struct Block {
    PrefixKey key;    // of a filled one
    int readers = 0;  // leases
    bool filled = false;
    std::list<int32_t>::iterator place;  // in unread_; of a filled one that has no reader
  };

  bool TakeBlock(int32_t* id);
  int32_t TakeUnread();
  void StopReading(const PrefixLease& lease);
  void KeepUnread(int32_t id);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::list<int32_t> unread_;  // filled, no reader; the least recently used first
  std::unordered_map<PrefixKey, int32_t, PrefixKeyHash> filled_;
  PrefixWatcher* watcher_ = nullptr;
  PrefixCacheStats totals_;  // only what is counted since the start
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_CACHE_H_
