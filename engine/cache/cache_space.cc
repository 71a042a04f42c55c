#include "engine/cache/cache_space.h"

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
int32_t RoomyWidth(int32_t needed, int32_t limit, bool plenty) {
  const int32_t width = plenty ? std::max(4 * needed, 64) : needed + needed / 2 + 2;
  return std::min(limit, width);
}

// The most pages that a head has held when its sequence has seen `tokens`.
int64_t WidestHead(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  int32_t most = 0;
  ForEachGroup(limits, plan, [&](const CacheGroup&, const CachePlan& of_group, int) {
    most = std::max(most, of_group.MostUntil(tokens));
  });
  return PagesOf(most, limits.block_size);
}

}  // namespace

CacheSpace::CacheSpace(const EngineLimits& limits, std::optional<uint64_t> shuffle_seed)
    : limits_(limits),
      num_heads_(limits.num_layers * limits.num_kv_heads),
      budget_heads_(limits.BudgetHeads()),
      blocks_(limits.num_blocks, shuffle_seed),
      states_(limits, &blocks_),
      sharing_(limits, &blocks_),
      host_pages_(limits.num_host_pages),
      table_(limits.table_entries),
      arena_(limits.prefill_arena_tokens) {
  for (int slot = limits.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  for (int kept = limits.max_kept_caches - 1; kept >= 0; --kept) free_kept_.push_back(kept);
}

int64_t CacheSpace::PagesMissing(const SequenceSpace& space, int64_t tokens) const {
  if (tokens <= space.capacity) return 0;
  int64_t missing = 0, of_state = 0;
  for (int head = 0; head < num_heads_; ++head) {
    missing += std::max(0, PagesAt(space.spans[head], tokens) - space.pages[head]);
    if (head + 1 == budget_heads_) of_state = missing;
  }
  missing += StateAllocator::Missing(space, of_state);
  return std::max<int64_t>(0,
                           missing + sharing_.CopiesBefore(tokens, space) - space.promised_pages);
}

int64_t CacheSpace::PagesFor(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  int64_t all = 0;
  ForEachGroup(limits, plan, [&](const CacheGroup&, const CachePlan& of_group, int) {
    const int64_t pages = of_group.life->PagesUntil(of_group, tokens, limits.block_size);
    all += pages + SlabsFor(limits, of_group, pages);
  });
  return all;
}

double CacheSpace::LikelyPages(const CachePlan& plan, int64_t tokens) const {
  double likely = 0, most = 0;
  const auto with_slabs = [&](const CachePlan& of_group, double pages) {
    return pages + static_cast<double>(SlabsFor(limits_, of_group, std::llround(pages)));
  };
  ForEachGroup(limits_, plan, [&](const CacheGroup& group, const CachePlan& of_group, int) {
    const double pages = with_slabs(of_group, static_cast<double>(of_group.life->PagesUntil(
                                                  of_group, tokens, limits_.block_size)));
    most += pages;
    // On average a head's last page is half full.
    likely +=
        of_group.life->ReportsPrompt()
            ? with_slabs(of_group, group.NumHeads() * (of_group.MeanEntriesAfter(tokens) /
                                                           static_cast<double>(limits_.block_size) +
                                                       0.5))
            : pages;
  });
  return std::min(most, likely);
}

bool CacheSpace::FitsAlone(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  const int64_t heads = int64_t{limits.num_layers} * limits.num_kv_heads;
  const int64_t width = std::max(WidestHead(limits, plan, tokens),
                                 PagesOf(plan.life->WidestKeep(plan), limits.block_size));
  return PagesFor(limits, plan, tokens) <= limits.num_blocks &&
         width * heads + plan.life->UnassignedPages(plan, limits.block_size) <=
             limits.table_entries;
}

std::optional<HeadSpan> CacheSpace::SpanAfter(const EngineLimits& limits, const CachePlan& plan,
                                              int head, int64_t tokens) {
  std::optional<HeadSpan> span;
  ForEachGroup(limits, plan, [&](const CacheGroup& group, const CachePlan& of_group, int first) {
    if (head < first || head >= first + group.NumHeads()) return;
    const int64_t ends = of_group.life->OpeningEnds(of_group);
    if (tokens <= ends && !of_group.life->ReportsPrompt()) {
      span = of_group.life->Opening(of_group, (head - first) / group.num_kv_heads);
    } else if (!of_group.life->HeadsDiffer(of_group)) {
      span = of_group.life->CutAfter(of_group, ends).then;
    }
  });
  return span;
}

int64_t CacheSpace::MaxTokensAlone(const EngineLimits& limits, const CachePlan& plan) {
  int64_t fitting = 0, too_long = int64_t{1} << 40;
  if (FitsAlone(limits, plan, too_long)) return kAnyLength;
  while (too_long - fitting > 1) {
    const int64_t middle = fitting + (too_long - fitting) / 2;
    (FitsAlone(limits, plan, middle) ? fitting : too_long) = middle;
  }
  return fitting;
}

int64_t CacheSpace::WithSlabs(const CachePlan& plan, std::span<const int32_t> pages) const {
  return std::accumulate(pages.begin(), pages.end(), int64_t{0}) +
         SlabsFor(limits_, plan, states_.PagesWithState(pages));
}

bool CacheSpace::HasRoomFor(const OpenArgs& args, int64_t pages, int64_t shared) {
  if (free_slots_.empty()) return Lacks(WaitReason::kMaxNumSeqs);
  if (args.promised != nullptr)
    pages = std::max(pages, PagesFor(*args.promised, args.final_tokens));
  if (pages - shared + args.pages_kept_free > NumUnpromisedPages())
    return Lacks(WaitReason::kPages);
  return true;
}

// Called after every change of num_pages.
void CacheSpace::CountPromise(SequenceSpace* space) {
  const int64_t left = std::max<int64_t>(0, space->most_pages - space->num_pages);
  promised_pages_ += left - std::exchange(space->promised_pages, left);
}

void CacheSpace::LowerPromise(SequenceSpace* space) {
  if (space->promised_tokens == 0) return;
  HYDRANT_CHECK(space->lengths_known);
  int64_t most = 0, of_state = 0;
  for (int head = 0; head < num_heads_; ++head) {
    most += PagesAt(space->spans[head], space->promised_tokens);
    if (head + 1 == budget_heads_) of_state = most;
  }
  most += limits_.slab.SlabsFor(of_state, space->state_lines);
  space->most_pages = std::min(space->most_pages, most);
  CountPromise(space);
}

void CacheSpace::Bound(const OpenArgs& args, SequenceSpace* space) const {
  const CachePlan& plan = args.promised != nullptr ? *args.promised : *args.plan;
  space->row_limit = static_cast<int32_t>(WidestHead(limits_, plan, args.final_tokens));
  if (args.promised == nullptr) return;
  space->promised_tokens = args.final_tokens;
  space->most_pages = PagesFor(plan, args.final_tokens);
}

bool CacheSpace::TryOpen(const OpenArgs& args, SequenceSpace* space, CacheUpdates* updates) {
  HYDRANT_CHECK(!space->IsOpen());
  const CachePlan& plan = *args.plan;
  const int32_t shared = sharing_.NumSharedOfPrompt(args);
  if (!HasRoomFor(args, PagesFor(plan, args.tokens), int64_t{shared} * budget_heads_)) return false;
  const std::optional<int64_t> arena =
      args.prompt_tokens > 0 ? arena_.Allocate(args.prompt_tokens) : 0;
  if (!arena.has_value()) return Lacks(WaitReason::kPrefillArena);

  space->spans.clear();
  ForEachGroup(limits_, plan, [&](const CacheGroup& group, const CachePlan& of_group, int) {
    for (int head = 0; head < group.NumHeads(); ++head)
      space->spans.push_back(of_group.life->Opening(of_group, head / group.num_kv_heads));
  });
  space->pages.assign(num_heads_, 0);
  space->row_width = 0;
  Bound(args, space);
  space->slot = free_slots_.back();
  space->lengths_known = !plan.life->ReportsPrompt();
  states_.SetLines(plan, space);
  const size_t before = updates->list.size();
  updates->Add(SlotSetup{.slot = space->slot,
                         .plan = plan,
                         .shared_tokens = shared * limits_.block_size,
                         .unassigned_pages = static_cast<int32_t>(
                             plan.life->UnassignedPages(plan, limits_.block_size))});
  if (shared > 0) TakePrefixPages(args, shared, space);
  // Heads that are cut during prefill, or reported, get further pages afterwards.
  const int64_t tokens = std::min(args.tokens, plan.life->OpeningEnds(plan));
  const bool placed = plan.life->UnassignedPages(plan, limits_.block_size) > 0
                          ? TakeUnassignedPages(plan, tokens, space, updates)
                          : TryGrow(tokens, space, updates);
  if (!placed) {  // table space is the only resource that can be missing here
    updates->list.resize(before);
    sharing_.Unpublish(space);
    FreePages(space);
    *space = SequenceSpace();
    if (args.prompt_tokens > 0) arena_.Free(*arena, args.prompt_tokens);
    return Lacks(WaitReason::kBlockTables);
  }
  CountPromise(space);
  free_slots_.pop_back();
  space->arena_begin = static_cast<int>(*arena);
  space->arena_tokens = static_cast<int>(args.prompt_tokens);
  return true;
}

int64_t CacheSpace::NumSharedWhenOpened(const OpenArgs& args, const KeptSpace& kept) const {
  const std::vector<int32_t> shared = sharing_.SharedOfKept(args, kept);
  return std::accumulate(shared.begin(), shared.end(), int64_t{0});
}

PageIds CacheSpace::ShareOf(PageIds others, int head, SequenceSpace* space) {
  blocks_.Share(others.data);
  return {others.data, states_.Take(head, space)};
}

void CacheSpace::TakePrefixPages(const OpenArgs& args, int32_t pages, SequenceSpace* space) {
  const int32_t pages_a_block = sharing_.PagesAPrefixBlock();
  HYDRANT_CHECK(pages_a_block > 0);
  states_.TakeSlabs(StateAllocator::Missing(*space, int64_t{pages} * budget_heads_), space);
  space->blocks.resize(static_cast<size_t>(pages) * num_heads_);
  for (int32_t i = 0; i < pages; ++i) {
    const SequenceSpace* publisher = sharing_.FindPublisher(args.prefix[i / pages_a_block]);
    for (int head = 0; head < budget_heads_; ++head) {
      space->blocks[space->BlockIndex(head, i)] =
          ShareOf(publisher->blocks[publisher->BlockIndex(head, i)], head, space);
    }
  }
  std::fill_n(space->pages.begin(), budget_heads_, pages);
  space->num_pages += int64_t{pages} * budget_heads_;
  const auto blocks = args.prefix.first(pages / pages_a_block);
  sharing_.Publish({blocks.begin(), blocks.end()}, space->pages, space);
}

// The ids follow the rows until the engine assigns them; heads of other groups get pages at once.
bool CacheSpace::TakeUnassignedPages(const CachePlan& plan, int64_t tokens, SequenceSpace* space,
                                     CacheUpdates* updates) {
  int32_t row_width =
      static_cast<int32_t>(PagesOf(plan.life->WidestKeep(plan), limits_.block_size));
  for (int head = budget_heads_; head < num_heads_; ++head)
    row_width = std::max(row_width, PagesAt(space->spans[head], tokens));
  std::vector<PageIds>& pages = space->unassigned_pages;
  pages.resize(plan.life->UnassignedPages(plan, limits_.block_size));
  states_.TakeSlabs(StateAllocator::Missing(*space, static_cast<int64_t>(pages.size())), space);
  taken_.resize(pages.size());
  HYDRANT_CHECK(blocks_.Allocate(taken_));
  // The last is assigned first.
  for (size_t i = pages.size(); i-- > 0;)
    pages[i] = {taken_[taken_.size() - 1 - i], states_.Take(0, space)};
  space->num_pages += static_cast<int64_t>(pages.size());
  if (!WidenRow(row_width, space, updates)) return false;
  const int64_t first = space->TableIndex(num_heads_, 0);
  for (size_t i = 0; i < pages.size(); ++i)
    updates->AddTableWrite({first + static_cast<int64_t>(i), pages[i]});
  HYDRANT_CHECK(TryGrow(tokens, space, updates));
  return true;
}

void CacheSpace::AssignPages(std::span<const int32_t> entries, std::span<const PageIds> pages,
                             SequenceSpace* space) {
  const auto count = static_cast<int64_t>(space->unassigned_pages.size());
  table_.Free(space->TableIndex(num_heads_, 0), count);
  const auto by_data = [](const PageIds& a, const PageIds& b) { return a.data < b.data; };
  std::vector<PageIds> unassigned = std::exchange(space->unassigned_pages, {});
  std::sort(unassigned.begin(), unassigned.end(), by_data);
  std::vector<bool> assigned(unassigned.size(), false);
  size_t next = 0;
  for (int head = 0; head < budget_heads_; ++head) {
    space->pages[head] = static_cast<int32_t>(PagesOf(entries[head], limits_.block_size));
    HYDRANT_CHECK(space->pages[head] <= space->row_width);
    for (int32_t i = 0; i < space->pages[head]; ++i, ++next) {
      const PageIds page = pages.empty() ? unassigned.at(next) : pages[next];
      const auto at = std::lower_bound(unassigned.begin(), unassigned.end(), page, by_data);
      HYDRANT_CHECK(at != unassigned.end() && *at == page && !assigned[at - unassigned.begin()]);
      assigned[at - unassigned.begin()] = true;
      space->blocks[space->BlockIndex(head, i)] = page;
    }
  }
  for (size_t i = 0; i < unassigned.size(); ++i) {
    if (!assigned[i]) FreePage(unassigned[i], space);
  }
}

void CacheSpace::FreePage(PageIds page, SequenceSpace* space) {
  blocks_.Free(page.data);
  --space->num_pages;
  StateAllocator::Return(page.state, space);
}

void CacheSpace::FreePagesPast(int32_t held, int head, SequenceSpace* space) {
  for (int32_t& pages = space->pages[head]; pages > held;)
    FreePage(space->blocks[space->BlockIndex(head, --pages)], space);
}

void CacheSpace::SetKept(const CachePlan& plan, std::span<const int32_t> entries,
                         std::span<const PageIds> pages, SequenceSpace* space) {
  HYDRANT_CHECK(!space->lengths_known && static_cast<int>(entries.size()) == budget_heads_);
  if (!space->unassigned_pages.empty()) AssignPages(entries, pages, space);
  for (int head = 0; head < budget_heads_; ++head) {
    space->spans[head] = plan.Keeping(entries[head]);
    FreePagesPast(static_cast<int32_t>(PagesOf(entries[head], limits_.block_size)), head, space);
  }
  CountPromise(space);
  space->lengths_known = true;
  space->growing.clear();
  space->capacity = 0;
}

// Heads with unassigned pages do not grow yet.
void CacheSpace::ListGrowingHeads(SequenceSpace* space) const {
  for (int head = space->unassigned_pages.empty() ? 0 : budget_heads_; head < num_heads_; ++head)
    space->growing.Add({head, space->pages[head], space->spans[head]});
  space->growing.Rewind();
  space->capacity = -limits_.block_size;  // not in order: any head may have filled its pages
}

CacheSpace::Growth CacheSpace::GrowthTo(int64_t tokens, const SequenceSpace& space) const {
  Growth growth = {.tokens = tokens, .in_order = tokens <= space.capacity + limits_.block_size};
  for (; growth.heads < space.growing.size(); ++growth.heads) {
    const GrowingHead& growing = space.growing.At(growth.heads);
    if (growth.in_order && growing.FullAt(limits_.block_size) >= tokens) break;
    const int32_t wanted = PagesWanted(growing, growth);
    const int32_t lacking = std::max(0, wanted - growing.pages);
    growth.pages += lacking;
    if (states_.HasState(space, growing.head)) growth.of_state += lacking;
    growth.row_width = std::max(growth.row_width, wanted);
  }
  return growth;
}

// For heads that differ: each writes to other cache lines. Heads that grow together write to
// contiguous memory.
void CacheSpace::PrefetchGrowth(int64_t tokens, const SequenceSpace& space) const {
  if (tokens <= space.capacity) return;
  constexpr size_t kMost = 32;
  const size_t most = std::min(kMost, space.growing.size());
  for (size_t i = 0; i < most; ++i) {
    const GrowingHead& growing = space.growing.At(i);
    if (growing.FullAt(limits_.block_size) >= tokens) break;
    __builtin_prefetch(space.pages.data() + growing.head, 1);
    const auto* const blocks = space.blocks.data();
    if (growing.pages > 0)
      __builtin_prefetch(blocks + space.BlockIndex(growing.head, growing.pages - 1));
    if (growing.pages < space.row_width)
      __builtin_prefetch(blocks + space.BlockIndex(growing.head, growing.pages), 1);
  }
}

bool CacheSpace::TryGrow(int64_t tokens, SequenceSpace* space, CacheUpdates* updates) {
  if (tokens <= space->capacity) return true;
  if (space->growing.empty()) ListGrowingHeads(space);
  const Growth growth = GrowthTo(tokens, *space);
  const int64_t slabs = StateAllocator::Missing(*space, growth.of_state);
  if (growth.pages + slabs + sharing_.CopiesBefore(tokens, *space) >
      NumUnpromisedPages() + space->promised_pages)
    return false;
  if (growth.row_width > space->row_width && !WidenRow(growth.row_width, space, updates))
    return false;
  if (tokens > PageSharing::OverwritesAfter(*space)) sharing_.CopyShared(tokens, space, updates);
  if (slabs > 0) states_.TakeSlabs(slabs, space);
  PlacePages(growth, space, updates);
  return true;
}

// Moves the rows to a wider place, possibly overlapping the old one: all ids are sent to the engine
// again, so the old place is freed first.
bool CacheSpace::WidenRow(int32_t width_needed, SequenceSpace* space, CacheUpdates* updates) {
  const int32_t old_width = space->row_width;
  const int64_t old_size = static_cast<int64_t>(old_width) * num_heads_;
  const auto behind = static_cast<int64_t>(space->unassigned_pages.size());
  if (space->promised_tokens > 0) width_needed = std::max(width_needed, space->row_limit);
  if (old_size > 0) table_.Free(space->row_begin, old_size);
  const int32_t limit = std::max(space->row_limit, width_needed);
  const int64_t most = int64_t{RoomyWidth(width_needed, limit, true)} * num_heads_;
  const bool plenty = table_.NumFree() - most >= table_.size() / 2;
  int32_t width = RoomyWidth(width_needed, limit, plenty);
  std::optional<int64_t> begin = table_.Allocate(int64_t{width} * num_heads_ + behind);
  if (!begin.has_value()) {
    width = width_needed;
    begin = table_.Allocate(int64_t{width} * num_heads_ + behind);
  }
  if (!begin.has_value()) {
    if (old_size > 0) table_.AllocateAt(space->row_begin, old_size);
    return false;
  }
  space->blocks.resize(static_cast<size_t>(width) * num_heads_);
  space->row_begin = *begin;
  space->row_width = width;
  updates->Add(TableRow{space->slot, *begin, width});
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < space->pages[head]; ++i) {
      updates->AddTableWrite(
          {space->TableIndex(head, i), space->blocks[space->BlockIndex(head, i)]});
    }
  }
  return true;
}

