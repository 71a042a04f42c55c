// Pages with several owners: which sequences may share, and when each gets pages of its own.
#include <map>
#include <set>

#include "engine/cache/kv_cache_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hydrant {
namespace {

using testing::IsEmpty;

TEST(BlockAllocatorTest, ABlockIsFreedByItsLastOwner) {
  BlockAllocator blocks(3);
  std::vector<int32_t> ids(2);
  ASSERT_TRUE(blocks.Allocate(ids));
  EXPECT_EQ(blocks.NumOwners(ids[0]), 1);
  blocks.Share(ids[0]);
  blocks.Share(ids[0]);
  EXPECT_EQ(blocks.NumOwners(ids[0]), 3);
  EXPECT_EQ(blocks.NumSpared(), 2);
  EXPECT_EQ(blocks.NumShared(), 1);
  EXPECT_TRUE(blocks.IsShared(ids[0]));
  blocks.Free(ids[0]);
  blocks.Free(ids[0]);
  EXPECT_EQ(blocks.NumOwners(ids[0]), 1);
  EXPECT_FALSE(blocks.IsShared(ids[0]));
  EXPECT_EQ(blocks.NumSpared(), 0);
  EXPECT_EQ(blocks.NumShared(), 0);
  EXPECT_EQ(blocks.NumFree(), 1);
  blocks.Free(ids[0]);
  EXPECT_EQ(blocks.NumOwners(ids[0]), 0);
  EXPECT_EQ(blocks.NumFree(), 2);
  blocks.Free(ids[1]);
}

TEST(BlockAllocatorDeathTest, OneFreeMoreThanOwnersEndsTheProcess) {
  EXPECT_DEATH(
      {
        BlockAllocator blocks(1);
        std::vector<int32_t> ids(1);
        blocks.Allocate(ids);
        blocks.Share(ids[0]);
        for (int i = 0; i < 3; ++i) blocks.Free(ids[0]);
      },
      "check failed");
  EXPECT_DEATH(BlockAllocator(1).Share(0), "check failed");
}

class PageSharingTest : public testing::Test {
 protected:
  static constexpr int kHeads = 6;
  static constexpr EngineLimits kLimits = {.num_layers = 2,
                                           .num_kv_heads = 3,
                                           .block_size = 4,
                                           .num_blocks = 400,
                                           .slab = {.line_bytes = 16, .keys_bytes = 128},
                                           .table_entries = 2000,
                                           .num_host_pages = 400,
                                           .max_offloaded_caches = 2,
                                           .max_num_seqs = 4,
                                           .max_model_len = 200,
                                           .prefill_arena_tokens = 1000};

