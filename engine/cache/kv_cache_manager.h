// Allocates the engine's memory to live sequences: slots, pages of the KV pool, rows of the table
// arena, room in the prefill arena. Ids and counts only. Heads are numbered group by group
// (engine/cache/group_plans.h), the budget group first; the initial span of each head follows from
// its group's plan. A call that fails changes nothing. Owned by the scheduler's thread; the
// destructor checks that every page is free again.
//
// Heads may hold different numbers of entries: the arrays of SequenceBlocks are per head. A step
// costs O(1) per sequence, plus O(1) per head that crosses a page boundary.
//
// If a plan keeps state of entries (CachePlan::state_lines), each page of the budget group's heads
// names a state in a slab (StateAllocator). A slab is a page of the pool, belongs to one sequence
// and counts as its page; a sequence has as many as the state of its pages fills. After a
// compaction, PackState() moves state out of surplus slabs and frees them; until then new pages of
// the sequence use the free states in them.
//
// Sequences share pages (PageSharing): each is an owner, and a page is freed by its last owner.
// State is not shared. Before a head overwrites an entry in a shared page, the page is copied
// (TryGrow). Pages are shared by samples of one prompt (TryFork), by prompts with a common prefix
// if every head keeps all of it (TryOpen, Publish), and by sequences that continue one context
// (TrySwapIn).
//
// All pages that a sequence may ever need can be reserved when it is opened
// (OpenArgs::reservation): then its table rows have their final width from the start, and its pages
// that are not taken yet stay free; other sequences can allocate only the rest of the free pages.
// Such a sequence shares only pages that it never overwrites, so it needs none for copies.
//
// If a plan's retention schedule reports how many entries heads keep
// (RetentionSchedule::ReportsPrompt), the numbers are known only after the prompt is compressed.
// Until then a sequence holds an upper bound of pages, and ApplyReport() frees the surplus. If
// heads share a budget, pages belong to no head until the engine assigns them
// (kernels/ops/assign_pages.h); ApplyReport() receives the assignment.
#ifndef HYDRANT_ENGINE_CACHE_KV_CACHE_MANAGER_H_
#define HYDRANT_ENGINE_CACHE_KV_CACHE_MANAGER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/block_allocator.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/page_sharing.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/range_allocator.h"
#include "engine/cache/sequence_blocks.h"
#include "engine/cache/state_allocator.h"
#include "engine/cache/wait_reason.h"

namespace hydrant {

class KvCacheManager {
 public:
  // shuffle_seed: page ids are allocated in an order drawn from it (BlockAllocator).
  explicit KvCacheManager(const EngineLimits& limits,
                          std::optional<uint64_t> shuffle_seed = std::nullopt);