// Allocates ids for pages [growing.pages, wanted) of a head.
void CacheSpace::TakePages(const GrowingHead& growing, int32_t wanted, const SequenceSpace& space,
                           int32_t* ids) {
  constexpr int32_t kMostRoom = 16;  // pages: 32 KiB of keys of 64 elements
  if (growing.pages >= wanted) return;
  const int32_t last = growing.pages > 0
                           ? space.blocks[space.BlockIndex(growing.head, growing.pages - 1)].data
                           : BlockAllocator::kNone;
  const int32_t room = std::clamp(space.row_limit - wanted, 0, kMostRoom);
  HYDRANT_CHECK(blocks_.Extend(last, room, {ids, static_cast<size_t>(wanted - growing.pages)}));
}

void CacheSpace::PlacePages(const Growth& growth, SequenceSpace* space, CacheUpdates* updates) {
  taken_.resize(growth.pages);
  int32_t* next = taken_.data();
  TableUpdate* update = updates->AddTableWrites(taken_.size());
  GrowthRing& ring = space->growing;
  bool ordered = growth.in_order;
  for (size_t i = 0; i < growth.heads; ++i) {
    GrowingHead& growing = ring.Next();
    const int head = growing.head;
    const int32_t wanted = PagesWanted(growing, growth);
    TakePages(growing, wanted, *space, next);
    for (; growing.pages < wanted; ++next) {
      const PageIds page = {*next, states_.Take(head, space)};
      space->blocks[space->BlockIndex(head, growing.pages)] = page;
      *update++ = {space->TableIndex(head, growing.pages++), page};
    }
    space->pages[head] = growing.pages;
    if (growing.HasAllPages(limits_.block_size)) ordered = false;  // it must leave the ring
    ring.Advance();
  }
  space->num_pages += growth.pages;
  CountPromise(space);
  if (!ordered) ring.Order(limits_.block_size);
  space->capacity = ring.empty() ? kAnyLength : ring.Next().FullAt(limits_.block_size);
  space->capacity = std::min(space->capacity, PageSharing::OverwritesAfter(*space));
}

