#include "scheduler/cache_space.h"

#include <algorithm>
#include <limits>

#include "scheduler/check.h"

namespace hydrant {

namespace {

constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();
constexpr int32_t kNoPageLimit = std::numeric_limits<int32_t>::max();

// A row gets room for half as much again, so that a growing sequence moves a logarithmic number of
// times.
int32_t RoomyWidth(int32_t needed, int32_t limit) {
  return std::min<int32_t>(limit, needed + needed / 2 + 2);
}

}  // namespace

CacheSpace::CacheSpace(const EngineLimits& limits)
    : limits_(limits),
      num_heads_(limits.num_layers * limits.num_kv_heads),
      blocks_(limits.num_blocks),
      table_(limits.table_entries),
      arena_(limits.prefill_arena_tokens) {
  for (int slot = limits.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

int64_t CacheSpace::PagesFor(const CachePlan& plan, int64_t tokens) const {
  return num_heads_ * PagesOfHead(plan.MostUntil(tokens));
}

// ceil(min(entries, cap) / block_size) = min of the two quotients: one division a call, not one a
// head.
int64_t CacheSpace::PagesMissing(const SequenceSpace& space, int64_t tokens) const {
  if (tokens <= space.capacity) return 0;
  const auto wanted = static_cast<int32_t>(PagesOfHead(tokens - space.dropped));
  int64_t missing = 0;
  for (int head = 0; head < num_heads_; ++head) {
    missing += std::max(0, std::min(wanted, space.page_limits[head]) - space.pages[head]);
  }
  return missing;
}

int64_t CacheSpace::MaxTokensAlone(const EngineLimits& limits, const CachePlan& plan) {
  const int64_t heads = static_cast<int64_t>(limits.num_layers) * limits.num_kv_heads;
  const int64_t pages = std::min<int64_t>(limits.num_blocks, limits.table_entries) / heads;
  const int64_t entries = pages * limits.block_size;
  return plan.cap <= entries && plan.whole_until <= entries ? kAnyLength : entries + plan.dropped;
}

bool CacheSpace::TryOpen(const OpenArgs& args, SequenceSpace* space, Batch* batch) {
  HYDRANT_CHECK(!space->IsOpen());
  const int64_t pages = PagesFor(*args.plan, args.tokens);
  if (free_slots_.empty() || pages + args.pages_kept_free > blocks_.NumFree()) return false;
  const std::optional<int64_t> arena = arena_.Allocate(args.prompt_tokens);
  if (!arena.has_value()) return false;

  // What shrinks later is whole until then.
  const int32_t cap = args.plan->whole_until > 0 ? kNoCap : args.plan->cap;
  space->page_limits.assign(num_heads_, static_cast<int32_t>(PagesOfHead(cap)));
  space->pages.assign(num_heads_, 0);
  space->dropped = args.plan->dropped;
  space->row_width = 0;
  space->row_limit = static_cast<int32_t>(PagesOfHead(args.plan->MostUntil(args.final_tokens)));
  space->slot = free_slots_.back();
  batch->setups.push_back({space->slot, *args.plan});
  // What shrinks on the way has to be whole first.
  const int64_t whole_until = args.plan->whole_until;
  const int64_t tokens = whole_until > 0 ? std::min(args.tokens, whole_until) : args.tokens;
  if (!TryGrow(tokens, space, batch)) {  // only table space can lack here
    batch->setups.pop_back();
    space->slot = -1;
    arena_.Free(*arena, args.prompt_tokens);
    return false;
  }
  free_slots_.pop_back();
  space->arena_begin = static_cast<int>(*arena);
  space->arena_tokens = static_cast<int>(args.prompt_tokens);
  return true;
}

bool CacheSpace::TryGrow(int64_t tokens, SequenceSpace* space, Batch* batch) {
  if (tokens <= space->capacity) return true;
  const int64_t missing = PagesMissing(*space, tokens);
  if (missing > blocks_.NumFree()) return false;
  const auto wanted = static_cast<int32_t>(PagesOfHead(tokens - space->dropped));
  if (wanted > space->row_width) {
    const int32_t width =
        std::min(wanted, *std::max_element(space->page_limits.begin(), space->page_limits.end()));
    if (width > space->row_width && !WidenRow(width, space, batch)) return false;
  }
  PlacePages(wanted, missing, space, batch);
  return true;
}

// Moves the rows to a wider place, perhaps over the old one: the engine then gets every id anew, so
// the old place may be given up first.
bool CacheSpace::WidenRow(int32_t width_needed, SequenceSpace* space, Batch* batch) {
  const int32_t old_width = space->row_width;
  const int64_t old_size = static_cast<int64_t>(old_width) * num_heads_;
  if (old_size > 0) table_.Free(space->row_begin, old_size);
  const int32_t limit = std::max(space->row_limit, width_needed);
  int32_t width = RoomyWidth(width_needed, limit);
  std::optional<int64_t> begin = table_.Allocate(static_cast<int64_t>(width) * num_heads_);
  if (!begin.has_value()) {
    width = width_needed;
    begin = table_.Allocate(static_cast<int64_t>(width) * num_heads_);
  }
  if (!begin.has_value()) {
    if (old_size > 0) table_.AllocateAt(space->row_begin, old_size);
    return false;
  }
  space->blocks.resize(static_cast<size_t>(width) * num_heads_, -1);
  space->row_begin = *begin;
  space->row_width = width;
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < space->pages[head]; ++i) {
      batch->updates.push_back(
          {space->TableIndex(head, i), space->blocks[space->BlockIndex(head, i)]});
    }
  }
  batch->rows.push_back({space->slot, *begin, width});
  return true;
}

void CacheSpace::PlacePages(int32_t wanted, int64_t missing, SequenceSpace* space, Batch* batch) {
  taken_.resize(missing);
  HYDRANT_CHECK(blocks_.Allocate(taken_));
  const int32_t* next = taken_.data();
  int32_t least_growing = kNoPageLimit;  // pages of the heads below their caps
  for (int head = 0; head < num_heads_; ++head) {
    int32_t& held = space->pages[head];
    const int32_t limit = space->page_limits[head];
    for (; held < std::min(wanted, limit); ++held) {
      space->blocks[space->BlockIndex(head, held)] = *next;
      batch->updates.push_back({space->TableIndex(head, held), *next++});
    }
    if (held < limit) least_growing = std::min(least_growing, held);
  }
  space->capacity = least_growing == kNoPageLimit
                        ? kAnyLength
                        : static_cast<int64_t>(least_growing) * limits_.block_size + space->dropped;
  space->num_pages += missing;
}

void CacheSpace::Shrink(int32_t cap, SequenceSpace* space) {
  const auto limit = static_cast<int32_t>(PagesOfHead(cap));
  for (int head = 0; head < num_heads_; ++head) {
    space->page_limits[head] = limit;
    for (int32_t& held = space->pages[head]; held > limit; --space->num_pages) {
      blocks_.Free(space->blocks[space->BlockIndex(head, --held)]);
    }
  }
  space->capacity = 0;  // TryGrow finds it anew
}

void CacheSpace::CloseArena(SequenceSpace* space) {
  if (space->arena_tokens > 0) arena_.Free(space->arena_begin, space->arena_tokens);
  space->arena_tokens = 0;
}

void CacheSpace::Release(SequenceSpace* space) {
  if (!space->IsOpen()) return;
  CloseArena(space);
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = 0; i < space->pages[head]; ++i) {
      blocks_.Free(space->blocks[space->BlockIndex(head, i)]);
    }
  }
  table_.Free(space->row_begin, static_cast<int64_t>(space->row_width) * num_heads_);
  free_slots_.push_back(space->slot);
  *space = SequenceSpace();
}

}  // namespace hydrant
