#include "engine/cache/kv_cache_manager.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/cache/group_plans.h"
#include "kernels/check.h"
#include "kernels/kv_pages.h"

namespace hydrant {

namespace {

// Rows are wider than needed, so that a growing sequence moves only a logarithmic number of times:
// each move sends all of its ids again. With plenty of free table entries, most never move.
int32_t PaddedWidth(int32_t needed, int32_t limit, bool plenty) {
  const int32_t width = plenty ? std::max(4 * needed, 64) : needed + needed / 2 + 2;
  return std::min(limit, width);
}

// The most pages that a head has held when its sequence has seen `tokens`.
int64_t MaxHead(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  int32_t most = 0;
  ForEachGroup(limits, plan, [&](const CacheGroup&, const CachePlan& of_group, int) {
    most = std::max(most, of_group.PeakEntries(tokens));
  });
  return PagesOf(most, limits.block_size);
}

}  // namespace

KvCacheManager::KvCacheManager(const EngineLimits& limits, std::optional<uint64_t> shuffle_seed)
    : limits_(limits),
      num_heads_(limits.num_layers * limits.num_kv_heads),
      budget_heads_(limits.BudgetHeads()),
      page_pool_(limits.num_blocks, shuffle_seed),
      states_(limits, &page_pool_),
      sharing_(limits, &page_pool_),
      host_pages_(limits.num_host_pages),
      table_(limits.table_entries),
      arena_(limits.prefill_arena_tokens) {
  for (int slot = limits.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  for (int i = limits.max_offloaded_caches - 1; i >= 0; --i) free_offloaded_.push_back(i);
}

int64_t KvCacheManager::PagesMissing(const SequenceBlocks& blocks, int64_t tokens) const {
  if (tokens <= blocks.capacity) return 0;
  int64_t missing = 0, of_state = 0;
  for (int head = 0; head < num_heads_; ++head) {
    missing += std::max(0, PagesAt(blocks.spans[head], tokens) - blocks.pages[head]);
    if (head + 1 == budget_heads_) of_state = missing;
  }
  missing += StateAllocator::Missing(blocks, of_state);
  return std::max<int64_t>(0,
                           missing + sharing_.CopiesBefore(tokens, blocks) - blocks.reserved_pages);
}

int64_t KvCacheManager::PagesFor(const EngineLimits& limits, const CachePlan& plan,
                                 int64_t tokens) {
  int64_t all = 0;
  ForEachGroup(limits, plan, [&](const CacheGroup&, const CachePlan& of_group, int) {
    const int64_t pages = of_group.retention->PeakPages(of_group, tokens, limits.block_size);
    all += pages + SlabsFor(limits, of_group, pages);
  });
  return all;
}

double KvCacheManager::LikelyPages(const CachePlan& plan, int64_t tokens) const {
  double likely = 0, most = 0;
  const auto with_slabs = [&](const CachePlan& of_group, double pages) {
    return pages + static_cast<double>(SlabsFor(limits_, of_group, std::llround(pages)));
  };
  ForEachGroup(limits_, plan, [&](const CacheGroup& group, const CachePlan& of_group, int) {
    const double pages = with_slabs(of_group, static_cast<double>(of_group.retention->PeakPages(
                                                  of_group, tokens, limits_.block_size)));
    most += pages;
    // On average a head's last page is half full.
    likely +=
        of_group.retention->ReportsPrompt()
            ? with_slabs(of_group, group.NumHeads() * (of_group.MeanEntriesAfter(tokens) /
                                                           static_cast<double>(limits_.block_size) +
                                                       0.5))
            : pages;
  });
  return std::min(most, likely);
}

bool KvCacheManager::FitsAlone(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  const int64_t heads = int64_t{limits.num_layers} * limits.num_kv_heads;
  const int64_t width = std::max(MaxHead(limits, plan, tokens),
                                 PagesOf(plan.retention->MaxKeep(plan), limits.block_size));
  return PagesFor(limits, plan, tokens) <= limits.num_blocks &&
         width * heads + plan.retention->UnassignedPages(plan, limits.block_size) <=
             limits.table_entries;
}

std::optional<HeadSpan> KvCacheManager::SpanAfter(const EngineLimits& limits, const CachePlan& plan,
                                                  int head, int64_t tokens) {
  std::optional<HeadSpan> span;
  ForEachGroup(limits, plan, [&](const CacheGroup& group, const CachePlan& of_group, int first) {
    if (head < first || head >= first + group.NumHeads()) return;
    const int64_t ends = of_group.retention->InitialSpanEnd(of_group);
    if (tokens <= ends && !of_group.retention->ReportsPrompt()) {
      span = of_group.retention->InitialSpan(of_group, (head - first) / group.num_kv_heads);
    } else if (!of_group.retention->HeadsDiffer(of_group)) {
      span = of_group.retention->CompactionAfter(of_group, ends).then;
    }
  });
  return span;
}

int64_t KvCacheManager::MaxTokensAlone(const EngineLimits& limits, const CachePlan& plan) {
  int64_t fitting = 0, too_long = int64_t{1} << 40;
  if (FitsAlone(limits, plan, too_long)) return kAnyLength;
  while (too_long - fitting > 1) {
    const int64_t middle = fitting + (too_long - fitting) / 2;
    (FitsAlone(limits, plan, middle) ? fitting : too_long) = middle;
  }
  return fitting;
}

int64_t KvCacheManager::WithSlabs(const CachePlan& plan, std::span<const int32_t> pages) const {
  return std::accumulate(pages.begin(), pages.end(), int64_t{0}) +
         SlabsFor(limits_, plan, states_.PagesWithState(pages));
}

bool KvCacheManager::HasRoomFor(const OpenArgs& args, int64_t pages, int64_t shared) {
  if (free_slots_.empty()) return Lacks(WaitReason::kMaxNumSeqs);
  if (args.reservation != nullptr)
    pages = std::max(pages, PagesFor(*args.reservation, args.final_tokens));
  if (pages - shared + args.pages_kept_free > NumUnreservedPages())
    return Lacks(WaitReason::kPages);
  return true;
}

// Called after every change of num_pages.
void KvCacheManager::UpdateReservation(SequenceBlocks* blocks) {
  const int64_t left = std::max<int64_t>(0, blocks->peak_pages - blocks->num_pages);
  reserved_pages_ += left - std::exchange(blocks->reserved_pages, left);
}

void KvCacheManager::TrimReservation(SequenceBlocks* blocks) {
  if (blocks->reserved_tokens == 0) return;
  HYDRANT_CHECK(blocks->lengths_known);
  int64_t most = 0, of_state = 0;
  for (int head = 0; head < num_heads_; ++head) {
    most += PagesAt(blocks->spans[head], blocks->reserved_tokens);
    if (head + 1 == budget_heads_) of_state = most;
  }
  most += limits_.slab.SlabsFor(of_state, blocks->state_lines);
  blocks->peak_pages = std::min(blocks->peak_pages, most);
  UpdateReservation(blocks);
}

void KvCacheManager::Bound(const OpenArgs& args, SequenceBlocks* blocks) const {
  const CachePlan& plan = args.reservation != nullptr ? *args.reservation : *args.plan;
  blocks->row_limit = static_cast<int32_t>(MaxHead(limits_, plan, args.final_tokens));
  if (args.reservation == nullptr) return;
  blocks->reserved_tokens = args.final_tokens;
  blocks->peak_pages = PagesFor(plan, args.final_tokens);
}

bool KvCacheManager::TryOpen(const OpenArgs& args, SequenceBlocks* blocks, CacheUpdates* updates) {
  HYDRANT_CHECK(!blocks->IsOpen());
  const CachePlan& plan = *args.plan;
  const int32_t shared = sharing_.NumSharedOfPrompt(args);
  if (!HasRoomFor(args, PagesFor(plan, args.tokens), int64_t{shared} * budget_heads_)) return false;
  const std::optional<int64_t> arena =
      args.prompt_tokens > 0 ? arena_.Allocate(args.prompt_tokens) : 0;
  if (!arena.has_value()) return Lacks(WaitReason::kPrefillArena);

  blocks->spans.clear();
  ForEachGroup(limits_, plan, [&](const CacheGroup& group, const CachePlan& of_group, int) {
    for (int head = 0; head < group.NumHeads(); ++head)
      blocks->spans.push_back(of_group.retention->InitialSpan(of_group, head / group.num_kv_heads));
  });
  blocks->pages.assign(num_heads_, 0);
  blocks->row_width = 0;
  Bound(args, blocks);
  blocks->slot = free_slots_.back();
  blocks->lengths_known = !plan.retention->ReportsPrompt();
  states_.SetLines(plan, blocks);
  const size_t before = updates->list.size();
  updates->Add(SlotSetup{.slot = blocks->slot,
                         .plan = plan,
                         .shared_tokens = shared * limits_.block_size,
                         .unassigned_pages = static_cast<int32_t>(
                             plan.retention->UnassignedPages(plan, limits_.block_size))});
  if (shared > 0) TakePrefixPages(args, shared, blocks);
  // Heads that are compacted during prefill, or reported, get further pages afterwards.
  const int64_t tokens = std::min(args.tokens, plan.retention->InitialSpanEnd(plan));
  const bool placed = plan.retention->UnassignedPages(plan, limits_.block_size) > 0
                          ? TakeUnassignedPages(plan, tokens, blocks, updates)
                          : TryGrow(tokens, blocks, updates);
  if (!placed) {  // table space is the only resource that can be missing here
    updates->list.resize(before);
    sharing_.Unpublish(blocks);
    FreePages(blocks);
    *blocks = SequenceBlocks();
    if (args.prompt_tokens > 0) arena_.Free(*arena, args.prompt_tokens);
    return Lacks(WaitReason::kBlockTables);
  }
  UpdateReservation(blocks);
  free_slots_.pop_back();
  blocks->arena_begin = static_cast<int>(*arena);
  blocks->arena_tokens = static_cast<int>(args.prompt_tokens);
  return true;
}

int64_t KvCacheManager::NumSharedWhenOpened(const OpenArgs& args,
                                            const OffloadedCache& offloaded) const {
  const std::vector<int32_t> shared = sharing_.SharedOfOffloaded(args, offloaded);
  return std::accumulate(shared.begin(), shared.end(), int64_t{0});
}

PageIds KvCacheManager::ShareOf(PageIds others, int head, SequenceBlocks* blocks) {
  page_pool_.Share(others.data);
  return {others.data, states_.Take(head, blocks)};
}

void KvCacheManager::TakePrefixPages(const OpenArgs& args, int32_t pages, SequenceBlocks* blocks) {
  const int32_t pages_a_block = sharing_.PagesAPrefixBlock();
  HYDRANT_CHECK(pages_a_block > 0);
  states_.TakeSlabs(StateAllocator::Missing(*blocks, int64_t{pages} * budget_heads_), blocks);
  blocks->page_ids.resize(static_cast<size_t>(pages) * num_heads_);
  for (int32_t i = 0; i < pages; ++i) {
    const SequenceBlocks* publisher = sharing_.FindPublisher(args.prefix[i / pages_a_block]);
    for (int head = 0; head < budget_heads_; ++head) {
      blocks->page_ids[blocks->BlockIndex(head, i)] =
          ShareOf(publisher->page_ids[publisher->BlockIndex(head, i)], head, blocks);
    }
  }
  std::fill_n(blocks->pages.begin(), budget_heads_, pages);
  blocks->num_pages += int64_t{pages} * budget_heads_;
  const auto keys = args.prefix.first(pages / pages_a_block);
  sharing_.Publish({keys.begin(), keys.end()}, blocks->pages, blocks);
}

// The ids follow the rows until the engine assigns them; heads of other groups get pages at once.
bool KvCacheManager::TakeUnassignedPages(const CachePlan& plan, int64_t tokens,
                                         SequenceBlocks* blocks, CacheUpdates* updates) {
  int32_t row_width =
      static_cast<int32_t>(PagesOf(plan.retention->MaxKeep(plan), limits_.block_size));
  for (int head = budget_heads_; head < num_heads_; ++head)
    row_width = std::max(row_width, PagesAt(blocks->spans[head], tokens));
  std::vector<PageIds>& pages = blocks->unassigned_pages;
  pages.resize(plan.retention->UnassignedPages(plan, limits_.block_size));
  states_.TakeSlabs(StateAllocator::Missing(*blocks, static_cast<int64_t>(pages.size())), blocks);
  taken_.resize(pages.size());
  HYDRANT_CHECK(page_pool_.Allocate(taken_));
  // The last is assigned first.
  for (size_t i = pages.size(); i-- > 0;)
    pages[i] = {taken_[taken_.size() - 1 - i], states_.Take(0, blocks)};
  blocks->num_pages += static_cast<int64_t>(pages.size());
  if (!WidenRow(row_width, blocks, updates)) return false;
  const int64_t first = blocks->TableIndex(num_heads_, 0);
  for (size_t i = 0; i < pages.size(); ++i)
    updates->AddTableWrite({first + static_cast<int64_t>(i), pages[i]});
  HYDRANT_CHECK(TryGrow(tokens, blocks, updates));
  return true;
}

void KvCacheManager::AssignPages(std::span<const int32_t> entries, std::span<const PageIds> pages,
                                 SequenceBlocks* blocks) {
  const auto count = static_cast<int64_t>(blocks->unassigned_pages.size());
  table_.Free(blocks->TableIndex(num_heads_, 0), count);
  const auto by_data = [](const PageIds& a, const PageIds& b) { return a.data < b.data; };
  std::vector<PageIds> unassigned = std::exchange(blocks->unassigned_pages, {});
  std::sort(unassigned.begin(), unassigned.end(), by_data);
  std::vector<bool> assigned(unassigned.size(), false);
  size_t next = 0;
  for (int head = 0; head < budget_heads_; ++head) {
    blocks->pages[head] = static_cast<int32_t>(PagesOf(entries[head], limits_.block_size));
    HYDRANT_CHECK(blocks->pages[head] <= blocks->row_width);
    for (int32_t i = 0; i < blocks->pages[head]; ++i, ++next) {
      const PageIds page = pages.empty() ? unassigned.at(next) : pages[next];
      const auto at = std::lower_bound(unassigned.begin(), unassigned.end(), page, by_data);
      HYDRANT_CHECK(at != unassigned.end() && *at == page && !assigned[at - unassigned.begin()]);
      assigned[at - unassigned.begin()] = true;
      blocks->page_ids[blocks->BlockIndex(head, i)] = page;
    }
  }
  for (size_t i = 0; i < unassigned.size(); ++i) {
    if (!assigned[i]) FreePage(unassigned[i], blocks);
  }
}

void KvCacheManager::FreePage(PageIds page, SequenceBlocks* blocks) {
  page_pool_.Free(page.data);
  --blocks->num_pages;
  StateAllocator::Return(page.state, blocks);
}

void KvCacheManager::FreePagesPast(int32_t held, int head, SequenceBlocks* blocks) {
  for (int32_t& pages = blocks->pages[head]; pages > held;)
    FreePage(blocks->page_ids[blocks->BlockIndex(head, --pages)], blocks);
}

void KvCacheManager::ApplyReport(const CachePlan& plan, std::span<const int32_t> entries,
                                 std::span<const PageIds> pages, SequenceBlocks* blocks) {
  HYDRANT_CHECK(!blocks->lengths_known && static_cast<int>(entries.size()) == budget_heads_);
  if (!blocks->unassigned_pages.empty()) AssignPages(entries, pages, blocks);
  for (int head = 0; head < budget_heads_; ++head) {
    blocks->spans[head] = plan.Keeping(entries[head]);
    FreePagesPast(static_cast<int32_t>(PagesOf(entries[head], limits_.block_size)), head, blocks);
  }
  UpdateReservation(blocks);
  blocks->lengths_known = true;
  blocks->growing.clear();
  blocks->capacity = 0;
}

// Heads with unassigned pages do not grow yet.
void KvCacheManager::ListGrowingHeads(SequenceBlocks* blocks) const {
  for (int head = blocks->unassigned_pages.empty() ? 0 : budget_heads_; head < num_heads_; ++head)
    blocks->growing.Add({head, blocks->pages[head], blocks->spans[head]});
  blocks->growing.Rewind();
  blocks->capacity = -limits_.block_size;  // not in order: any head may have filled its pages
}

KvCacheManager::Growth KvCacheManager::GrowthTo(int64_t tokens,
                                                const SequenceBlocks& blocks) const {
  Growth growth = {.tokens = tokens, .in_order = tokens <= blocks.capacity + limits_.block_size};
  for (; growth.heads < blocks.growing.size(); ++growth.heads) {
    const GrowingHead& growing = blocks.growing.At(growth.heads);
    if (growth.in_order && growing.FullAt(limits_.block_size) >= tokens) break;
    const int32_t wanted = PagesWanted(growing, growth);
    const int32_t lacking = std::max(0, wanted - growing.pages);
    growth.pages += lacking;
    if (states_.HasState(blocks, growing.head)) growth.of_state += lacking;
    growth.row_width = std::max(growth.row_width, wanted);
  }
  return growth;
}

// For heads that differ: each writes to other cache lines. Heads that grow together write to
// contiguous memory.
void KvCacheManager::PrefetchGrowth(int64_t tokens, const SequenceBlocks& blocks) const {
  if (tokens <= blocks.capacity) return;
  constexpr size_t kLimit = 32;
  const size_t most = std::min(kLimit, blocks.growing.size());
  for (size_t i = 0; i < most; ++i) {
    const GrowingHead& growing = blocks.growing.At(i);
    if (growing.FullAt(limits_.block_size) >= tokens) break;
    __builtin_prefetch(blocks.pages.data() + growing.head, 1);
    const auto* const page_ids = blocks.page_ids.data();
    if (growing.pages > 0)
      __builtin_prefetch(page_ids + blocks.BlockIndex(growing.head, growing.pages - 1));
    if (growing.pages < blocks.row_width)
      __builtin_prefetch(page_ids + blocks.BlockIndex(growing.head, growing.pages), 1);
  }
}

bool KvCacheManager::TryGrow(int64_t tokens, SequenceBlocks* blocks, CacheUpdates* updates) {
  if (tokens <= blocks->capacity) return true;
  if (blocks->growing.empty()) ListGrowingHeads(blocks);
  const Growth growth = GrowthTo(tokens, *blocks);
  const int64_t slabs = StateAllocator::Missing(*blocks, growth.of_state);
  if (growth.pages + slabs + sharing_.CopiesBefore(tokens, *blocks) >
      NumUnreservedPages() + blocks->reserved_pages)
    return false;
  if (growth.row_width > blocks->row_width && !WidenRow(growth.row_width, blocks, updates))
    return false;
  if (tokens > PageSharing::OverwritesAfter(*blocks)) sharing_.CopyShared(tokens, blocks, updates);
  if (slabs > 0) states_.TakeSlabs(slabs, blocks);
  PlacePages(growth, blocks, updates);
  return true;
}

// Moves the rows to a wider place, possibly overlapping the old one: all ids are sent to the engine
// again, so the old place is freed first.
bool KvCacheManager::WidenRow(int32_t width_needed, SequenceBlocks* blocks, CacheUpdates* updates) {
  const int32_t old_width = blocks->row_width;
  const int64_t old_size = static_cast<int64_t>(old_width) * num_heads_;
  const auto behind = static_cast<int64_t>(blocks->unassigned_pages.size());
  if (blocks->reserved_tokens > 0) width_needed = std::max(width_needed, blocks->row_limit);
  if (old_size > 0) table_.Free(blocks->row_begin, old_size);
  const int32_t limit = std::max(blocks->row_limit, width_needed);
  const int64_t most = int64_t{PaddedWidth(width_needed, limit, true)} * num_heads_;
  const bool plenty = table_.NumFree() - most >= table_.size() / 2;
  int32_t width = PaddedWidth(width_needed, limit, plenty);
  std::optional<int64_t> begin = table_.Allocate(int64_t{width} * num_heads_ + behind);
  if (!begin.has_value()) {
    width = width_needed;
    begin = table_.Allocate(int64_t{width} * num_heads_ + behind);
  }
  if (!begin.has_value()) {
    if (old_size > 0) table_.AllocateAt(blocks->row_begin, old_size);
    return false;
  }
  blocks->page_ids.resize(static_cast<size_t>(width) * num_heads_);
  blocks->row_begin = *begin;
  blocks->row_width = width;
  updates->Add(TableRow{blocks->slot, *begin, width});
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < blocks->pages[head]; ++i) {
      updates->AddTableWrite(
          {blocks->TableIndex(head, i), blocks->page_ids[blocks->BlockIndex(head, i)]});
    }
  }
  return true;
}

