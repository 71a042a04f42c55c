// Pages with several owners: which sequence publishes its pages under which keys, which of its
// pages others may share, and when a head gets copies. Only whole pages, with entries that stay as
// they were written (CachePlan::KeepsEntriesInPlace), so a head appends to pages of its own.
// Borrows the page allocator, and the published sequences until they are unpublished; owned by
// KvCacheManager, and used by its thread.
#ifndef HYDRANT_ENGINE_CACHE_PAGE_SHARING_H_
#define HYDRANT_ENGINE_CACHE_PAGE_SHARING_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache/block_allocator.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/sequence_blocks.h"

namespace hydrant {

class PageSharing {
 public:
  PageSharing(const EngineLimits& limits, BlockAllocator* blocks)
      : block_size_(limits.block_size),
        num_heads_(limits.num_layers * limits.num_kv_heads),
        budget_heads_(limits.BudgetHeads()),
        page_pool_(blocks) {}

  // --- Publishing.

  // As KvCacheManager::Publish.
  void PublishPrompt(const CachePlan& plan, int64_t tokens, std::span<const PrefixKey> keys,
                     SequenceBlocks* blocks);
  // Publishes the first pages[head] pages of each head under these keys. All 0: no effect.
  void Publish(std::vector<PrefixKey> keys, std::span<const int32_t> pages, SequenceBlocks* blocks);
  void Unpublish(SequenceBlocks* blocks);
  // Marks the first pages[head] pages of each head as possibly owned by others, too.
  void MarkShared(std::span<const int32_t> pages, SequenceBlocks* blocks) const;

  // --- Finding. Null: no sequence publishes the key.

  const SequenceBlocks* FindPublisher(const PrefixKey& key) const;
  // Pages of each head of the budget group that a prompt shares with the sequences that have
  // published its first blocks.
  int32_t NumSharedOfPrompt(const OpenArgs& args) const;
  // Pages of a head per prefix block; 0: not a whole number, and no blocks are published.
  int32_t PagesAPrefixBlock() const;
  // [heads] leading pages that a sequence can share with another after args.tokens tokens.
  std::vector<int32_t> SharablePages(const OpenArgs& args, std::span<const HeadSpan> spans) const;
  // [heads] leading pages of an offloaded cache that another sequence has in the pool.
  std::vector<int32_t> SharedOfOffloaded(const OpenArgs& args,
                                         const OffloadedCache& offloaded) const;

  // --- Before entries are overwritten.

  // The number of tokens that may be seen before a head overwrites an entry in a shared page.
  static int64_t OverwritesAfter(const SequenceBlocks& blocks);
  // The number of pages needed for copies up to `tokens` tokens.
  int64_t CopiesBefore(int64_t tokens, const SequenceBlocks& blocks) const;
  // Copies pages with other owners in the heads that overwrite an entry by then. REQUIRES:
  // CopiesBefore() pages are free
  void CopyShared(int64_t tokens, SequenceBlocks* blocks, CacheUpdates* updates);

 private:
  static int64_t OverwritesAfter(const SequenceBlocks& blocks, int head);

  int block_size_;
  int num_heads_;
  int budget_heads_;  // the first of num_heads_
  BlockAllocator* page_pool_;
  std::unordered_multimap<PrefixKey, const SequenceBlocks*, PrefixKeyHash> publishers_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PAGE_SHARING_H_
