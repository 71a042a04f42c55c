// Everything the engine's memory lends to live sequences: slots, pages of the KV pool, rows of the
// table arena, room in the prefill arena. Ids and counts only. The heads of the layers that a plan
// is about come first; those of layers with a window, the same for every plan, after them. Every
// call either does all it was asked, or changes nothing and says no. Owned by the scheduler's
// thread; the destructor checks that all came home.
//
// Heads may hold different numbers of entries: the arrays of SequenceSpace are per (layer, head),
// and a step costs O(1) a sequence, and as much again for every head that crosses a page's border.
//
// Where a plan keeps state of entries (CachePlan::state_lines), each page of its heads names some,
// in pages that are lent for it: slabs (engine/cache/state_slabs.h). They are one sequence's, count
// as its pages, and are as many as the state of what it holds fills. After a cut state is moved out
// of those that are too many, and these go home, by PackState(); until then its pages take what is
// free in them.
//
// Sequences share pages whose entries stay as they were written (CachePlan::LeavesEntries): each is
// an owner, and the pages go home when the last one gives them up. Each has state of its own for
// them. Whole pages only, so what a head appends lies in pages of its
// own; before it overwrites an entry it gets copies (TryGrow). Three ways lead there: a sample of
// another's prompt (TryFork), a prompt of which every head keeps everything and that begins as one
// whose pages are there (TryOpen, Publish), and a context that others went on from (TrySwapIn).
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

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache/block_allocator.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/range_allocator.h"
#include "engine/cache/wait_reason.h"

namespace hydrant {

// A head that will need pages, with all that a step asks about it: those of one step lie side by
// side, where the arrays by head would be cache misses.
struct GrowingHead {
  int32_t head = 0;
  int32_t pages = 0;  // held
  HeadSpan span;
};

// What one live sequence holds. Empty (slot < 0) while it waits.
struct SequenceSpace {
  // What a step asks first, and what growing does: they lie side by side.
  int slot = -1;
  int32_t row_width = 0;  // block ids reserved a head
  int64_t row_begin = 0;  // table arena
  int64_t capacity = 0;   // tokens the sequence may see before a head needs another page
  int64_t num_pages = 0;  // slabs included
  // A ring of the heads that grow, from `next_growing` on in the order in which their pages will be
  // full: a head that gets a page is full again block_size tokens later, after all others, and
  // keeps its place. Empty: TryGrow makes it anew, as it must once `spans` or `pages` have changed.
  std::vector<GrowingHead> growing;
  size_t next_growing = 0;
  bool lengths_known = true;   // false: SetKept() is to come
  std::vector<int32_t> pages;  // [heads] pages held
  // [row_width, heads]: a page more for every head is one run of memory.
  std::vector<PageIds> blocks;
  // Of the heads that a plan is about: what each of their pages needs, the slabs that have it, and
  // the ids in them that no page names.
  int state_lines = kNoStateLines;
  int32_t states_a_slab = 0;
  std::vector<int32_t> slabs, free_states;
  std::vector<HeadSpan> spans;  // [heads]
  int32_t row_limit = 0;        // block ids a head can ever need
  int arena_begin = 0;          // prefill arena, in tokens
  int arena_tokens = 0;         // 0: no prompt is open
  // Ids behind its rows, until it is reported which head the engine has given which; empty: all are
  // their heads' own.
  std::vector<PageIds> unassigned_pages;
  // [heads] of its pages, the first ones, that may have other owners; empty: none have.
  std::vector<int32_t> shared;
  int64_t cut_at = kAnyLength;       // WillBeCut()
  int64_t promised_tokens = 0;       // that it may see; 0: nothing is promised
  int64_t most_pages = 0;            // that it holds at most until then
  int64_t promised_pages = 0;        // of these, those that it has yet to take
  std::vector<PrefixKey> published;  // under which others find the first pages of its heads