// Allocates ids for pages [growing.pages, wanted) of a head.
void KvCacheManager::TakePages(const GrowingHead& growing, int32_t wanted,
                               const SequenceBlocks& blocks, int32_t* ids) {
  constexpr int32_t kMaxRoom = 16;  // pages: 32 KiB of keys of 64 elements
  if (growing.pages >= wanted) return;
  const int32_t last =
      growing.pages > 0 ? blocks.page_ids[blocks.BlockIndex(growing.head, growing.pages - 1)].data
                        : BlockAllocator::kNone;
  const int32_t room = std::clamp(blocks.row_limit - wanted, 0, kMaxRoom);
  HYDRANT_CHECK(page_pool_.Extend(last, room, {ids, static_cast<size_t>(wanted - growing.pages)}));
}

void KvCacheManager::PlacePages(const Growth& growth, SequenceBlocks* blocks,
                                CacheUpdates* updates) {
  taken_.resize(growth.pages);
  int32_t* next = taken_.data();
  TableUpdate* update = updates->AddTableWrites(taken_.size());
  GrowthRing& ring = blocks->growing;
  bool ordered = growth.in_order;
  for (size_t i = 0; i < growth.heads; ++i) {
    GrowingHead& growing = ring.Next();
    const int head = growing.head;
    const int32_t wanted = PagesWanted(growing, growth);
    TakePages(growing, wanted, *blocks, next);
    for (; growing.pages < wanted; ++next) {
      const PageIds page = {*next, states_.Take(head, blocks)};
      blocks->page_ids[blocks->BlockIndex(head, growing.pages)] = page;
      *update++ = {blocks->TableIndex(head, growing.pages++), page};
    }
    blocks->pages[head] = growing.pages;
    if (growing.HasAllPages(limits_.block_size)) ordered = false;  // it must leave the ring
    ring.Advance();
  }
  blocks->num_pages += growth.pages;
  UpdateReservation(blocks);
  if (!ordered) ring.Order(limits_.block_size);
  blocks->capacity = ring.empty() ? kAnyLength : ring.Next().FullAt(limits_.block_size);
  blocks->capacity = std::min(blocks->capacity, PageSharing::OverwritesAfter(*blocks));
}