  // A capped plan with scores that change at every token, as in `h2o`.
  static CachePlan Scored(int64_t prompt_tokens, int32_t cap) {
    CachePlan plan = Plan(prompt_tokens, cap);
    plan.rule.by_position = false;
    plan.state_lines = kScoreLines;
    return plan;
  }
  // A capped plan that evicts by position, as in `local`.
  static CachePlan Plan(int64_t prompt_tokens, int32_t cap = kNoCap) {
    CachePlan plan;
    plan.prompt = {.tokens = prompt_tokens, .num_layers = 2, .num_kv_heads = 3};
    plan.budget = plan.cap = cap;
    plan.rule.scored = plan.rule.by_position = cap != kNoCap;
    return plan;
  }
  // Keys of a prompt's whole blocks.
  static std::vector<PrefixKey> Keys(int64_t tokens, uint8_t text = 1) {
    std::vector<PrefixKey> keys(tokens / 32);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = {text, static_cast<uint8_t>(i + 1)};
    return keys;
  }
  static KvCacheManager::OpenArgs Args(const CachePlan& plan,
                                       std::span<const PrefixKey> prefix = {}) {
    return {.plan = &plan,
            .prompt_tokens = plan.prompt.tokens,
            .tokens = plan.prompt.tokens,
            .final_tokens = 200,
            .prefix = prefix};
  }
  // Opens a prompt of 70 tokens and publishes its pages.
  void OpenFirst(const CachePlan& plan) {
    ASSERT_TRUE(kv_cache_.TryOpen(Args(plan), &first_, &updates_));
    kv_cache_.Publish(plan, 70, Keys(70), &first_);
    updates_ = CacheUpdates();
  }
  int64_t NumHeld() const { return kv_cache_.NumPages() - kv_cache_.NumFreePages(); }
  // Number of copied pages with data.
  int NumCopied() const {
    return Count([](const PageCopy& copy) { return copy.to.data >= 0; });
  }
  int NumStatesCopied() const {
    return Count([](const PageCopy& copy) { return copy.to.data == kNotCopied; });
  }
  template <typename Update>
  Update First() const {
    return updates_.All<Update>().at(0);
  }
  template <typename Update>
  Update Last() const {
    return updates_.All<Update>().back();
  }
  template <typename Counts>
  int Count(const Counts& counts) const {
    int pages = 0;
    updates_.ForEach<SlotCopies>([&](const SlotCopies& copies) {
      pages += static_cast<int>(std::count_if(copies.pages.begin(), copies.pages.end(), counts));
    });
    return pages;
  }
  // Number of data pages of head 0 that both sequences hold.
  static int NumInCommon(const SequenceBlocks& a, const SequenceBlocks& b) {
    int count = 0;
    for (int32_t i = 0; i < std::min(a.pages[0], b.pages[0]); ++i)
      count += a.page_ids[a.BlockIndex(0, i)].data == b.page_ids[b.BlockIndex(0, i)].data ? 1 : 0;
    return count;
  }
  // State ids of the sequence's pages, all distinct.
  static std::set<int32_t> StatesOf(const SequenceBlocks& blocks) {
    std::set<int32_t> states;
    int count = 0;
    for (int head = 0; head < kHeads; ++head) {
      for (int32_t i = 0; i < blocks.pages[head]; ++i, ++count)
        states.insert(blocks.page_ids[blocks.BlockIndex(head, i)].state);
    }
    EXPECT_EQ(static_cast<int>(states.size()), count);
    return states;
  }
  void TearDown() override {
    for (SequenceBlocks* blocks : {&first_, &second_, &third_}) kv_cache_.Release(blocks);
    EXPECT_EQ(kv_cache_.NumFreePages(), kLimits.num_blocks);
    EXPECT_EQ(kv_cache_.NumSlabs(), 0);
  }

  KvCacheManager kv_cache_{kLimits};
  SequenceBlocks first_, second_, third_;
  CacheUpdates updates_;
};

TEST_F(PageSharingTest, PromptsThatBeginAlike) {
  const CachePlan plan = Plan(70), longer = Plan(100);
  OpenFirst(plan);
  const int64_t alone = NumHeld();
  EXPECT_EQ(alone, kHeads * 18);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(longer, Keys(70)), &second_, &updates_));
  EXPECT_EQ(First<SlotSetup>().shared_tokens, 64);
  EXPECT_EQ(NumHeld() - alone, kHeads * (25 - 16)) << "two blocks of 32 tokens are there";
  EXPECT_EQ(NumInCommon(first_, second_), 16);
  EXPECT_EQ(second_.num_pages, kHeads * 25);
  EXPECT_EQ(kv_cache_.NumSparedPages(), kHeads * 16);
  // The block table agrees.
  std::map<int64_t, PageIds> table;
  for (const TableUpdate& update : updates_.table) table[update.index] = update.block;
  for (int head = 0; head < kHeads; ++head) {
    for (int32_t i = 0; i < second_.pages[head]; ++i)
      EXPECT_EQ(table[second_.TableIndex(head, i)], second_.page_ids[second_.BlockIndex(head, i)]);
  }
  // A third sequence shares with the second after the first has ended.
  kv_cache_.Publish(longer, 100, Keys(100), &second_);
  kv_cache_.Release(&first_);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(longer, Keys(100)), &third_, &updates_));
  EXPECT_EQ(NumInCommon(second_, third_), 24);
  EXPECT_EQ(NumHeld(), kHeads * (25 + 1));
  kv_cache_.Release(&second_);
  EXPECT_EQ(NumHeld(), kHeads * 25);
  for (int64_t tokens = 101; tokens <= 150; ++tokens)
    ASSERT_TRUE(kv_cache_.TryGrow(tokens, &third_, &updates_));
  EXPECT_EQ(updates_.Count<SlotCopies>(), 0u) << "nothing is overwritten";
}

