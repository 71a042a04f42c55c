// The part of CacheSpace by which sequences own pages together: who publishes which, who may share
// them, and when a head gets pages of its own.
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/cache/cache_space.h"
#include "kernels/check.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {
namespace {

// Every head keeps the whole prompt, entry by entry in its order, and leaves what is there as it is
// until so many tokens have been seen.
bool KeepsPromptInOrder(const CachePlan& plan, int64_t until) {
  if (!plan.LeavesEntries() || plan.life->ReportsPrompt() || plan.life->CutsWithoutCaps())
    return false;
  for (int layer = 0; layer < plan.prompt.num_layers; ++layer) {
    const HeadSpan span = plan.life->Opening(plan, layer);
    if (span.dropped > 0 || until > span.cap) return false;
  }
  return true;
}

}  // namespace

PageIds CacheSpace::ShareOf(PageIds others, int head, SequenceSpace* space) {
  blocks_.Share(others.data);
  return {others.data, TakeState(head, space)};
}

int64_t CacheSpace::OverwritesAfter(const SequenceSpace& space) const {
  int64_t after = kAnyLength;
  for (int head = 0; head < static_cast<int>(space.shared.size()); ++head) {
    if (space.shared[head] > 0) after = std::min(after, OverwritesAfter(space, head));
  }
  return after;
}

int64_t CacheSpace::CopiesBefore(int64_t tokens, const SequenceSpace& space) const {
  if (tokens <= OverwritesAfter(space)) return 0;
  int64_t copies = 0;
  for (int head = 0; head < num_heads_; ++head) {
    if (tokens <= OverwritesAfter(space, head)) continue;
    for (int32_t i = 0; i < space.shared[head]; ++i)
      copies += blocks_.IsShared(space.blocks[space.BlockIndex(head, i)].data) ? 1 : 0;
  }
  return copies;
}

// Of the heads that are to overwrite an entry by then: pages that have another owner stay the
// other's. REQUIRES: there are as many free pages
void CacheSpace::CopyShared(int64_t tokens, SequenceSpace* space, CacheUpdates* updates) {
  SlotCopies copies = {.slot = space->slot};
  for (int head = 0; head < num_heads_; ++head) {
    if (tokens <= OverwritesAfter(*space, head)) continue;
    const int32_t shared = std::exchange(space->shared[head], 0);
    for (int32_t i = 0; i < shared; ++i) {
      PageIds& page = space->blocks[space->BlockIndex(head, i)];
      if (!blocks_.IsShared(page.data)) continue;
      const int32_t others = page.data;
      HYDRANT_CHECK(blocks_.Allocate(std::span(&page.data, 1)));
      copies.pages.push_back({{others, kNotCopied}, {page.data, kNotCopied}});
      updates->AddTableWrite({space->TableIndex(head, i), page});
      blocks_.Free(others);
    }
  }
  Unpublish(space);
  if (!copies.pages.empty()) updates->Add(std::move(copies));
}

int32_t CacheSpace::PagesAPrefixBlock() const {
  return kPrefixBlockTokens % limits_.block_size == 0 ? kPrefixBlockTokens / limits_.block_size : 0;
}

const SequenceSpace* CacheSpace::FindPublisher(const PrefixKey& key) const {
  const auto it = publishers_.find(key);
  return it == publishers_.end() ? nullptr : it->second;
}

void CacheSpace::PublishAs(std::vector<PrefixKey> keys, std::span<const int32_t> pages,
                           SequenceSpace* space) {
  if (std::all_of(pages.begin(), pages.end(), [](int32_t count) { return count == 0; })) return;
  for (const PrefixKey& key : keys) publishers_.emplace(key, space);
  space->published = std::move(keys);
  MarkShared(pages, space);
}

// The first pages of its heads may have other owners from now on.
void CacheSpace::MarkShared(std::span<const int32_t> pages, SequenceSpace* space) const {
  if (std::all_of(pages.begin(), pages.end(), [](int32_t count) { return count == 0; })) return;
  space->shared.resize(num_heads_, 0);
  for (int head = 0; head < num_heads_; ++head)
    space->shared[head] = std::max(space->shared[head], pages[head]);
  space->capacity = std::min(space->capacity, OverwritesAfter(*space));
}

void CacheSpace::Unpublish(SequenceSpace* space) {
  for (const PrefixKey& key : std::exchange(space->published, {})) {
    const auto [begin, end] = publishers_.equal_range(key);
    const auto is_its = [space](const auto& entry) { return entry.second == space; };
    publishers_.erase(std::find_if(begin, end, is_its));
  }
}

void CacheSpace::Publish(const CachePlan& plan, int64_t tokens, std::span<const PrefixKey> keys,
                         SequenceSpace* space) {
  if (!KeepsPromptInOrder(plan, std::max(plan.prompt.tokens + 1, space->promised_tokens))) return;
  const auto pages = static_cast<int32_t>(keys.size()) * PagesAPrefixBlock();
  std::vector<int32_t> of_heads(num_heads_, 0);
  for (int head = 0; head < full_heads_; ++head) {
    if (tokens > OverwritesAfter(*space, head)) return;
    of_heads[head] = pages;
  }
  Unpublish(space);
  PublishAs({keys.begin(), keys.end()}, of_heads, space);
}