void KvCacheManager::Compact(const HeadSpan& then, int64_t tokens, SequenceBlocks* blocks) {
  for (int head = 0; head < budget_heads_; ++head) CompactHead(head, then, tokens, blocks);
}

void KvCacheManager::RaiseCaps(int32_t entries, int64_t tokens, SequenceBlocks* blocks) const {
  for (int head = 0; head < budget_heads_; ++head)
    blocks->spans[head] = blocks->spans[head].Raised(tokens, entries);
  blocks->growing.clear();
  blocks->capacity = 0;
}

void KvCacheManager::AnnounceCompaction(int64_t tokens, SequenceBlocks* blocks) const {
  blocks->compact_at = tokens;
  blocks->capacity = std::min(blocks->capacity, PageSharing::OverwritesAfter(*blocks));
}

void KvCacheManager::ApplyTurnReport(std::span<const int32_t> entries, int64_t tokens,
                                     SequenceBlocks* blocks) {
  HYDRANT_CHECK(static_cast<int>(entries.size()) == budget_heads_);
  blocks->lengths_known = true;
  for (int head = 0; head < budget_heads_; ++head) {
    HeadSpan then = blocks->spans[head];
    then.dropped = static_cast<int32_t>(tokens) - entries[head];
    CompactHead(head, then, tokens, blocks);
  }
  // A sequence may have been opened with pages for the prefill of later turns: heads that are not
  // cut would be ahead of the others in the ring.
  for (int head = budget_heads_; head < num_heads_; ++head)
    FreePagesPast(PagesAt(blocks->spans[head], tokens), head, blocks);
  UpdateReservation(blocks);
  blocks->compact_at = kAnyLength;
}