void CacheSpace::Cut(const HeadSpan& then, int64_t tokens, SequenceSpace* space) {
  for (int head = 0; head < budget_heads_; ++head) CutHead(head, then, tokens, space);
}

void CacheSpace::Raise(int32_t entries, int64_t tokens, SequenceSpace* space) const {
  for (int head = 0; head < budget_heads_; ++head)
    space->spans[head] = space->spans[head].Raised(tokens, entries);
  space->growing.clear();
  space->capacity = 0;
}

void CacheSpace::WillBeCut(int64_t tokens, SequenceSpace* space) const {
  space->cut_at = tokens;
  space->capacity = std::min(space->capacity, PageSharing::OverwritesAfter(*space));
}

void CacheSpace::CutTo(std::span<const int32_t> keep, int64_t tokens, SequenceSpace* space) {
  for (int head = 0; head < budget_heads_; ++head) {
    HeadSpan then = space->spans[head];
    then.dropped = static_cast<int32_t>(tokens) - keep[head];
    CutHead(head, then, tokens, space);
  }
  // A sequence may have been opened with pages for the prefill of later turns: heads that are not
  // cut would be ahead of the others in the ring.
  for (int head = budget_heads_; head < num_heads_; ++head)
    FreePagesPast(PagesAt(space->spans[head], tokens), head, space);
  CountPromise(space);
  space->cut_at = kAnyLength;
}

