#include "engine/cache/page_sharing.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {
namespace {

// Whether every head keeps the whole prompt, entries in order, and changes none of them until
// `until` tokens have been seen.
bool KeepsPromptInOrder(const CachePlan& plan, int64_t until) {
  if (!plan.LeavesEntries() || plan.life->ReportsPrompt() || plan.life->CutsWithoutCaps())
    return false;
  for (int layer = 0; layer < plan.prompt.num_layers; ++layer) {
    const HeadSpan span = plan.life->Opening(plan, layer);
    if (span.dropped > 0 || until > span.cap) return false;
  }
  return true;
}

bool AreNone(std::span<const int32_t> pages) {
  return std::all_of(pages.begin(), pages.end(), [](int32_t count) { return count == 0; });
}

}  // namespace

int64_t PageSharing::OverwritesAfter(const SequenceSpace& space, int head) {
  const HeadSpan& span = space.spans[head];
  const int64_t full = span.cap == kNoCap ? kAnyLength : int64_t{span.dropped} + span.cap;
  return std::min(full, space.cut_at - 1);
}

int64_t PageSharing::OverwritesAfter(const SequenceSpace& space) {
  int64_t after = kAnyLength;
  for (int head = 0; head < static_cast<int>(space.shared.size()); ++head) {
    if (space.shared[head] > 0) after = std::min(after, OverwritesAfter(space, head));
  }
  return after;
}

int64_t PageSharing::CopiesBefore(int64_t tokens, const SequenceSpace& space) const {
  if (tokens <= OverwritesAfter(space)) return 0;
  int64_t copies = 0;
  for (int head = 0; head < num_heads_; ++head) {
    if (tokens <= OverwritesAfter(space, head)) continue;
    for (int32_t i = 0; i < space.shared[head]; ++i)
      copies += blocks_->IsShared(space.blocks[space.BlockIndex(head, i)].data) ? 1 : 0;
  }
  return copies;
}

void PageSharing::CopyShared(int64_t tokens, SequenceSpace* space, CacheUpdates* updates) {
  SlotCopies copies = {.slot = space->slot};
  for (int head = 0; head < num_heads_; ++head) {
    if (tokens <= OverwritesAfter(*space, head)) continue;
    const int32_t shared = std::exchange(space->shared[head], 0);
    for (int32_t i = 0; i < shared; ++i) {
      PageIds& page = space->blocks[space->BlockIndex(head, i)];
      if (!blocks_->IsShared(page.data)) continue;
      const int32_t others = page.data;
      HYDRANT_CHECK(blocks_->Allocate(std::span(&page.data, 1)));
      copies.pages.push_back({{others, kNotCopied}, {page.data, kNotCopied}});
      updates->AddTableWrite({space->TableIndex(head, i), page});
      blocks_->Free(others);
    }
  }
  Unpublish(space);
  if (!copies.pages.empty()) updates->Add(std::move(copies));
}

int32_t PageSharing::PagesAPrefixBlock() const {
  return kPrefixBlockTokens % block_size_ == 0 ? kPrefixBlockTokens / block_size_ : 0;
}

const SequenceSpace* PageSharing::FindPublisher(const PrefixKey& key) const {
  const auto it = publishers_.find(key);
  return it == publishers_.end() ? nullptr : it->second;
}

void PageSharing::Publish(std::vector<PrefixKey> keys, std::span<const int32_t> pages,
                          SequenceSpace* space) {
  if (AreNone(pages)) return;
  for (const PrefixKey& key : keys) publishers_.emplace(key, space);
  space->published = std::move(keys);
  MarkShared(pages, space);
}

void PageSharing::MarkShared(std::span<const int32_t> pages, SequenceSpace* space) const {
  if (AreNone(pages)) return;
  space->shared.resize(num_heads_, 0);
  for (int head = 0; head < num_heads_; ++head)
    space->shared[head] = std::max(space->shared[head], pages[head]);
  space->capacity = std::min(space->capacity, OverwritesAfter(*space));
}

void PageSharing::Unpublish(SequenceSpace* space) {
  for (const PrefixKey& key : std::exchange(space->published, {})) {
    const auto [begin, end] = publishers_.equal_range(key);
    const auto is_its = [space](const auto& entry) { return entry.second == space; };
    publishers_.erase(std::find_if(begin, end, is_its));
  }
}

void PageSharing::PublishPrompt(const CachePlan& plan, int64_t tokens,
                                std::span<const PrefixKey> keys, SequenceSpace* space) {
  if (!KeepsPromptInOrder(plan, std::max(plan.prompt.tokens + 1, space->promised_tokens))) return;
  const auto pages = static_cast<int32_t>(keys.size()) * PagesAPrefixBlock();
  std::vector<int32_t> of_heads(num_heads_, 0);
  for (int head = 0; head < budget_heads_; ++head) {
    if (tokens > OverwritesAfter(*space, head)) return;
    of_heads[head] = pages;
  }
  Unpublish(space);
  Publish({keys.begin(), keys.end()}, of_heads, space);
}

int32_t PageSharing::NumSharedOfPrompt(const OpenArgs& args) const {
  if (args.prefix.empty() || PagesAPrefixBlock() == 0 ||
      !KeepsPromptInOrder(*args.plan, args.SharesUntil(args.plan->prompt.tokens)))
    return 0;
  const auto unknown = [&](const PrefixKey& key) { return FindPublisher(key) == nullptr; };
  const auto end = std::find_if(args.prefix.begin(), args.prefix.end(), unknown);
  return static_cast<int32_t>(end - args.prefix.begin()) * PagesAPrefixBlock();
}

std::vector<int32_t> PageSharing::SharedOfKept(const OpenArgs& args, const KeptSpace& kept) const {
  // Another turn may cut the heads, or raise their caps.
  if (FindPublisher(kept.key) == nullptr || args.promised != nullptr)
    return std::vector<int32_t>(num_heads_, 0);
  return SharablePages(args, kept.spans);
}

std::vector<int32_t> PageSharing::SharablePages(const OpenArgs& args,
                                                std::span<const HeadSpan> spans) const {
  std::vector<int32_t> pages(num_heads_, 0);
  if (!args.plan->LeavesEntries() || args.plan->life->CutsWithoutCaps()) return pages;
  for (int head = 0; head < num_heads_; ++head) {
    const HeadSpan& span = spans[head];
    // A head that drops many entries at once is below its cap after a drop, but has been at it.
    if (args.SharesUntil(args.tokens) - span.dropped > span.cap) continue;
    pages[head] = span.EntriesAfter(args.tokens) / block_size_;
  }
  return pages;
}

}  // namespace hydrant