void KvCacheManager::SetCaps(std::span<const int32_t> caps, SequenceBlocks* blocks) {
  HYDRANT_CHECK(static_cast<int>(caps.size()) == budget_heads_);
  for (int head = 0; head < budget_heads_; ++head)
    CompactHead(head, {.cap = caps[head]}, kAnyLength, blocks);
}

void KvCacheManager::CompactHead(int head, const HeadSpan& then, int64_t tokens,
                                 SequenceBlocks* blocks) {
  HYDRANT_CHECK(blocks->shared.empty() || blocks->shared[head] == 0);
  blocks->spans[head] = then;
  FreePagesPast(PagesAt(then, tokens), head, blocks);
  UpdateReservation(blocks);
  blocks->growing.clear();
  blocks->capacity = 0;
}

void KvCacheManager::FreePages(SequenceBlocks* blocks) {
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < blocks->pages[head]; ++i)
      page_pool_.Free(blocks->page_ids[blocks->BlockIndex(head, i)].data);
  }
  for (const PageIds& page : blocks->unassigned_pages) page_pool_.Free(page.data);
  states_.FreeSlabs(*blocks);
}

bool KvCacheManager::TakePages(const CachePlan& plan, std::span<const int32_t> pages,
                               std::span<const int32_t> shared, const SequenceBlocks* other,
                               SequenceBlocks* blocks, CacheUpdates* updates) {
  blocks->slot = free_slots_.back();
  blocks->pages.assign(num_heads_, 0);
  const size_t before = updates->list.size();
  updates->Add(SlotSetup{.slot = blocks->slot, .plan = plan});
  if (!WidenRow(*std::max_element(pages.begin(), pages.end()), blocks, updates)) {
    updates->list.resize(before);
    *blocks = SequenceBlocks();
    return Lacks(WaitReason::kBlockTables);
  }
  free_slots_.pop_back();
  states_.SetLines(plan, blocks);
  states_.TakeSlabs(SlabsFor(limits_, plan, states_.PagesWithState(pages)), blocks);
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t& held = blocks->pages[head]; held < pages[head]; ++held) {
      PageIds& page = blocks->page_ids[blocks->BlockIndex(head, held)];
      if (held < shared[head]) {
        page = ShareOf(other->page_ids[other->BlockIndex(head, held)], head, blocks);
      } else {
        HYDRANT_CHECK(page_pool_.Allocate(std::span(&page.data, 1)));
        page.state = states_.Take(head, blocks);
      }
      updates->AddTableWrite({blocks->TableIndex(head, held), page});
    }
    blocks->num_pages += blocks->pages[head];
  }
  sharing_.MarkShared(shared, blocks);
  UpdateReservation(blocks);
  return true;
}