  bool IsOpen() const { return slot >= 0; }
  // Without slabs.
  int64_t NumDataPages() const { return num_pages - static_cast<int64_t>(slabs.size()); }
  // Whether a slab is more than the pages need.
  bool HasSpareSlab() const {
    return !slabs.empty() && static_cast<int64_t>(free_states.size()) >= states_a_slab;
  }
  // Where the id of a head's page lies: here, and in the table arena.
  int64_t BlockIndex(int head, int32_t page) const {
    return page * static_cast<int64_t>(pages.size()) + head;
  }
  int64_t TableIndex(int head, int32_t page) const {
    return row_begin + static_cast<int64_t>(head) * row_width + page;
  }
};

// A cache in the host's memory: what its sequence held, and may go on from. Empty (kept < 0) where
// there is none.
struct KeptSpace {
  int kept = -1;                    // CacheSwap::kept
  PrefixKey key = {};               // of these contents: no other cache has had it
  std::vector<HeadSpan> spans;      // [heads]
  std::vector<int32_t> pages;       // [heads]
  std::vector<int32_t> host_pages;  // of the first head, of the second, ...

  bool IsEmpty() const { return kept < 0; }
};

class CacheSpace {
 public:
  // `shuffle_seed`: the order in which page ids leave is drawn from it (BlockAllocator).
  explicit CacheSpace(const EngineLimits& limits,
                      std::optional<uint64_t> shuffle_seed = std::nullopt);

  struct OpenArgs {
    const CachePlan* plan = nullptr;
    int64_t prompt_tokens = 0;  // room in the prefill arena; 0: another reads it
    int64_t tokens = 0;         // pages for what is held until then, all at once
    int64_t final_tokens = 0;   // what it may see in its whole life
    int64_t pages_kept_free = 0;
    // Of the prompt's first blocks that are not read: it shares the pages of those that others have
    // published, where its plan may.
    std::span<const PrefixKey> prefix = {};
    bool others_may_follow = true;  // TrySwapIn: the kept cache stays, and others may share it
    // The plan with the highest cap that it will have: all that it may come to hold by it until
    // final_tokens is promised to it, and needs room now; null: nothing is.
    const CachePlan* promised = nullptr;

