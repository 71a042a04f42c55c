// Everything the engine's memory lends to live sequences: slots, pages of the KV pool, rows of the
// table arena, room in the prefill arena. Ids and counts only. Heads are numbered group by group
// (engine/cache/group_plans.h), those of the budget group first; each group's heads open as the
// group's plan says. Every call either does all it was asked, or changes nothing and says no. Owned
// by the scheduler's thread; the destructor checks that every page is free again.
//
// Heads may hold different numbers of entries: the arrays of SequenceSpace are per head, and a step
// costs O(1) a sequence, and as much again for every head that crosses a page's border.
//
// Where a plan keeps state of entries (CachePlan::state_lines), each page of the budget group's
// heads names some, in slabs (StateAllocator): pages that are one sequence's, count as its pages,
// and are as many as the state of what it holds fills. After a cut PackState() moves state out of
// slabs that are too many and frees these; until then the sequence's pages take free places in
// them.
//
// Sequences share pages (PageSharing): each is an owner, and a page is free when the last one gives
// it up. Each has state of its own for them. Before a head overwrites an entry in such a page it
// gets copies (TryGrow). Three ways lead there: a sample of another's prompt (TryFork), a prompt of
// which every head keeps everything and that begins as one whose pages are there (TryOpen,
// Publish), and a context that others went on from (TrySwapIn).
//
// All that a sequence may come to hold can be promised to it when it is opened
// (OpenArgs::promised): then its table rows are as wide from the beginning, and what it has not
// taken yet of its pages stays free. Others find no more than the rest of the free pages. It shares
// only pages that it never overwrites, so it needs none for copies.
//
// Where a plan's life reports what the heads keep (Lifecycle::ReportsPrompt), that is known only
// when the prompt has been compressed. Until then a sequence holds the bound of what they can keep
// together, and SetKept() returns the surplus. Where heads share a budget the pages are no head's
// until the engine assigns them (kernels/ops/assign_pages.h); SetKept() is told which became whose.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_SPACE_H_
#define HYDRANT_ENGINE_CACHE_CACHE_SPACE_H_

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
#include "engine/cache/sequence_space.h"
#include "engine/cache/state_allocator.h"
#include "engine/cache/wait_reason.h"

namespace hydrant {

class CacheSpace {
 public:
  // `shuffle_seed`: the order in which page ids leave is drawn from it (BlockAllocator).
  explicit CacheSpace(const EngineLimits& limits,
                      std::optional<uint64_t> shuffle_seed = std::nullopt);

  using OpenArgs = hydrant::OpenArgs;
  // Gives a sequence its slot, arena room, table row and pages, and writes setup, row and updates
  // to the batch.
  bool TryOpen(const OpenArgs& args, SequenceSpace* space, CacheUpdates* updates);
  // The prompt of a sequence has been read, and `tokens` tokens are to be seen when what has been
  // scheduled has run. Others find the pages of its first blocks as long as it changes none of
  // them. `keys`: of its whole blocks, in order. The space stays where it is.
  void Publish(const CachePlan& plan, int64_t tokens, std::span<const PrefixKey> keys,
               SequenceSpace* space) {
    sharing_.PublishPrompt(plan, tokens, keys, space);
  }
  // Pages of others that TryOpen() would share, or TrySwapIn() of a kept cache.
  int64_t NumSharedWhenOpened(const OpenArgs& args) const {
    return int64_t{sharing_.NumSharedOfPrompt(args)} * budget_heads_;
  }
  int64_t NumSharedWhenOpened(const OpenArgs& args, const KeptSpace& kept) const;
  // Opens a sequence with all that another holds, which has seen args.tokens by the same plan. They
  // share what they may; the rest is copied. `args` as of TryOpen, without a prompt.
  // REQUIRES: the other's lengths are known, and nothing of the batch changes its entries
  bool TryFork(const OpenArgs& args, SequenceSpace* from, SequenceSpace* space,
               CacheUpdates* updates);
  // What the last TryOpen() that returned false lacked.
  WaitReason wait_reason() const { return wait_reason_; }
  // Pages (and a wider row, if needed) so that the sequence may have seen `tokens` tokens; of what
  // it is to overwrite until then, pages of its own. Always succeeds within a promise.
  bool TryGrow(int64_t tokens, SequenceSpace* space, CacheUpdates* updates);
  // Begin to fetch what that will ask, and then, where that is there, what it will write on, for
  // whoever has others grow meanwhile. Change nothing.
  static void PrefetchGrowingHeads(const SequenceSpace& space) { space.growing.Prefetch(); }
  void PrefetchGrowth(int64_t tokens, const SequenceSpace& space) const;
  // The heads have been cut when so many tokens had been seen: from now on each is `then`, and
  // pages past what it holds go home.
  void Cut(const HeadSpan& then, int64_t tokens, SequenceSpace* space);
  // Where heads differ, when it is reported, or decided, what each holds at most from now on,
  // [heads of the budget group].
  void Cap(std::span<const int32_t> caps, SequenceSpace* space);
  // Every head of the budget group may hold so many entries more than before, from `tokens` tokens
  // on.
  void Raise(int32_t entries, int64_t tokens, SequenceSpace* space) const;
  // The heads are to be cut when `tokens` have been seen, more than now: entries change their
  // places then, so pages that others own are copied as they grow until then.
  void WillBeCut(int64_t tokens, SequenceSpace* space) const;
  // And have been: each head of the budget group holds so many.
  void CutTo(std::span<const int32_t> keep, int64_t tokens, SequenceSpace* space);
  // The heads of a plan that reports keep `entries` [heads of the budget group] of the prompt, in
  // `pages` where it had unassigned ones (CacheReport::pages); what they do not need goes home.
  void SetKept(const CachePlan& plan, std::span<const int32_t> entries,
               std::span<const PageIds> pages, SequenceSpace* space);
  // Moves state together and sends home the slabs that this leaves empty, where HasSpareSlab(). To
  // be called before all else that is made of a batch: slabs may be others' in the same one.
  void PackState(SequenceSpace* space, CacheUpdates* updates);
  // No head is to hold more than is known now: pages that were promised beyond that are others'. No
  // effect where nothing was promised. REQUIRES: its lengths are known, and no Raise() follows
  void LowerPromise(SequenceSpace* space);
  // Room in the prefill arena for what an open sequence reads later. REQUIRES: it has none
  bool TryOpenArena(int64_t tokens, SequenceSpace* space);
  void CloseArena(SequenceSpace* space);