bool KvCacheManager::TryFork(const OpenArgs& args, SequenceBlocks* from, SequenceBlocks* blocks,
                             CacheUpdates* updates) {
  HYDRANT_CHECK(!blocks->IsOpen() && from->IsOpen() && from->lengths_known);
  const std::vector<int32_t> shared = sharing_.SharablePages(args, from->spans);
  std::vector<int32_t> pages = from->pages;
  for (int head = 0; head < num_heads_; ++head)
    pages[head] = std::min(pages[head], PagesAt(from->spans[head], args.tokens));
  if (!HasRoomFor(args, WithSlabs(*args.plan, pages),
                  std::accumulate(shared.begin(), shared.end(), int64_t{0})))
    return false;
  blocks->spans = from->spans;
  Bound(args, blocks);
  if (!TakePages(*args.plan, pages, shared, from, blocks, updates)) return false;
  sharing_.MarkShared(shared, from);
  SlotCopies copies = {.slot = blocks->slot, .state_lines = blocks->state_lines};
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = states_.HasState(*blocks, head) ? 0 : shared[head]; i < pages[head]; ++i) {
      PageIds to = blocks->page_ids[blocks->BlockIndex(head, i)];
      if (i < shared[head]) to.data = kNotCopied;
      if (to.state == kNoState) to.state = kNotCopied;
      copies.pages.push_back({from->page_ids[from->BlockIndex(head, i)], to});
    }
  }
  if (!copies.pages.empty()) updates->Add(std::move(copies));
  updates->Add(SlotFork{.slot = blocks->slot, .from = from->slot});
  return true;
}