TEST_F(PageSharingTest, OtherTextsAndUnsharablePlansGetOwnPages) {
  OpenFirst(Plan(70));
  const int64_t before = NumHeld();
  const CachePlan whole = Plan(70);
  CachePlan samples = Plan(70, 90), rolling = Plan(70, 90);
  const CachePlan cut = Plan(70, 60), cut_by_scores = Scored(70, 60);
  samples.rule.weighted = true;
  samples.state_lines = kAllStateLines;
  rolling.rule.rolling = true;
  for (const CachePlan& plan : {samples, cut, cut_by_scores, rolling}) {
    SequenceBlocks blocks;
    ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70)), &blocks, &updates_));
    EXPECT_EQ(NumHeld() - before, blocks.num_pages);
    EXPECT_EQ(Last<SlotSetup>().shared_tokens, 0);
    kv_cache_.Publish(plan, 70, Keys(70, 2), &blocks);  // and its pages are not shared with others
    ASSERT_TRUE(kv_cache_.TryOpen(Args(whole, Keys(70, 2)), &third_, &updates_));
    EXPECT_EQ(Last<SlotSetup>().shared_tokens, 0);
    kv_cache_.Release(&third_);
    kv_cache_.Release(&blocks);
  }
  const CachePlan plan = Plan(70);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70, 3)), &second_, &updates_));
  EXPECT_EQ(Last<SlotSetup>().shared_tokens, 0);
}

// Capped at 80 entries: the 81st token overwrites one.
TEST_F(PageSharingTest, OverwritingCopiesSharedPages) {
  const CachePlan capped = Plan(70, 80), plan = Plan(70);
  OpenFirst(capped);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70)), &second_, &updates_));
  ASSERT_EQ(NumInCommon(first_, second_), 16);
  const int64_t held = NumHeld();
  ASSERT_TRUE(kv_cache_.TryGrow(80, &first_, &updates_));
  EXPECT_EQ(NumCopied(), 0);
  EXPECT_EQ(kv_cache_.PagesMissing(first_, 81), kHeads * 16);
  ASSERT_TRUE(kv_cache_.TryGrow(81, &first_, &updates_));
  EXPECT_EQ(NumCopied(), kHeads * 16);
  EXPECT_EQ(NumInCommon(first_, second_), 0);
  EXPECT_EQ(NumHeld(), held + kHeads * (2 + 16)) << "two pages of growth, and the copies";
  // Destinations are the new ids in the table, sources are the pages that the other sequence keeps.
  std::map<int64_t, PageIds> table;
  for (const TableUpdate& update : updates_.table) table[update.index] = update.block;
  EXPECT_EQ(First<SlotCopies>().slot, first_.slot);
  for (int32_t i = 0; i < 16; ++i) {
    const PageCopy copy = First<SlotCopies>().pages[i];
    EXPECT_EQ(copy.from.data, second_.page_ids[second_.BlockIndex(0, i)].data);
    EXPECT_EQ(copy.to, (PageIds{first_.page_ids[first_.BlockIndex(0, i)].data, kNotCopied}));
    EXPECT_EQ(table[first_.TableIndex(0, i)], first_.page_ids[first_.BlockIndex(0, i)]);
  }
  updates_ = CacheUpdates();
  ASSERT_TRUE(kv_cache_.TryGrow(150, &first_, &updates_));
  EXPECT_EQ(NumCopied(), 0) << "once";
  // Pages that it has overwritten are not shared any more.
  kv_cache_.Release(&second_);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70)), &third_, &updates_));
  EXPECT_EQ(Last<SlotSetup>().shared_tokens, 0);
}