    // A page that others own, too, is not to be overwritten while no more tokens have been seen.
    int64_t SharesUntil(int64_t seen) const {
      return promised != nullptr ? std::max(final_tokens, seen + 1) : seen + 1;
    }
  };
  // Gives a sequence its slot, arena room, table row and pages, and writes setup, row and updates
  // to the batch.
  bool TryOpen(const OpenArgs& args, SequenceSpace* space, CacheUpdates* updates);
  // The prompt of a sequence has been read, and `tokens` tokens are to be seen when what has been
  // scheduled has run. Others find the pages of its first blocks as long as it changes none of
  // them. `keys`: of its whole blocks, in order. The space stays where it is.
  void Publish(const CachePlan& plan, int64_t tokens, std::span<const PrefixKey> keys,
               SequenceSpace* space);
  // Pages of others that TryOpen() would share, or TrySwapIn() of a kept cache.
  int64_t NumSharedWhenOpened(const OpenArgs& args) const {
    return int64_t{NumSharedOfPrompt(args)} * full_heads_;
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
  static void PrefetchGrowingHeads(const SequenceSpace& space);
  void PrefetchGrowth(int64_t tokens, const SequenceSpace& space) const;
  // The heads have been cut when so many tokens had been seen: from now on each is `then`, and
  // pages past what it holds go home.
  void Cut(const HeadSpan& then, int64_t tokens, SequenceSpace* space);
  // Where heads differ, when it is reported, or decided, what each holds at most from now on,
  // [full layers * KV heads].
  void Cap(std::span<const int32_t> caps, SequenceSpace* space);
  // Every head of the layers without a window may hold so many entries more than before, from
  // `tokens` tokens on.
  void Raise(int32_t entries, int64_t tokens, SequenceSpace* space) const;
  // The heads are to be cut when `tokens` have been seen, more than now: entries change their
  // places then, so pages that others own are copied as they grow until then.
  void WillBeCut(int64_t tokens, SequenceSpace* space) const;
  // And have been: each of [full layers * KV heads] holds so many.
  void CutTo(std::span<const int32_t> keep, int64_t tokens, SequenceSpace* space);
  // The heads of a plan that reports keep `entries` [full layers * KV heads] of the prompt, in
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
  int64_t NumSlabs() const { return num_slabs_; }
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
  void OrderGrowingHeads(SequenceSpace* space) const;
  // When the head's pages are full, in tokens seen.
  int64_t FullAt(const GrowingHead& growing) const {
    return growing.span.dropped + int64_t{growing.pages} * limits_.block_size;
  }
  bool HasAllPages(const GrowingHead& growing) const {
    return int64_t{growing.pages} * limits_.block_size >= growing.span.cap;
  }
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
  // What the pages of all its heads need, by its plan.
  void SetStateLines(const CachePlan& plan, SequenceSpace* space) const;
  bool HasState(const SequenceSpace& space, int head) const {
    return head < full_heads_ && space.state_lines != kNoStateLines;
  }
  // Slabs that are missing for the state of so many pages more.
  static int64_t SlabsMissing(const SequenceSpace& space, int64_t pages) {
    const int64_t lacking = pages - static_cast<int64_t>(space.free_states.size());
    return space.state_lines == kNoStateLines || lacking <= 0
               ? 0
               : PagesOf(lacking, space.states_a_slab);
  }
  // Pages of each head, and the slabs that they need.
  int64_t WithSlabs(const CachePlan& plan, std::span<const int32_t> pages) const;
  // Of pages of each head, those that have state where the plan keeps any.
  int64_t PagesOfState(std::span<const int32_t> pages) const;
  // REQUIRES: as many pages are free
  void TakeSlabs(int64_t slabs, SequenceSpace* space);
  // REQUIRES: there is one, or the head needs none
  int32_t TakeState(int head, SequenceSpace* space) const;

  // page_sharing.cc.
  // A page of another's as one of a head's: its data, and state of its own.
  PageIds ShareOf(PageIds others, int head, SequenceSpace* space);
  // Of each head's pages, those that its sequence and another may both own when it has seen
  // args.tokens.
  std::vector<int32_t> SharablePages(const OpenArgs& args, std::span<const HeadSpan> spans) const;
  int32_t PagesAPrefixBlock() const;
  const SequenceSpace* FindPublisher(const PrefixKey& key) const;
  void PublishAs(std::vector<PrefixKey> keys, std::span<const int32_t> pages, SequenceSpace* space);
  void Unpublish(SequenceSpace* space);
  void MarkShared(std::span<const int32_t> pages, SequenceSpace* space) const;
  int32_t NumSharedOfPrompt(const OpenArgs& args) const;
  // [heads] of a kept cache's pages, the first of each head, those that another has in the pool.
  std::vector<int32_t> SharedOfKept(const OpenArgs& args, const KeptSpace& kept) const;
  void TakePrefixPages(const OpenArgs& args, int32_t pages, SequenceSpace* space);
  // Pages of the named heads, and slabs: the first `shared` of them are the other's, the rest is
  // its own.
  bool TakePages(const CachePlan& plan, std::span<const int32_t> pages,
                 std::span<const int32_t> shared, const SequenceSpace* other, SequenceSpace* space,
                 CacheUpdates* updates);
  // What a head that shares pages may see before it overwrites one of their entries.
  int64_t OverwritesAfter(const SequenceSpace& space) const;
  static int64_t OverwritesAfter(const SequenceSpace& space, int head) {
    const HeadSpan& span = space.spans[head];
    const int64_t full = span.cap == kNoCap ? kAnyLength : int64_t{span.dropped} + span.cap;
    return std::min(full, space.cut_at - 1);
  }
  int64_t CopiesBefore(int64_t tokens, const SequenceSpace& space) const;
  void CopyShared(int64_t tokens, SequenceSpace* space, CacheUpdates* updates);

  EngineLimits limits_;
  int num_heads_;   // layers * KV heads
  int full_heads_;  // of these, those that a plan is about
  BlockAllocator blocks_;
  BlockAllocator host_pages_;
  std::vector<int> free_kept_;
  RangeAllocator table_;
  RangeAllocator arena_;
  std::vector<int> free_slots_;
  int64_t promised_pages_ = 0;  // to all; as many are free
  int64_t num_slabs_ = 0;
  WaitReason wait_reason_ = WaitReason::kArrived;
  std::unordered_multimap<PrefixKey, const SequenceSpace*, PrefixKeyHash> publishers_;
  uint64_t next_kept_ = 0;      // makes KeptSpace::key
  std::vector<int32_t> taken_;  // scratch: blocks on their way to their heads
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_SPACE_H_