void KvCacheManager::PackState(SequenceBlocks* blocks, CacheUpdates* updates) {
  if (!blocks->HasSpareSlab() || !blocks->unassigned_pages.empty()) return;
  states_.Pack(blocks, updates);
  UpdateReservation(blocks);
}

bool KvCacheManager::TryOpenArena(int64_t tokens, SequenceBlocks* blocks) {
  HYDRANT_CHECK(blocks->IsOpen() && blocks->arena_tokens == 0);
  const std::optional<int64_t> arena = arena_.Allocate(tokens);
  if (!arena.has_value()) return false;
  blocks->arena_begin = static_cast<int>(*arena);
  blocks->arena_tokens = static_cast<int>(tokens);
  return true;
}

void KvCacheManager::CloseArena(SequenceBlocks* blocks) {
  if (blocks->arena_tokens > 0) arena_.Free(blocks->arena_begin, blocks->arena_tokens);
  blocks->arena_tokens = 0;
}

bool KvCacheManager::TrySwapOut(const SequenceBlocks& blocks, OffloadedCache* offloaded,
                                CacheUpdates* updates) {
  HYDRANT_CHECK(blocks.IsOpen() && blocks.lengths_known && blocks.unassigned_pages.empty());
  if (!TryReserve(blocks.spans, blocks.pages, offloaded)) return false;
  updates->Add(
      SwapOut{.slot = blocks.slot,
              .index = offloaded->index,
              .pages = SwapsOf(blocks, *offloaded, std::vector<int32_t>(num_heads_, 0), true),
              .state_lines = blocks.state_lines});
  return true;
}