TEST_F(PageSharingTest, TheLastOwnerNeedsNoCopies) {
  const CachePlan capped = Plan(70, 80);
  OpenFirst(capped);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(capped, Keys(70)), &second_, &updates_));
  kv_cache_.Release(&first_);
  ASSERT_TRUE(kv_cache_.TryGrow(100, &second_, &updates_));
  EXPECT_EQ(NumCopied(), 0);
  EXPECT_EQ(NumHeld(), kHeads * 20);
}

TEST_F(PageSharingTest, WithoutRoomForCopiesNothingChanges) {
  const CachePlan capped = Plan(70, 80), plan = Plan(70), large = Plan(160);
  OpenFirst(capped);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70)), &second_, &updates_));
  ASSERT_TRUE(kv_cache_.TryOpen(Args(large), &third_, &updates_));
  updates_ = CacheUpdates();
  const int64_t free = kv_cache_.NumFreePages();
  ASSERT_LT(free, kHeads * 18);
  ASSERT_GE(free, kHeads * 2);
  EXPECT_FALSE(kv_cache_.TryGrow(81, &first_, &updates_));
  EXPECT_EQ(kv_cache_.NumFreePages(), free);
  EXPECT_THAT(updates_.table, IsEmpty());
  EXPECT_EQ(NumInCommon(first_, second_), 16);
  EXPECT_TRUE(kv_cache_.TryGrow(80, &first_, &updates_));
  kv_cache_.Release(&second_);
  EXPECT_TRUE(kv_cache_.TryGrow(81, &first_, &updates_));
}

// A sequence that updates scores at every token has its own state, but shares data pages. A slab
// holds the state of 8 pages: the state of 6 * 18 pages needs 14.
TEST_F(PageSharingTest, ScoredPromptsShareTheirDataAlone) {
  const CachePlan scored = Scored(70, 80), plan = Plan(70);
  OpenFirst(scored);
  EXPECT_EQ(first_.num_pages, kHeads * 18 + 14);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(scored, Keys(70)), &second_, &updates_));
  EXPECT_EQ(First<SlotSetup>().shared_tokens, 64);
  EXPECT_EQ(NumInCommon(first_, second_), 16);
  EXPECT_EQ(kv_cache_.NumSlabs(), 2 * 14);
  std::set<int32_t> states = StatesOf(first_);
  states.merge(StatesOf(second_));
  EXPECT_EQ(states.size(), 2 * 18u * kHeads);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70)), &third_, &updates_));
  EXPECT_EQ(NumInCommon(first_, third_), 16);
  EXPECT_EQ(third_.page_ids[0].state, kNoState) << "it reads no scores";
  EXPECT_EQ(NumHeld(), kHeads * (18 + 2 + 2) + 2 * 14);
  // At its cap it gets pages of its own; the state of 6 * 20 pages needs 15 slabs.
  const PageIds shared = second_.page_ids[second_.BlockIndex(0, 3)];
  updates_ = CacheUpdates();
  ASSERT_TRUE(kv_cache_.TryGrow(81, &second_, &updates_));
  EXPECT_EQ(NumCopied(), kHeads * 16);
  EXPECT_EQ(second_.slabs.size(), 15u);
  const PageCopy copy = First<SlotCopies>().pages[3];
  const PageIds own = second_.page_ids[second_.BlockIndex(0, 3)];
  EXPECT_EQ(copy.from.data, shared.data);
  EXPECT_EQ(copy.to, (PageIds{own.data, kNotCopied}));
  EXPECT_EQ(own.state, shared.state);
  // The first owner overwrites them, too: the third sequence keeps the originals.
  updates_ = CacheUpdates();
  ASSERT_TRUE(kv_cache_.TryGrow(81, &first_, &updates_));
  EXPECT_EQ(NumCopied(), kHeads * 16);
  kv_cache_.Release(&first_);
  EXPECT_EQ(NumInCommon(third_, second_), 0);
}