// Pages of each head that a prompt shares with those who have published its first blocks.
int32_t CacheSpace::NumSharedOfPrompt(const OpenArgs& args) const {
  if (args.prefix.empty() || PagesAPrefixBlock() == 0 ||
      !KeepsPromptInOrder(*args.plan, args.SharesUntil(args.plan->prompt.tokens)))
    return 0;
  const auto unknown = [&](const PrefixKey& key) { return FindPublisher(key) == nullptr; };
  const auto end = std::find_if(args.prefix.begin(), args.prefix.end(), unknown);
  return static_cast<int32_t>(end - args.prefix.begin()) * PagesAPrefixBlock();
}

std::vector<int32_t> CacheSpace::SharedOfKept(const OpenArgs& args, const KeptSpace& kept) const {
  // Another turn may cut the heads, or raise their caps.
  if (FindPublisher(kept.key) == nullptr || args.promised != nullptr)
    return std::vector<int32_t>(num_heads_, 0);
  return SharablePages(args, kept.spans);
}

int64_t CacheSpace::NumSharedWhenOpened(const OpenArgs& args, const KeptSpace& kept) const {
  const std::vector<int32_t> shared = SharedOfKept(args, kept);
  return std::accumulate(shared.begin(), shared.end(), int64_t{0});
}

void CacheSpace::TakePrefixPages(const OpenArgs& args, int32_t pages, SequenceSpace* space) {
  const int32_t pages_a_block = PagesAPrefixBlock();
  HYDRANT_CHECK(pages_a_block > 0);
  TakeSlabs(SlabsMissing(*space, int64_t{pages} * full_heads_), space);
  space->blocks.resize(static_cast<size_t>(pages) * num_heads_);
  for (int32_t i = 0; i < pages; ++i) {
    const SequenceSpace* publisher = FindPublisher(args.prefix[i / pages_a_block]);
    for (int head = 0; head < full_heads_; ++head) {
      space->blocks[space->BlockIndex(head, i)] =
          ShareOf(publisher->blocks[publisher->BlockIndex(head, i)], head, space);
    }
  }
  std::fill_n(space->pages.begin(), full_heads_, pages);
  space->num_pages += int64_t{pages} * full_heads_;
  const auto blocks = args.prefix.first(pages / pages_a_block);
  PublishAs({blocks.begin(), blocks.end()}, space->pages, space);
}

std::vector<int32_t> CacheSpace::SharablePages(const OpenArgs& args,
                                               std::span<const HeadSpan> spans) const {
  std::vector<int32_t> pages(num_heads_, 0);
  if (!args.plan->LeavesEntries() || args.plan->life->CutsWithoutCaps()) return pages;
  for (int head = 0; head < num_heads_; ++head) {
    const HeadSpan& span = spans[head];
    // One that drops entries many at a time is below its cap after each cut, but has been at it.
    if (args.SharesUntil(args.tokens) - span.dropped > span.cap) continue;
    pages[head] = span.EntriesAfter(args.tokens) / limits_.block_size;
  }
  return pages;
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
  SetStateLines(plan, space);
  TakeSlabs(SlabsFor(limits_, plan, PagesOfState(pages)), space);
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t& held = space->pages[head]; held < pages[head]; ++held) {
      PageIds& page = space->blocks[space->BlockIndex(head, held)];
      if (held < shared[head]) {
        page = ShareOf(other->blocks[other->BlockIndex(head, held)], head, space);
      } else {
        HYDRANT_CHECK(blocks_.Allocate(std::span(&page.data, 1)));
        page.state = TakeState(head, space);
      }
      updates->AddTableWrite({space->TableIndex(head, held), page});
    }
    space->num_pages += space->pages[head];
  }
  MarkShared(shared, space);
  CountPromise(space);
  return true;
}

bool CacheSpace::TryFork(const OpenArgs& args, SequenceSpace* from, SequenceSpace* space,
                         CacheUpdates* updates) {
  HYDRANT_CHECK(!space->IsOpen() && from->IsOpen() && from->lengths_known);
  const std::vector<int32_t> shared = SharablePages(args, from->spans);
  std::vector<int32_t> pages = from->pages;
  for (int head = 0; head < num_heads_; ++head)
    pages[head] = std::min(pages[head], PagesAt(from->spans[head], args.tokens));
  if (!HasRoomFor(args, WithSlabs(*args.plan, pages),
                  std::accumulate(shared.begin(), shared.end(), int64_t{0})))
    return false;
  space->spans = from->spans;
  Bound(args, space);
  if (!TakePages(*args.plan, pages, shared, from, space, updates)) return false;
  MarkShared(shared, from);
  SlotCopies copies = {.slot = space->slot, .state_lines = space->state_lines};
  for (int head = 0; head < num_heads_; ++head) {
    for (int32_t i = HasState(*space, head) ? 0 : shared[head]; i < pages[head]; ++i) {
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

}  // namespace hydrant