void CacheSpace::Cap(std::span<const int32_t> caps, SequenceSpace* space) {
  HYDRANT_CHECK(static_cast<int>(caps.size()) == budget_heads_);
  for (int head = 0; head < budget_heads_; ++head)
    CutHead(head, {.cap = caps[head]}, kAnyLength, space);
}

void CacheSpace::CutHead(int head, const HeadSpan& then, int64_t tokens, SequenceSpace* space) {
  HYDRANT_CHECK(space->shared.empty() || space->shared[head] == 0);
  space->spans[head] = then;
  FreePagesPast(PagesAt(then, tokens), head, space);
  CountPromise(space);
  space->growing.clear();
  space->capacity = 0;
}

void CacheSpace::FreePages(SequenceSpace* space) {
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < space->pages[head]; ++i)
      blocks_.Free(space->blocks[space->BlockIndex(head, i)].data);
  }
  for (const PageIds& page : space->unassigned_pages) blocks_.Free(page.data);
  states_.FreeSlabs(*space);
}

bool CacheSpace::TakePages(const CachePlan& plan, std::span<const int32_t> pages,
                           std::span<const int32_t> shared, const SequenceSpace* other,
                           SequenceSpace* space, CacheUpdates* updates) {
  space->slot = free_slots_.back();
  space->pages.assign(num_heads_, 0);
  const size_t before = updates->list.size();
  updates->Add(SlotSetup{.slot = space->slot, .plan = plan});
  if (!WidenRow(*std::max_element(pages.begin(), pages.end()), space, updates)) {
    updates->list.resize(before);
    *space = SequenceSpace();
    return Lacks(WaitReason::kBlockTables);
  }
  free_slots_.pop_back();
  states_.SetLines(plan, space);
  states_.TakeSlabs(SlabsFor(limits_, plan, states_.PagesWithState(pages)), space);
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t& held = space->pages[head]; held < pages[head]; ++held) {
      PageIds& page = space->blocks[space->BlockIndex(head, held)];
      if (held < shared[head]) {
        page = ShareOf(other->blocks[other->BlockIndex(head, held)], head, space);
      } else {
        HYDRANT_CHECK(blocks_.Allocate(std::span(&page.data, 1)));
        page.state = states_.Take(head, space);
      }
      updates->AddTableWrite({space->TableIndex(head, held), page});
    }
    space->num_pages += space->pages[head];
  }
  sharing_.MarkShared(shared, space);
  CountPromise(space);
  return true;
}