TEST_F(PageSharingTest, TheLastOwnerKeepsItsState) {
  const CachePlan scored = Scored(70, 80);
  OpenFirst(scored);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(scored, Keys(70)), &second_, &updates_));
  const std::set<int32_t> before = StatesOf(second_);
  kv_cache_.Release(&first_);
  ASSERT_TRUE(kv_cache_.TryGrow(100, &second_, &updates_));
  EXPECT_EQ(NumCopied(), 0);
  const std::set<int32_t> after = StatesOf(second_);
  EXPECT_TRUE(std::includes(after.begin(), after.end(), before.begin(), before.end()));
  EXPECT_EQ(NumHeld(), kHeads * 20 + 15);
}

TEST_F(PageSharingTest, AScoredForkHasTheScoresOfItsParent) {
  const CachePlan scored = Scored(70, 90);
  OpenFirst(scored);
  KvCacheManager::OpenArgs args = Args(scored);
  ASSERT_TRUE(kv_cache_.TryFork(args, &first_, &second_, &updates_));
  EXPECT_EQ(NumInCommon(first_, second_), 17);
  EXPECT_EQ(NumCopied(), kHeads);
  EXPECT_EQ(NumStatesCopied(), kHeads * 17);
  const PageCopy copy = First<SlotCopies>().pages[5];
  EXPECT_EQ(copy.from.state, first_.page_ids[first_.BlockIndex(0, 5)].state);
  EXPECT_EQ(copy.to.state, second_.page_ids[second_.BlockIndex(0, 5)].state);
}

TEST_F(PageSharingTest, AScoredContextBringsItsScoresToEach) {
  const CachePlan scored = Scored(70, 90);
  OpenFirst(scored);
  OffloadedCache offloaded;
  ASSERT_TRUE(kv_cache_.TrySwapOut(first_, &offloaded, &updates_));
  kv_cache_.Release(&first_);
  updates_ = CacheUpdates();
  const KvCacheManager::OpenArgs args = Args(scored);
  ASSERT_TRUE(kv_cache_.TrySwapIn(args, offloaded, &first_, &updates_));
  ASSERT_TRUE(kv_cache_.TrySwapIn(args, offloaded, &second_, &updates_));
  EXPECT_EQ(NumInCommon(first_, second_), 17);
  ASSERT_EQ(Last<SwapIn>().pages.size(), kHeads * 18u);
  for (int i = 0; i < 18; ++i) {
    const PageCopy copy = Last<SwapIn>().pages[i];
    const PageIds page = second_.page_ids[second_.BlockIndex(0, i)];
    EXPECT_EQ(copy.from,
              (PageIds{i < 17 ? kNotCopied : offloaded.host_pages[i], offloaded.host_pages[i]}));
    EXPECT_EQ(copy.to, (PageIds{i < 17 ? kNotCopied : page.data, page.state}));
  }
  kv_cache_.Drop(&offloaded);
}

// Steps that were scheduled before the prompt's end was known may have changed its entries.
TEST_F(PageSharingTest, OverwrittenPagesAreNotPublished) {
  const CachePlan capped = Plan(70, 71), plan = Plan(70);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(capped), &first_, &updates_));
  kv_cache_.Publish(capped, 72, Keys(70), &first_);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, Keys(70)), &second_, &updates_));
  EXPECT_EQ(NumInCommon(first_, second_), 0);
}

TEST_F(PageSharingTest, AForkSharesWholePagesAndCopiesTheRest) {
  const CachePlan plan = Plan(70);
  OpenFirst(plan);
  ASSERT_TRUE(kv_cache_.TryGrow(78, &first_, &updates_));  // it has grown to page 19
  updates_ = CacheUpdates();
  KvCacheManager::OpenArgs args = Args(plan);
  args.tokens = 70;
  ASSERT_TRUE(kv_cache_.TryFork(args, &first_, &second_, &updates_));
  EXPECT_EQ(NumInCommon(first_, second_), 17);
  EXPECT_EQ(second_.pages[0], 18);
  EXPECT_EQ(NumCopied(), kHeads);
  ASSERT_EQ(updates_.Count<SlotFork>(), 1u);
  EXPECT_EQ(First<SlotFork>().from, first_.slot);
  EXPECT_EQ(First<SlotSetup>().slot, second_.slot);
  EXPECT_EQ(NumHeld(), kHeads * (20 + 1));
  ASSERT_TRUE(kv_cache_.TryGrow(90, &second_, &updates_));
  EXPECT_EQ(NumInCommon(first_, second_), 17);
}

