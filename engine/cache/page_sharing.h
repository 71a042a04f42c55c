// Pages with several owners: which sequence publishes its pages under which keys, which pages of it
// others may share, and when a head gets pages of its own. Whole pages only, of entries that stay
// as they were written (CachePlan::LeavesEntries), so what a head appends lies in pages of its own.
// Borrows the allocator of pages, and the published sequences until they are unpublished; owned by
// CacheSpace, and used by its thread.
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
#include "engine/cache/sequence_space.h"

namespace hydrant {

class PageSharing {
 public:
  PageSharing(const EngineLimits& limits, BlockAllocator* blocks)
      : block_size_(limits.block_size),
        num_heads_(limits.num_layers * limits.num_kv_heads),
        budget_heads_(limits.BudgetHeads()),
        blocks_(blocks) {}

  // --- Publishing.

  // As CacheSpace::Publish.
  void PublishPrompt(const CachePlan& plan, int64_t tokens, std::span<const PrefixKey> keys,
                     SequenceSpace* space);
  // Others find the first pages[head] pages of each head under these keys. None: no effect.
  void Publish(std::vector<PrefixKey> keys, std::span<const int32_t> pages, SequenceSpace* space);
  void Unpublish(SequenceSpace* space);
  // The first pages of its heads may have other owners from now on.
  void MarkShared(std::span<const int32_t> pages, SequenceSpace* space) const;

  // --- Finding. Null: no sequence publishes the key.

  const SequenceSpace* FindPublisher(const PrefixKey& key) const;
  // Pages of each head of the budget group that a prompt shares with the sequences that have
  // published its first blocks.
  int32_t NumSharedOfPrompt(const OpenArgs& args) const;
  // 0: a block is no whole number of pages, and none is published.
  int32_t PagesAPrefixBlock() const;
  // [heads] of its pages, the first ones, that a sequence and another may both own when it has seen
  // args.tokens.
  std::vector<int32_t> SharablePages(const OpenArgs& args, std::span<const HeadSpan> spans) const;
  // [heads] of a kept cache's pages, the first of each head, those that another has in the pool.
  std::vector<int32_t> SharedOfKept(const OpenArgs& args, const KeptSpace& kept) const;

  // --- Before entries are overwritten.

  // What heads that share pages may see before they overwrite an entry in one of them.
  static int64_t OverwritesAfter(const SequenceSpace& space);
  // Pages that are needed for copies until so many tokens have been seen.
  int64_t CopiesBefore(int64_t tokens, const SequenceSpace& space) const;
  // Heads that are to overwrite an entry by then get copies of pages with another owner. REQUIRES:
  // there are as many free pages
  void CopyShared(int64_t tokens, SequenceSpace* space, CacheUpdates* updates);

 private:
  static int64_t OverwritesAfter(const SequenceSpace& space, int head);

  int block_size_;
  int num_heads_;
  int budget_heads_;  // of these, the first ones
  BlockAllocator* blocks_;
  std::unordered_multimap<PrefixKey, const SequenceSpace*, PrefixKeyHash> publishers_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PAGE_SHARING_H_