bool CacheSpace::TryFork(const OpenArgs& args, SequenceSpace* from, SequenceSpace* space,
                         CacheUpdates* updates) {
  HYDRANT_CHECK(!space->IsOpen() && from->IsOpen() && from->lengths_known);
  const std::vector<int32_t> shared = sharing_.SharablePages(args, from->spans);
  std::vector<int32_t> pages = from->pages;
  for (int head = 0; head < num_heads_; ++head)
    pages[head] = std::min(pages[head], PagesAt(from->spans[head], args.tokens));
  if (!HasRoomFor(args, WithSlabs(*args.plan, pages),
                  std::accumulate(shared.begin(), shared.end(), int64_t{0})))
    return false;
  space->spans = from->spans;
  Bound(args, space);
  if (!TakePages(*args.plan, pages, shared, from, space, updates)) return false;
  sharing_.MarkShared(shared, from);
  SlotCopies copies = {.slot = space->slot, .state_lines = space->state_lines};
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = states_.HasState(*space, head) ? 0 : shared[head]; i < pages[head]; ++i) {
      PageIds to = space->blocks[space->BlockIndex(head, i)];
      if (i < shared[head]) to.data = kNotCopied;
      if (to.state == kNoState) to.state = kNotCopied;
      copies.pages.push_back({from->blocks[from->BlockIndex(head, i)], to});
    }
  }
  if (!copies.pages.empty()) updates->Add(std::move(copies));
  updates->Add(SlotFork{.slot = space->slot, .from = from->slot});
  return true;
}