TEST_F(PageSharingTest, AForkCopiesOverwrittenPages) {
  CachePlan samples = Plan(70, 90);
  samples.rule.weighted = true;
  samples.state_lines = kAllStateLines;
  const CachePlan at_its_cap = Plan(70, 60), at_its_cap_by_scores = Scored(70, 60);
  for (const CachePlan& plan : {samples, at_its_cap, at_its_cap_by_scores}) {
    ASSERT_TRUE(kv_cache_.TryOpen(Args(plan), &first_, &updates_));
    updates_ = CacheUpdates();
    KvCacheManager::OpenArgs args = Args(plan);
    ASSERT_TRUE(kv_cache_.TryFork(args, &first_, &second_, &updates_));
    EXPECT_EQ(NumInCommon(first_, second_), 0);
    EXPECT_EQ(NumCopied(), first_.NumDataPages());
    EXPECT_EQ(second_.num_pages, first_.num_pages);
    EXPECT_THAT(second_.shared, IsEmpty());
    kv_cache_.Release(&second_);
    args.pages_kept_free = kv_cache_.NumFreePages();
    EXPECT_FALSE(kv_cache_.TryFork(args, &first_, &second_, &updates_));
    EXPECT_EQ(kv_cache_.wait_reason(), WaitReason::kPages);
    kv_cache_.Release(&first_);
  }
}

TEST_F(PageSharingTest, OneContext) {
  const CachePlan plan = Plan(70, 90);
  OpenFirst(plan);
  OffloadedCache offloaded;
  ASSERT_TRUE(kv_cache_.TrySwapOut(first_, &offloaded, &updates_));
  kv_cache_.Release(&first_);
  updates_ = CacheUpdates();
  const KvCacheManager::OpenArgs args = Args(plan);
  ASSERT_TRUE(kv_cache_.TrySwapIn(args, offloaded, &first_, &updates_));
  EXPECT_EQ(First<SwapIn>().pages.size(), kHeads * 18u);
  ASSERT_TRUE(kv_cache_.TrySwapIn(args, offloaded, &second_, &updates_));
  EXPECT_EQ(NumInCommon(first_, second_), 17);
  EXPECT_EQ(Last<SwapIn>().pages.size(), kHeads * 1u);
  for (int head = 0; head < kHeads; ++head) {
    const int32_t host = offloaded.host_pages[head * 18 + 17];
    EXPECT_EQ(Last<SwapIn>().pages[head].from, (PageIds{host, kNotCopied}));
    EXPECT_EQ(Last<SwapIn>().pages[head].to, second_.page_ids[second_.BlockIndex(head, 17)]);
  }
  ASSERT_TRUE(kv_cache_.TryGrow(91, &first_, &updates_));
  EXPECT_EQ(NumCopied(), kHeads * 17);
  // The second sequence still owns them.
  ASSERT_TRUE(kv_cache_.TrySwapIn(args, offloaded, &third_, &updates_));
  EXPECT_EQ(NumInCommon(second_, third_), 17);
  // Another cache in the same offload slot shares nothing.
  const int place = offloaded.index;
  kv_cache_.Drop(&offloaded);
  OffloadedCache another;
  ASSERT_TRUE(kv_cache_.TryReserve(second_.spans, second_.pages, &another));
  ASSERT_EQ(another.index, place);
  kv_cache_.Release(&third_);
  ASSERT_TRUE(kv_cache_.TrySwapIn(args, another, &third_, &updates_));
  EXPECT_EQ(NumInCommon(second_, third_), 0);
  kv_cache_.Drop(&another);
}

}  // namespace
}  // namespace hydrant