bool KvCacheManager::TryReserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages,
                                OffloadedCache* offloaded) {
  const int64_t all = std::accumulate(pages.begin(), pages.end(), int64_t{0});
  if (free_offloaded_.empty() || all > host_pages_.NumFree()) return false;
  offloaded->index = free_offloaded_.back();
  free_offloaded_.pop_back();
  std::memcpy(offloaded->key.data(), &++next_offloaded_key_, sizeof(next_offloaded_key_));
  offloaded->spans.assign(spans.begin(), spans.end());
  offloaded->pages.assign(pages.begin(), pages.end());
  offloaded->host_pages.resize(all);
  HYDRANT_CHECK(host_pages_.Allocate(offloaded->host_pages));
  return true;
}

std::vector<PageCopy> KvCacheManager::SwapsOf(const SequenceBlocks& blocks,
                                              const OffloadedCache& offloaded,
                                              std::span<const int32_t> shared, bool out) const {
  std::vector<PageCopy> copies;
  const int32_t* host = offloaded.host_pages.data();
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < offloaded.pages[head]; ++i) {
      PageIds there = {host[i], host[i]};
      PageIds here = blocks.page_ids[blocks.BlockIndex(head, i)];
      if (i < shared[head]) here.data = there.data = kNotCopied;
      if (here.state == kNoState) here.state = there.state = kNotCopied;
      if (here.data == kNotCopied && here.state == kNotCopied) continue;
      copies.push_back(out ? PageCopy{here, there} : PageCopy{there, here});
    }
    host += offloaded.pages[head];
  }
  return copies;
}