  // Copies a sequence's cache to the host's memory, where there is room for it. It stays where it
  // is, too. REQUIRES: its lengths are known
  bool TrySwapOut(const SequenceSpace& space, KeptSpace* kept, CacheUpdates* updates);
  // Opens a sequence with a copy of a kept cache, which stays and has seen args.tokens, or with the
  // pages of another that has one and has changed nothing yet. `args` as of TryOpen, without a
  // prompt.
  bool TrySwapIn(const OpenArgs& args, const KeptSpace& kept, SequenceSpace* space,
                 CacheUpdates* updates);
  // Room in the host's memory for a cache that comes from elsewhere.
  bool TryReserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages, KeptSpace* kept);
  void Drop(KeptSpace* kept);

  // Everything goes home; `space` is empty afterwards. Steps that were scheduled before may name
  // it.
  void Release(SequenceSpace* space);

  // Pages that a sequence of this plan has held at most when it has seen `tokens` tokens, its
  // prompt at least.
  int64_t PagesFor(const CachePlan& plan, int64_t tokens) const {
    return PagesFor(limits_, plan, tokens);
  }
  static int64_t PagesFor(const EngineLimits& limits, const CachePlan& plan, int64_t tokens);
  // Of these, where its heads hold so many, those for state.
  static int64_t SlabsFor(const EngineLimits& limits, const CachePlan& plan, int64_t pages) {
    return limits.slab.SlabsFor(pages, plan.state_lines);
  }
  // About what a sequence holds on the way there whose prompt has been compressed: where heads hold
  // different numbers of entries, by their average.
  double LikelyPages(const CachePlan& plan, int64_t tokens) const;
  // Pages that are still missing until the sequence may have seen `tokens`, beside those that are
  // promised to it.
  int64_t PagesMissing(const SequenceSpace& space, int64_t tokens) const;
  // The longest sequence of this plan that fits if it has pool and tables for itself, in tokens
  // seen; INT64_MAX: any. Less than the prompt: not even that.
  static int64_t MaxTokensAlone(const EngineLimits& limits, const CachePlan& plan);
  static bool FitsAlone(const EngineLimits& limits, const CachePlan& plan, int64_t tokens);
  // A head's span when a sequence has seen so many tokens, before a cut that is due; nullopt: only
  // the engine's reports tell.
  static std::optional<HeadSpan> SpanAfter(const EngineLimits& limits, const CachePlan& plan,
                                           int head, int64_t tokens);

  int64_t NumFreePages() const { return blocks_.NumFree(); }
  // Of these, what no sequence has been promised.
  int64_t NumUnpromisedPages() const { return blocks_.NumFree() - promised_pages_; }
  int64_t NumPages() const { return blocks_.NumBlocks(); }
  int64_t NumSharedPages() const { return blocks_.NumShared(); }
  int64_t NumSparedPages() const { return blocks_.NumSpared(); }
  int64_t NumSlabs() const { return states_.NumSlabs(); }
  int64_t NumFreeHostPages() const { return host_pages_.NumFree(); }
  int64_t NumFreeKept() const { return static_cast<int64_t>(free_kept_.size()); }
  int64_t NumFreeTableEntries() const { return table_.NumFree(); }
  int64_t NumFreeArenaTokens() const { return arena_.NumFree(); }
  int64_t NumFreeSlots() const { return static_cast<int64_t>(free_slots_.size()); }
  bool IsLivePage(int32_t block) const { return blocks_.IsLive(block); }
  int NumOwners(int32_t block) const { return blocks_.NumOwners(block); }

