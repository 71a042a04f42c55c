#include "engine/cache/cache_space.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/check.h"
#include "kernels/kv_pages.h"

namespace hydrant {

namespace {

// A row gets room for more, so that a growing sequence moves a logarithmic number of times, each of
// which sends all of its ids anew. Where the table has plenty, most never move.
int32_t RoomyWidth(int32_t needed, int32_t limit, bool plenty) {
  const int32_t width = plenty ? std::max(4 * needed, 64) : needed + needed / 2 + 2;
  return std::min(limit, width);
}

// A head of a layer with a window.
HeadSpan InWindow(const EngineLimits& limits, const CachePlan& plan) {
  const auto tokens = static_cast<int32_t>(plan.prompt.tokens);
  return {.dropped = std::max(0, tokens - limits.window), .cap = limits.window};
}

// The most pages that a head has held when its sequence has seen `tokens`.
int64_t WidestHead(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  const int64_t full = limits.FullLayers() > 0 ? plan.MostUntil(tokens) : 0;
  const int64_t windowed = limits.window_layers > 0 ? InWindow(limits, plan).MostUntil(tokens) : 0;
  return PagesOf(std::max(full, windowed), limits.block_size);
}

}  // namespace

CacheSpace::CacheSpace(const EngineLimits& limits, std::optional<uint64_t> shuffle_seed)
    : limits_(limits),
      num_heads_(limits.num_layers * limits.num_kv_heads),
      full_heads_(limits.FullLayers() * limits.num_kv_heads),
      blocks_(limits.num_blocks, shuffle_seed),
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
    if (head + 1 == full_heads_) of_state = missing;
  }
  missing += SlabsMissing(space, of_state);
  return std::max<int64_t>(0, missing + CopiesBefore(tokens, space) - space.promised_pages);
}

int64_t CacheSpace::PagesFor(const EngineLimits& limits, const CachePlan& plan, int64_t tokens) {
  const int64_t windowed = PagesOf(InWindow(limits, plan).MostUntil(tokens), limits.block_size);
  const int64_t pages = plan.life->PagesUntil(plan, tokens, limits.block_size);
  return pages + SlabsFor(limits, plan, pages) +
         windowed * limits.window_layers * limits.num_kv_heads;
}