void CacheSpace::PackState(SequenceSpace* space, CacheUpdates* updates) {
  if (!space->HasSpareSlab() || !space->unassigned_pages.empty()) return;
  states_.Pack(space, updates);
  CountPromise(space);
}

bool CacheSpace::TryOpenArena(int64_t tokens, SequenceSpace* space) {
  HYDRANT_CHECK(space->IsOpen() && space->arena_tokens == 0);
  const std::optional<int64_t> arena = arena_.Allocate(tokens);
  if (!arena.has_value()) return false;
  space->arena_begin = static_cast<int>(*arena);
  space->arena_tokens = static_cast<int>(tokens);
  return true;
}

void CacheSpace::CloseArena(SequenceSpace* space) {
  if (space->arena_tokens > 0) arena_.Free(space->arena_begin, space->arena_tokens);
  space->arena_tokens = 0;
}

bool CacheSpace::TrySwapOut(const SequenceSpace& space, KeptSpace* kept, CacheUpdates* updates) {
  HYDRANT_CHECK(space.IsOpen() && space.lengths_known && space.unassigned_pages.empty());
  if (!TryReserve(space.spans, space.pages, kept)) return false;
  updates->Add(SwapOut{.slot = space.slot,
                       .kept = kept->kept,
                       .pages = SwapsOf(space, *kept, std::vector<int32_t>(num_heads_, 0), true),
                       .state_lines = space.state_lines});
  return true;
}