  using OpenArgs = hydrant::OpenArgs;
  // Allocates slot, arena room, table rows and pages of a sequence, and adds its setup and rows to
  // `updates`.
  bool TryOpen(const OpenArgs& args, SequenceBlocks* blocks, CacheUpdates* updates);
  // Called when the prompt of a sequence has been prefilled; it will have seen `tokens` tokens
  // after all scheduled steps. Publishes the pages of the prompt's first blocks until the sequence
  // changes one of them. keys: of its whole blocks, in order. REQUIRES: `blocks` does not move
  void Publish(const CachePlan& plan, int64_t tokens, std::span<const PrefixKey> keys,
               SequenceBlocks* blocks) {
    sharing_.PublishPrompt(plan, tokens, keys, blocks);
  }
  // Pages of other sequences that TryOpen(), or TrySwapIn() of an offloaded cache, would share.
  int64_t NumSharedWhenOpened(const OpenArgs& args) const {
    return int64_t{sharing_.NumSharedOfPrompt(args)} * budget_heads_;
  }
  int64_t NumSharedWhenOpened(const OpenArgs& args, const OffloadedCache& offloaded) const;
  // Opens a sequence with the cache of another that has seen args.tokens by the same plan. Pages
  // are shared where possible, and copied otherwise. args: as for TryOpen, without a prompt.
  // REQUIRES: the lengths of `from` are known, and no other update of the batch changes its entries
  bool TryFork(const OpenArgs& args, SequenceBlocks* from, SequenceBlocks* blocks,
               CacheUpdates* updates);
  // The resource that the last failed TryOpen() lacked.
  WaitReason wait_reason() const { return wait_reason_; }
  // Allocates pages (and a wider row, if needed) up to `tokens` tokens seen, and copies shared
  // pages that are overwritten until then. Always succeeds within reserved pages.
  bool TryGrow(int64_t tokens, SequenceBlocks* blocks, CacheUpdates* updates);
  // Prefetch the memory that TryGrow() reads, then, after some other work, the memory that it
  // writes. Change nothing.
  static void PrefetchGrowingHeads(const SequenceBlocks& blocks) { blocks.growing.Prefetch(); }
  void PrefetchGrowth(int64_t tokens, const SequenceBlocks& blocks) const;
  // Called when the heads have been compacted after `tokens` tokens: sets the span of each to
  // `then` and frees pages past its entries.
  void Compact(const HeadSpan& then, int64_t tokens, SequenceBlocks* blocks);
  // If heads differ: sets the maximum of each head's entries once it is reported or decided. caps:
  // [heads of the budget group].
  void SetCaps(std::span<const int32_t> caps, SequenceBlocks* blocks);
  // Raises the cap of every head of the budget group by `entries`, from `tokens` tokens on.
  void RaiseCaps(int32_t entries, int64_t tokens, SequenceBlocks* blocks) const;
  // Announces a compaction after `tokens` tokens, more than now. The compaction moves entries, so
  // shared pages are copied when the sequence grows up to then.
  void AnnounceCompaction(int64_t tokens, SequenceBlocks* blocks) const;
  // The announced compaction is scheduled: the lengths of the heads are unknown until its report.
  static void AwaitTurnReport(SequenceBlocks* blocks) { blocks->lengths_known = false; }
  // The report of the announced compaction, after `tokens` tokens. entries: [heads of the budget
  // group] that each head holds; at most those before it.
  void ApplyTurnReport(std::span<const int32_t> entries, int64_t tokens, SequenceBlocks* blocks);
  // For a plan that reports: the heads keep `entries` [heads of the budget group] of the prompt, in
  // `pages` if it had unassigned pages (CacheReport::pages). Frees the other pages.
  void ApplyReport(const CachePlan& plan, std::span<const int32_t> entries,
                   std::span<const PageIds> pages, SequenceBlocks* blocks);
  // If HasSpareSlab(), packs state and frees the emptied slabs. Called before all other updates of
  // a batch, which may allocate these slabs to other sequences.
  void PackState(SequenceBlocks* blocks, CacheUpdates* updates);
  // Limits the reserved pages to those needed by the current spans, and releases the rest. No
  // effect without reserved pages. REQUIRES: lengths are known, and no RaiseCaps() follows
  void TrimReservation(SequenceBlocks* blocks);
  // Allocates room in the prefill arena to an open sequence, for a later prefill.
  // REQUIRES: it has none
  bool TryOpenArena(int64_t tokens, SequenceBlocks* blocks);
  void CloseArena(SequenceBlocks* blocks);

  // Copies a sequence's cache to host memory if there is room. The sequence keeps its pages.
  // REQUIRES: its lengths are known
  bool TrySwapOut(const SequenceBlocks& blocks, OffloadedCache* offloaded, CacheUpdates* updates);
  // Opens a sequence with a copy of an offloaded cache that has seen args.tokens; the offloaded
  // cache stays. Shares pages of another sequence that was opened with it and has not changed them
  // yet. args: as for TryOpen, without a prompt.
  bool TrySwapIn(const OpenArgs& args, const OffloadedCache& offloaded, SequenceBlocks* blocks,
                 CacheUpdates* updates);
  // Allocates host memory for a cache from another source.
  bool TryReserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages,
                  OffloadedCache* offloaded);
  void Drop(OffloadedCache* offloaded);