double CacheSpace::LikelyPages(const CachePlan& plan, int64_t tokens) const {
  const auto most = static_cast<double>(PagesFor(plan, tokens));
  if (limits_.FullLayers() == 0 || !plan.life->ReportsPrompt()) return most;
  // A head's last page is half full.
  const double pages =
      full_heads_ * (plan.MeanEntriesAfter(tokens) / static_cast<double>(limits_.block_size) + 0.5);
  const auto slabs = static_cast<double>(SlabsFor(limits_, plan, std::llround(pages)));
  const auto windowed =
      static_cast<double>(PagesOf(InWindow(limits_, plan).MostUntil(tokens), limits_.block_size) *
                          (num_heads_ - full_heads_));
  return std::min(most, pages + slabs + windowed);
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
  const int layer = head / limits.num_kv_heads;
  if (layer >= limits.FullLayers()) return InWindow(limits, plan);
  const int64_t ends = plan.life->OpeningEnds(plan);
  if (tokens <= ends && !plan.life->ReportsPrompt()) return plan.life->Opening(plan, layer);
  if (plan.life->HeadsDiffer(plan)) return std::nullopt;
  return plan.life->CutAfter(plan, ends).then;
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

bool CacheSpace::HasRoomFor(const OpenArgs& args, int64_t pages, int64_t shared) {
  if (free_slots_.empty()) return Lacks(WaitReason::kMaxNumSeqs);
  if (args.promised != nullptr)
    pages = std::max(pages, PagesFor(*args.promised, args.final_tokens));
  if (pages - shared + args.pages_kept_free > NumUnpromisedPages())
    return Lacks(WaitReason::kPages);
  return true;
}

// After every change of num_pages.
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
    if (head + 1 == full_heads_) of_state = most;
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
  const int32_t shared = NumSharedOfPrompt(args);
  if (!HasRoomFor(args, PagesFor(plan, args.tokens), int64_t{shared} * full_heads_)) return false;
  const std::optional<int64_t> arena =
      args.prompt_tokens > 0 ? arena_.Allocate(args.prompt_tokens) : 0;
  if (!arena.has_value()) return Lacks(WaitReason::kPrefillArena);

  space->spans.resize(num_heads_);
  for (int head = 0; head < full_heads_; ++head)
    space->spans[head] = plan.life->Opening(plan, head / limits_.num_kv_heads);
  std::fill(space->spans.begin() + full_heads_, space->spans.end(), InWindow(limits_, plan));
  space->pages.assign(num_heads_, 0);
  space->row_width = 0;
  Bound(args, space);
  space->slot = free_slots_.back();
  space->lengths_known = !plan.life->ReportsPrompt();
  SetStateLines(plan, space);
  const size_t before = updates->list.size();
  updates->Add(SlotSetup{.slot = space->slot,
                         .plan = plan,
                         .shared_tokens = shared * limits_.block_size,
                         .unassigned_pages = static_cast<int32_t>(
                             plan.life->UnassignedPages(plan, limits_.block_size))});
  if (shared > 0) TakePrefixPages(args, shared, space);
  // What is cut on the way, or reported, grows on afterwards.
  const int64_t tokens = std::min(args.tokens, plan.life->OpeningEnds(plan));
  const bool placed = plan.life->UnassignedPages(plan, limits_.block_size) > 0
                          ? TakeUnassignedPages(plan, tokens, space, updates)
                          : TryGrow(tokens, space, updates);
  if (!placed) {  // only table space can lack here
    updates->list.resize(before);
    Unpublish(space);
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

// The ids lie behind the rows until the engine assigns them; those of layers with a window are
// their heads' own.
bool CacheSpace::TakeUnassignedPages(const CachePlan& plan, int64_t tokens, SequenceSpace* space,
                                     CacheUpdates* updates) {
  int32_t row_width =
      static_cast<int32_t>(PagesOf(plan.life->WidestKeep(plan), limits_.block_size));
  for (int head = full_heads_; head < num_heads_; ++head)
    row_width = std::max(row_width, PagesAt(space->spans[head], tokens));
  std::vector<PageIds>& pages = space->unassigned_pages;
  pages.resize(plan.life->UnassignedPages(plan, limits_.block_size));
  TakeSlabs(SlabsMissing(*space, static_cast<int64_t>(pages.size())), space);
  taken_.resize(pages.size());
  HYDRANT_CHECK(blocks_.Allocate(taken_));
  // The last is assigned first.
  for (size_t i = pages.size(); i-- > 0;)
    pages[i] = {taken_[taken_.size() - 1 - i], TakeState(0, space)};
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
  for (int head = 0; head < full_heads_; ++head) {
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

void CacheSpace::FreePagesPast(int32_t held, int head, SequenceSpace* space) {
  for (int32_t& pages = space->pages[head]; pages > held;)
    FreePage(space->blocks[space->BlockIndex(head, --pages)], space);
}

void CacheSpace::SetKept(const CachePlan& plan, std::span<const int32_t> entries,
                         std::span<const PageIds> pages, SequenceSpace* space) {
  HYDRANT_CHECK(!space->lengths_known && static_cast<int>(entries.size()) == full_heads_);
  if (!space->unassigned_pages.empty()) AssignPages(entries, pages, space);
  for (int head = 0; head < full_heads_; ++head) {
    space->spans[head] = plan.Keeping(entries[head]);
    FreePagesPast(static_cast<int32_t>(PagesOf(entries[head], limits_.block_size)), head, space);
  }
  CountPromise(space);
  space->lengths_known = true;
  space->growing.clear();
  space->capacity = 0;
}

// Heads that have no pages of their own yet do not grow.
void CacheSpace::ListGrowingHeads(SequenceSpace* space) const {
  for (int head = space->unassigned_pages.empty() ? 0 : full_heads_; head < num_heads_; ++head)
    space->growing.push_back({head, space->pages[head], space->spans[head]});
  space->next_growing = 0;
  space->capacity = -limits_.block_size;  // in no order: any of them may have filled its pages
}

// Leaves out those that have all pages they will need. REQUIRES: all others have room for what was
// seen, and for less than a page more.
void CacheSpace::OrderGrowingHeads(SequenceSpace* space) const {
  std::vector<GrowingHead>& heads = space->growing;
  std::erase_if(heads, [&](const GrowingHead& growing) { return HasAllPages(growing); });
  std::sort(heads.begin(), heads.end(), [&](const GrowingHead& a, const GrowingHead& b) {
    return std::pair(FullAt(a), a.head) < std::pair(FullAt(b), b.head);
  });
  HYDRANT_CHECK(heads.empty() || FullAt(heads.back()) < FullAt(heads.front()) + limits_.block_size);
  space->next_growing = 0;
}

CacheSpace::Growth CacheSpace::GrowthTo(int64_t tokens, const SequenceSpace& space) const {
  Growth growth = {.tokens = tokens, .in_order = tokens <= space.capacity + limits_.block_size};
  const size_t size = space.growing.size();
  for (size_t at = space.next_growing; growth.heads < size; ++growth.heads) {
    const GrowingHead& growing = space.growing[at];
    if (growth.in_order && FullAt(growing) >= tokens) break;
    const int32_t wanted = PagesWanted(growing, growth);
    const int32_t lacking = std::max(0, wanted - growing.pages);
    growth.pages += lacking;
    if (HasState(space, growing.head)) growth.of_state += lacking;
    growth.row_width = std::max(growth.row_width, wanted);
    at = at + 1 == size ? 0 : at + 1;
  }
  return growth;
}

// The first lines of those that come next: where heads differ, few grow in a step.
void CacheSpace::PrefetchGrowingHeads(const SequenceSpace& space) {
  constexpr int kLine = 64, kLines = 6;
  const auto* next = reinterpret_cast<const char*>(space.growing.data() + space.next_growing);
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(next + i * kLine);
}

// Where heads differ, each writes to other cache lines; many at once write to a few runs of memory.
void CacheSpace::PrefetchGrowth(int64_t tokens, const SequenceSpace& space) const {
  if (tokens <= space.capacity) return;
  constexpr int kMost = 32;
  const size_t size = space.growing.size();
  if (size == 0) return;
  size_t at = space.next_growing;
  for (int left = kMost; left > 0 && FullAt(space.growing[at]) < tokens; --left) {
    const GrowingHead& growing = space.growing[at];
    __builtin_prefetch(space.pages.data() + growing.head, 1);
    const auto* const blocks = space.blocks.data();
    if (growing.pages > 0)
      __builtin_prefetch(blocks + space.BlockIndex(growing.head, growing.pages - 1));
    if (growing.pages < space.row_width)
      __builtin_prefetch(blocks + space.BlockIndex(growing.head, growing.pages), 1);
    at = at + 1 == size ? 0 : at + 1;
  }
}

bool CacheSpace::TryGrow(int64_t tokens, SequenceSpace* space, CacheUpdates* updates) {
  if (tokens <= space->capacity) return true;
  if (space->growing.empty()) ListGrowingHeads(space);
  const Growth growth = GrowthTo(tokens, *space);
  const int64_t slabs = SlabsMissing(*space, growth.of_state);
  if (growth.pages + slabs + CopiesBefore(tokens, *space) >
      NumUnpromisedPages() + space->promised_pages)
    return false;
  if (growth.row_width > space->row_width && !WidenRow(growth.row_width, space, updates))
    return false;
  if (tokens > OverwritesAfter(*space)) CopyShared(tokens, space, updates);
  if (slabs > 0) TakeSlabs(slabs, space);
  PlacePages(growth, space, updates);
  return true;
}

// Moves the rows to a wider place, perhaps over the old one: the engine then gets every id anew, so
// the old place may be given up first.
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

// Ids for pages [growing.pages, wanted) of a head.
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
  std::vector<GrowingHead>& heads = space->growing;
  bool ordered = growth.in_order;
  for (size_t i = 0; i < growth.heads; ++i) {
    GrowingHead& growing = heads[space->next_growing];
    const int head = growing.head;
    const int32_t wanted = PagesWanted(growing, growth);
    TakePages(growing, wanted, *space, next);
    for (; growing.pages < wanted; ++next) {
      const PageIds page = {*next, TakeState(head, space)};
      space->blocks[space->BlockIndex(head, growing.pages)] = page;
      *update++ = {space->TableIndex(head, growing.pages++), page};
    }
    space->pages[head] = growing.pages;
    if (HasAllPages(growing)) ordered = false;  // it is to leave the ring
    space->next_growing = space->next_growing + 1 == heads.size() ? 0 : space->next_growing + 1;
  }
  space->num_pages += growth.pages;
  CountPromise(space);
  if (!ordered) OrderGrowingHeads(space);
  space->capacity = heads.empty() ? kAnyLength : FullAt(heads[space->next_growing]);
  space->capacity = std::min(space->capacity, OverwritesAfter(*space));
}

void CacheSpace::Cut(const HeadSpan& then, int64_t tokens, SequenceSpace* space) {
  for (int head = 0; head < full_heads_; ++head) CutHead(head, then, tokens, space);
}

void CacheSpace::Raise(int32_t entries, int64_t tokens, SequenceSpace* space) const {
  for (int head = 0; head < full_heads_; ++head)
    space->spans[head] = space->spans[head].Raised(tokens, entries);
  space->growing.clear();
  space->capacity = 0;
}

void CacheSpace::WillBeCut(int64_t tokens, SequenceSpace* space) const {
  space->cut_at = tokens;
  space->capacity = std::min(space->capacity, OverwritesAfter(*space));
}

void CacheSpace::CutTo(std::span<const int32_t> keep, int64_t tokens, SequenceSpace* space) {
  for (int head = 0; head < full_heads_; ++head) {
    HeadSpan then = space->spans[head];
    then.dropped = static_cast<int32_t>(tokens) - keep[head];
    CutHead(head, then, tokens, space);
  }
  space->cut_at = kAnyLength;
}

void CacheSpace::Cap(std::span<const int32_t> caps, SequenceSpace* space) {
  HYDRANT_CHECK(static_cast<int>(caps.size()) == full_heads_);
  for (int head = 0; head < full_heads_; ++head)
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
  for (const int32_t slab : space->slabs) blocks_.Free(slab);
  num_slabs_ -= static_cast<int64_t>(space->slabs.size());
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
  const std::vector<int32_t> shared = SharedOfKept(args, kept);
  if (!HasRoomFor(args, WithSlabs(*args.plan, kept.pages),
                  std::accumulate(shared.begin(), shared.end(), int64_t{0})))
    return false;
  space->spans = kept.spans;
  Bound(args, space);
  if (!TakePages(*args.plan, kept.pages, shared, FindPublisher(kept.key), space, updates))
    return false;
  updates->Add(SwapIn{.slot = space->slot,
                      .kept = kept.kept,
                      .pages = SwapsOf(*space, kept, shared, false),
                      .state_lines = space->state_lines});
  if (args.others_may_follow) PublishAs({kept.key}, SharablePages(args, kept.spans), space);
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
  Unpublish(space);
  CloseArena(space);
  FreePages(space);
  promised_pages_ -= space->promised_pages;
  table_.Free(space->row_begin, EntriesOf(*space));
  free_slots_.push_back(space->slot);
  *space = SequenceSpace();
}

}  // namespace hydrant
