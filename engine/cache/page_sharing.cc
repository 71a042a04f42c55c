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
  if (!plan.KeepsEntriesInPlace() || plan.retention->ReportsPrompt() ||
      plan.retention->CompactsWithoutCaps())
    return false;
  for (int layer = 0; layer < plan.prompt.num_layers; ++layer) {
    const HeadSpan span = plan.retention->InitialSpan(plan, layer);
    if (span.dropped > 0 || until > span.cap) return false;
  }
  return true;
}

bool AreAllZero(std::span<const int32_t> pages) {
  return std::all_of(pages.begin(), pages.end(), [](int32_t count) { return count == 0; });
}

}  // namespace

int64_t PageSharing::OverwritesAfter(const SequenceBlocks& blocks, int head) {
  const HeadSpan& span = blocks.spans[head];
  const int64_t full = span.cap == kNoCap ? kAnyLength : int64_t{span.dropped} + span.cap;
  return std::min(full, blocks.compact_at - 1);
}

int64_t PageSharing::OverwritesAfter(const SequenceBlocks& blocks) {
  int64_t after = kAnyLength;
  for (int head = 0; head < static_cast<int>(blocks.shared.size()); ++head) {
    if (blocks.shared[head] > 0) after = std::min(after, OverwritesAfter(blocks, head));
  }
  return after;
}

int64_t PageSharing::CopiesBefore(int64_t tokens, const SequenceBlocks& blocks) const {
  if (tokens <= OverwritesAfter(blocks)) return 0;
  int64_t copies = 0;
  for (int head = 0; head < num_heads_; ++head) {
    if (tokens <= OverwritesAfter(blocks, head)) continue;
    for (int32_t i = 0; i < blocks.shared[head]; ++i)
      copies += page_pool_->IsShared(blocks.page_ids[blocks.BlockIndex(head, i)].data) ? 1 : 0;
  }
  return copies;
}

void PageSharing::CopyShared(int64_t tokens, SequenceBlocks* blocks, CacheUpdates* updates) {
  SlotCopies copies = {.slot = blocks->slot};
  for (int head = 0; head < num_heads_; ++head) {
    if (tokens <= OverwritesAfter(*blocks, head)) continue;
    const int32_t shared = std::exchange(blocks->shared[head], 0);
    for (int32_t i = 0; i < shared; ++i) {
      PageIds& page = blocks->page_ids[blocks->BlockIndex(head, i)];
      if (!page_pool_->IsShared(page.data)) continue;
      const int32_t others = page.data;
      HYDRANT_CHECK(page_pool_->Allocate(std::span(&page.data, 1)));
      copies.pages.push_back({{others, kNotCopied}, {page.data, kNotCopied}});
      updates->AddTableWrite({blocks->TableIndex(head, i), page});
      page_pool_->Free(others);
    }
  }
  Unpublish(blocks);
  if (!copies.pages.empty()) updates->Add(std::move(copies));
}

int32_t PageSharing::PagesAPrefixBlock() const {
  return kPrefixBlockTokens % block_size_ == 0 ? kPrefixBlockTokens / block_size_ : 0;
}

const SequenceBlocks* PageSharing::FindPublisher(const PrefixKey& key) const {
  const auto it = publishers_.find(key);
  return it == publishers_.end() ? nullptr : it->second;
}

void PageSharing::Publish(std::vector<PrefixKey> keys, std::span<const int32_t> pages,
                          SequenceBlocks* blocks) {
  if (AreAllZero(pages)) return;
  for (const PrefixKey& key : keys) publishers_.emplace(key, blocks);
  blocks->published = std::move(keys);
  MarkShared(pages, blocks);
}

void PageSharing::MarkShared(std::span<const int32_t> pages, SequenceBlocks* blocks) const {
  if (AreAllZero(pages)) return;
  blocks->shared.resize(num_heads_, 0);
  for (int head = 0; head < num_heads_; ++head)
    blocks->shared[head] = std::max(blocks->shared[head], pages[head]);
  blocks->capacity = std::min(blocks->capacity, OverwritesAfter(*blocks));
}

void PageSharing::Unpublish(SequenceBlocks* blocks) {
  for (const PrefixKey& key : std::exchange(blocks->published, {})) {
    const auto [begin, end] = publishers_.equal_range(key);
    const auto is_its = [blocks](const auto& entry) { return entry.second == blocks; };
    publishers_.erase(std::find_if(begin, end, is_its));
  }
}

void PageSharing::PublishPrompt(const CachePlan& plan, int64_t tokens,
                                std::span<const PrefixKey> keys, SequenceBlocks* blocks) {
  if (!KeepsPromptInOrder(plan, std::max(plan.prompt.tokens + 1, blocks->reserved_tokens))) return;
  const auto pages = static_cast<int32_t>(keys.size()) * PagesAPrefixBlock();
  std::vector<int32_t> of_heads(num_heads_, 0);
  for (int head = 0; head < budget_heads_; ++head) {
    if (tokens > OverwritesAfter(*blocks, head)) return;
    of_heads[head] = pages;
  }
  Unpublish(blocks);
  Publish({keys.begin(), keys.end()}, of_heads, blocks);
}

int32_t PageSharing::NumSharedOfPrompt(const OpenArgs& args) const {
  if (args.prefix.empty() || PagesAPrefixBlock() == 0 ||
      !KeepsPromptInOrder(*args.plan, args.SharesUntil(args.plan->prompt.tokens)))
    return 0;
  const auto unknown = [&](const PrefixKey& key) { return FindPublisher(key) == nullptr; };
  const auto end = std::find_if(args.prefix.begin(), args.prefix.end(), unknown);
  return static_cast<int32_t>(end - args.prefix.begin()) * PagesAPrefixBlock();
}

std::vector<int32_t> PageSharing::SharedOfOffloaded(const OpenArgs& args,
                                                    const OffloadedCache& offloaded) const {
  // Another turn may compact the heads, or raise their caps.
  if (FindPublisher(offloaded.key) == nullptr || args.reservation != nullptr)
    return std::vector<int32_t>(num_heads_, 0);
  return SharablePages(args, offloaded.spans);
}

std::vector<int32_t> PageSharing::SharablePages(const OpenArgs& args,
                                                std::span<const HeadSpan> spans) const {
  std::vector<int32_t> pages(num_heads_, 0);
  if (!args.plan->KeepsEntriesInPlace() || args.plan->retention->CompactsWithoutCaps())
    return pages;
  for (int head = 0; head < num_heads_; ++head) {
    const HeadSpan& span = spans[head];
    // A head that drops many entries at once is below its cap after a drop, but has been at it.
    if (args.SharesUntil(args.tokens) - span.dropped > span.cap) continue;
    pages[head] = span.EntriesAfter(args.tokens) / block_size_;
  }
  return pages;
}

}  // namespace hydrant