 private:
  friend class Shortage;  // of tests: takes from the allocators what others then lack

  int32_t PagesAt(const HeadSpan& span, int64_t tokens) const {
    // In 32 bits, where a division is cheap: one a head and a page.
    const auto block_size = static_cast<uint32_t>(limits_.block_size);
    return static_cast<int32_t>((static_cast<uint32_t>(span.MostUntil(tokens)) + block_size - 1) /
                                block_size);
  }
  void ListGrowingHeads(SequenceSpace* space) const;
  bool Lacks(WaitReason what) {
    wait_reason_ = what;
    return false;
  }
  bool WidenRow(int32_t width_needed, SequenceSpace* space, CacheUpdates* updates);
  bool TakeUnassignedPages(const CachePlan& plan, int64_t tokens, SequenceSpace* space,
                           CacheUpdates* updates);
  void AssignPages(std::span<const int32_t> entries, std::span<const PageIds> pages,
                   SequenceSpace* space);
  // Of the table arena.
  int64_t EntriesOf(const SequenceSpace& space) const {
    return int64_t{space.row_width} * num_heads_ +
           static_cast<int64_t>(space.unassigned_pages.size());
  }
  struct Growth {
    int64_t tokens = 0;     // that the sequence is to see
    size_t heads = 0;       // of the ring, from next_growing on, may need pages
    int64_t pages = 0;      // that they lack
    int64_t of_state = 0;   // of these, those that need some
    int32_t row_width = 0;  // that they need
    bool in_order = false;  // a page each at most: the ring stays in its order
  };
  int32_t PagesWanted(const GrowingHead& growing, const Growth& growth) const {
    return growth.in_order ? growing.pages + 1 : PagesAt(growing.span, growth.tokens);
  }
  Growth GrowthTo(int64_t tokens, const SequenceSpace& space) const;
  void TakePages(const GrowingHead& growing, int32_t wanted, const SequenceSpace& space,
                 int32_t* ids);
  void PlacePages(const Growth& growth, SequenceSpace* space, CacheUpdates* updates);
  void CutHead(int head, const HeadSpan& then, int64_t tokens, SequenceSpace* space);
  // The copies between a sequence's pages and a kept cache's. Of the first `shared` pages of each
  // head only state is copied, where the head has its own.
  std::vector<PageCopy> SwapsOf(const SequenceSpace& space, const KeptSpace& kept,
                                std::span<const int32_t> shared, bool out) const;
  // So many pages, slabs included, `shared` of which are others'; where all is promised, that many
  // less.
  bool HasRoomFor(const OpenArgs& args, int64_t pages, int64_t shared);
  // Sets what it may come to hold.
  void Bound(const OpenArgs& args, SequenceSpace* space) const;
  void CountPromise(SequenceSpace* space);
  void FreePagesPast(int32_t held, int head, SequenceSpace* space);
  void FreePage(PageIds page, SequenceSpace* space);
  void FreePages(SequenceSpace* space);  // all of them
  // Pages of each head, and the slabs that they need.
  int64_t WithSlabs(const CachePlan& plan, std::span<const int32_t> pages) const;
  // A page of another's as one of a head's: its data, and state of its own.
  PageIds ShareOf(PageIds others, int head, SequenceSpace* space);
  void TakePrefixPages(const OpenArgs& args, int32_t pages, SequenceSpace* space);
  // Pages of the named heads, and slabs: the first `shared` of them are the other's, the rest is
  // its own.
  bool TakePages(const CachePlan& plan, std::span<const int32_t> pages,
                 std::span<const int32_t> shared, const SequenceSpace* other, SequenceSpace* space,
                 CacheUpdates* updates);

  EngineLimits limits_;
  int num_heads_;     // layers * KV heads
  int budget_heads_;  // of these, the first ones
  BlockAllocator blocks_;
  StateAllocator states_;
  PageSharing sharing_;
  BlockAllocator host_pages_;
  std::vector<int> free_kept_;
  RangeAllocator table_;
  RangeAllocator arena_;
  std::vector<int> free_slots_;
  int64_t promised_pages_ = 0;  // to all; as many are free
  WaitReason wait_reason_ = WaitReason::kArrived;
  uint64_t next_kept_ = 0;      // makes KeptSpace::key
  std::vector<int32_t> taken_;  // scratch: blocks on their way to their heads
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_SPACE_H_