bool KvCacheManager::TrySwapIn(const OpenArgs& args, const OffloadedCache& offloaded,
                               SequenceBlocks* blocks, CacheUpdates* updates) {
  HYDRANT_CHECK(!blocks->IsOpen() && !offloaded.IsEmpty());
  const std::vector<int32_t> shared = sharing_.SharedOfOffloaded(args, offloaded);
  if (!HasRoomFor(args, WithSlabs(*args.plan, offloaded.pages),
                  std::accumulate(shared.begin(), shared.end(), int64_t{0})))
    return false;
  blocks->spans = offloaded.spans;
  Bound(args, blocks);
  if (!TakePages(*args.plan, offloaded.pages, shared, sharing_.FindPublisher(offloaded.key), blocks,
                 updates))
    return false;
  updates->Add(SwapIn{.slot = blocks->slot,
                      .index = offloaded.index,
                      .pages = SwapsOf(*blocks, offloaded, shared, false),
                      .state_lines = blocks->state_lines});
  if (args.sharable)
    sharing_.Publish({offloaded.key}, sharing_.SharablePages(args, offloaded.spans), blocks);
  return true;
}

void KvCacheManager::Drop(OffloadedCache* offloaded) {
  if (offloaded->IsEmpty()) return;
  for (const int32_t page : offloaded->host_pages) host_pages_.Free(page);
  free_offloaded_.push_back(offloaded->index);
  *offloaded = OffloadedCache();
}

void KvCacheManager::Release(SequenceBlocks* blocks) {
  if (!blocks->IsOpen()) return;
  sharing_.Unpublish(blocks);
  CloseArena(blocks);
  FreePages(blocks);
  reserved_pages_ -= blocks->reserved_pages;
  table_.Free(blocks->row_begin, EntriesOf(*blocks));
  free_slots_.push_back(blocks->slot);
  *blocks = SequenceBlocks();
}

}  // namespace hydrant