bool CacheSpace::TryReserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages,
                            KeptSpace* kept) {
  const int64_t all = std::accumulate(pages.begin(), pages.end(), int64_t{0});
  if (free_kept_.empty() || all > host_pages_.NumFree()) return false;
  kept->kept = free_kept_.back();
  free_kept_.pop_back();
  std::memcpy(kept->key.data(), &++next_kept_, sizeof(next_kept_));
  kept->spans.assign(spans.begin(), spans.end());
  kept->pages.assign(pages.begin(), pages.end());
  kept->host_pages.resize(all);
  HYDRANT_CHECK(host_pages_.Allocate(kept->host_pages));
  return true;
}

std::vector<PageCopy> CacheSpace::SwapsOf(const SequenceSpace& space, const KeptSpace& kept,
                                          std::span<const int32_t> shared, bool out) const {
  std::vector<PageCopy> copies;
  const int32_t* host = kept.host_pages.data();
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < kept.pages[head]; ++i) {
      PageIds there = {host[i], host[i]};
      PageIds here = space.blocks[space.BlockIndex(head, i)];
      if (i < shared[head]) here.data = there.data = kNotCopied;
      if (here.state == kNoState) here.state = there.state = kNotCopied;
      if (here.data == kNotCopied && here.state == kNotCopied) continue;
      copies.push_back(out ? PageCopy{here, there} : PageCopy{there, here});
    }
    host += kept.pages[head];
  }
  return copies;
}