  // Frees everything; `blocks` is empty afterwards. Steps scheduled before may still name its
  // pages.
  void Release(SequenceBlocks* blocks);

  // The most pages that a sequence of this plan has held up to `tokens` tokens; tokens: at least
  // its prompt.
  int64_t PagesFor(const CachePlan& plan, int64_t tokens) const {
    return PagesFor(limits_, plan, tokens);
  }
  static int64_t PagesFor(const EngineLimits& limits, const CachePlan& plan, int64_t tokens);
  // Slabs for the state of `pages` pages.
  static int64_t SlabsFor(const EngineLimits& limits, const CachePlan& plan, int64_t pages) {
    return limits.slab.SlabsFor(pages, plan.state_lines);
  }
  // Estimates the pages of a sequence with a compressed prompt after `tokens` tokens: from the
  // average entries of a head, if heads differ.
  double LikelyPages(const CachePlan& plan, int64_t tokens) const;
  // Pages that the sequence lacks for `tokens` tokens, besides its reserved pages.
  int64_t PagesMissing(const SequenceBlocks& blocks, int64_t tokens) const;
  // The longest sequence of this plan that fits into the empty pool and table arena, in tokens
  // seen; INT64_MAX: any length. Below the prompt's length if the prompt itself does not fit.
  static int64_t MaxTokensAlone(const EngineLimits& limits, const CachePlan& plan);
  static bool FitsAlone(const EngineLimits& limits, const CachePlan& plan, int64_t tokens);
  // A head's span after `tokens` tokens, before a compaction that is due; nullopt: known only from
  // the engine's reports.
  static std::optional<HeadSpan> SpanAfter(const EngineLimits& limits, const CachePlan& plan,
                                           int head, int64_t tokens);

  int64_t NumFreePages() const { return page_pool_.NumFree(); }
  // Free pages that are not reserved.
  int64_t NumUnreservedPages() const { return page_pool_.NumFree() - reserved_pages_; }
  int64_t NumPages() const { return page_pool_.NumBlocks(); }
  int64_t NumSharedPages() const { return page_pool_.NumShared(); }
  int64_t NumSparedPages() const { return page_pool_.NumSpared(); }
  int64_t NumSlabs() const { return states_.NumSlabs(); }
  int64_t NumFreeHostPages() const { return host_pages_.NumFree(); }
  int64_t NumFreeOffloadedCaches() const { return static_cast<int64_t>(free_offloaded_.size()); }
  int64_t NumFreeTableEntries() const { return table_.NumFree(); }
  int64_t NumFreeArenaTokens() const { return arena_.NumFree(); }
  int64_t NumFreeSlots() const { return static_cast<int64_t>(free_slots_.size()); }
  bool IsLivePage(int32_t block) const { return page_pool_.IsLive(block); }
  int NumOwners(int32_t block) const { return page_pool_.NumOwners(block); }

 private:
  friend class Shortage;  // in tests: makes resources scarce by taking them from the allocators

  int32_t PagesAt(const HeadSpan& span, int64_t tokens) const {
    // In 32 bits, where a division is cheap: one per head and page.
    const auto block_size = static_cast<uint32_t>(limits_.block_size);
    return static_cast<int32_t>((static_cast<uint32_t>(span.PeakEntries(tokens)) + block_size - 1) /
                                block_size);
  }
  void ListGrowingHeads(SequenceBlocks* blocks) const;
  bool Lacks(WaitReason what) {
    wait_reason_ = what;
    return false;
  }
  bool WidenRow(int32_t width_needed, SequenceBlocks* blocks, CacheUpdates* updates);
  bool TakeUnassignedPages(const CachePlan& plan, int64_t tokens, SequenceBlocks* blocks,
                           CacheUpdates* updates);
  void AssignPages(std::span<const int32_t> entries, std::span<const PageIds> pages,
                   SequenceBlocks* blocks);
  // The sequence's entries in the table arena.
  int64_t EntriesOf(const SequenceBlocks& blocks) const {
    return int64_t{blocks.row_width} * num_heads_ +
           static_cast<int64_t>(blocks.unassigned_pages.size());
  }
  struct Growth {
    int64_t tokens = 0;     // tokens that the sequence will have seen
    size_t heads = 0;       // heads that may need pages, from the ring's next on
    int64_t pages = 0;      // pages that they lack
    int64_t of_state = 0;   // lacking pages that need state
    int32_t row_width = 0;  // row width that they need
    bool in_order = false;  // at most one page each: the ring stays in order
  };
  int32_t PagesWanted(const GrowingHead& growing, const Growth& growth) const {
    return growth.in_order ? growing.pages + 1 : PagesAt(growing.span, growth.tokens);
  }
  Growth GrowthTo(int64_t tokens, const SequenceBlocks& blocks) const;
  void TakePages(const GrowingHead& growing, int32_t wanted, const SequenceBlocks& blocks,
                 int32_t* ids);
  void PlacePages(const Growth& growth, SequenceBlocks* blocks, CacheUpdates* updates);
  void CompactHead(int head, const HeadSpan& then, int64_t tokens, SequenceBlocks* blocks);
  // The copies between a sequence's pages and an offloaded cache's. For the first shared[head]
  // pages of a head only state is copied, if the head has state.
  std::vector<PageCopy> SwapsOf(const SequenceBlocks& blocks, const OffloadedCache& offloaded,
                                std::span<const int32_t> shared, bool out) const;
  // Whether a slot and pages - shared pages are free. pages: slabs included; with args.reservation,
  // at least all that the sequence may ever need. shared: pages taken from other sequences.
  bool HasRoomFor(const OpenArgs& args, int64_t pages, int64_t shared);
  // Sets the upper bounds of row width and reserved pages.
  void Bound(const OpenArgs& args, SequenceBlocks* blocks) const;
  void UpdateReservation(SequenceBlocks* blocks);
  void FreePagesPast(int32_t held, int head, SequenceBlocks* blocks);
  void FreePage(PageIds page, SequenceBlocks* blocks);
  void FreePages(SequenceBlocks* blocks);  // all pages
  // The sum of `pages` [heads], plus their slabs.
  int64_t WithSlabs(const CachePlan& plan, std::span<const int32_t> pages) const;
  // Shares the data of another sequence's page with a head, with state of its own.
  PageIds ShareOf(PageIds others, int head, SequenceBlocks* blocks);
  void TakePrefixPages(const OpenArgs& args, int32_t pages, SequenceBlocks* blocks);
  // Allocates a slot, rows, slabs and pages[head] pages of each head: the first shared[head] are
  // shared with `other`.
  bool TakePages(const CachePlan& plan, std::span<const int32_t> pages,
                 std::span<const int32_t> shared, const SequenceBlocks* other,
                 SequenceBlocks* blocks, CacheUpdates* updates);

  EngineLimits limits_;
  int num_heads_;     // layers * KV heads
  int budget_heads_;  // heads of the budget group, the first ones
  BlockAllocator page_pool_;
  StateAllocator states_;
  PageSharing sharing_;
  BlockAllocator host_pages_;
  std::vector<int> free_offloaded_;
  RangeAllocator table_;
  RangeAllocator arena_;
  std::vector<int> free_slots_;
  int64_t reserved_pages_ = 0;  // reserved by all sequences; at least as many are free
  WaitReason wait_reason_ = WaitReason::kArrived;
  uint64_t next_offloaded_key_ = 0;  // makes OffloadedCache::key
  std::vector<int32_t> taken_;       // scratch: allocated blocks, before they are placed in heads
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_KV_CACHE_MANAGER_H_