bool CacheSpace::TrySwapIn(const OpenArgs& args, const KeptSpace& kept, SequenceSpace* space,
                           CacheUpdates* updates) {
  HYDRANT_CHECK(!space->IsOpen() && !kept.IsEmpty());
  const std::vector<int32_t> shared = sharing_.SharedOfKept(args, kept);
  if (!HasRoomFor(args, WithSlabs(*args.plan, kept.pages),
                  std::accumulate(shared.begin(), shared.end(), int64_t{0})))
    return false;
  space->spans = kept.spans;
  Bound(args, space);
  if (!TakePages(*args.plan, kept.pages, shared, sharing_.FindPublisher(kept.key), space, updates))
    return false;
  updates->Add(SwapIn{.slot = space->slot,
                      .kept = kept.kept,
                      .pages = SwapsOf(*space, kept, shared, false),
                      .state_lines = space->state_lines});
  if (args.others_may_follow)
    sharing_.Publish({kept.key}, sharing_.SharablePages(args, kept.spans), space);
  return true;
}

void CacheSpace::Drop(KeptSpace* kept) {
  if (kept->IsEmpty()) return;
  for (const int32_t page : kept->host_pages) host_pages_.Free(page);
  free_kept_.push_back(kept->kept);
  *kept = KeptSpace();
}

void CacheSpace::Release(SequenceSpace* space) {
  if (!space->IsOpen()) return;
  sharing_.Unpublish(space);
  CloseArena(space);
  FreePages(space);
  promised_pages_ -= space->promised_pages;
  table_.Free(space->row_begin, EntriesOf(*space));
  free_slots_.push_back(space->slot);
  *space = SequenceSpace();
}

}  // namespace hydrant
