// Ids and counts of blocks, table ranges and the pages that sequences own.
#include "engine/cache/kv_cache_manager.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/cache/block_allocator.h"
#include "engine/cache/range_allocator.h"
#include "gtest/gtest.h"

namespace hydrant {
namespace {

TEST(BlockAllocatorTest, AllOrNothing) {
  BlockAllocator blocks(5);
  std::vector<int32_t> a(3), b(3, -7);
  ASSERT_TRUE(blocks.Allocate(a));
  EXPECT_EQ(std::set<int32_t>(a.begin(), a.end()).size(), 3u);
  EXPECT_FALSE(blocks.Allocate(b));
  EXPECT_EQ(b, std::vector<int32_t>(3, -7));
  EXPECT_EQ(blocks.NumFree(), 2);
  EXPECT_TRUE(blocks.Allocate({}));
  for (const int32_t block : a) blocks.Free(block);
  EXPECT_EQ(blocks.NumFree(), 5);
}

TEST(BlockAllocatorTest, ASeedIsAnOrderOfAllIds) {
  const auto order = [](uint64_t seed) {
    BlockAllocator blocks(100, seed);
    std::vector<int32_t> ids(100);
    EXPECT_TRUE(blocks.Allocate(ids));
    for (const int32_t id : ids) blocks.Free(id);
    return ids;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
  std::vector<int32_t> ascending(100);
  std::iota(ascending.begin(), ascending.end(), 0);
  std::vector<int32_t> sorted = order(1);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, ascending);
}

TEST(BlockAllocatorDeathTest, DoubleFreeAndLostBlocksEndTheProcess) {
  std::vector<int32_t> ids(1);
  EXPECT_DEATH(
      {
        BlockAllocator blocks(2);
        blocks.Allocate(ids);
        blocks.Free(ids[0]);
        blocks.Free(ids[0]);
      },
      "check failed");
  EXPECT_DEATH(
      {
        BlockAllocator blocks(2);
        blocks.Allocate(ids);
      },
      "check failed");
  EXPECT_DEATH(
      {
        BlockAllocator blocks(2);
        blocks.Free(2);
      },
      "check failed");
}

// Compared with a bitmap: first fit, no entry allocated twice, free neighbours joined.
TEST(RangeAllocatorTest, AgreesWithABitmap) {
  constexpr int kSeed = 7, kSize = 64;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  RangeAllocator ranges(kSize);
  std::vector<bool> used(kSize, false);
  std::map<int64_t, int64_t> live;
  auto first_fit = [&](int64_t length) -> std::optional<int64_t> {
    for (int64_t begin = 0; begin + length <= kSize; ++begin) {
      if (std::none_of(used.begin() + begin, used.begin() + begin + length,
                       [](bool u) { return u; }))
        return begin;
    }
    return std::nullopt;
  };
  for (int round = 0; round < 5000; ++round) {
    if (random() % 2 == 0 || live.empty()) {
      const int64_t length = 1 + random() % 12;
      const std::optional<int64_t> expected = first_fit(length);
      const std::optional<int64_t> got = ranges.Allocate(length);
      ASSERT_EQ(got, expected);
      if (!got.has_value()) continue;
      live[*got] = length;
      std::fill_n(used.begin() + *got, length, true);
    } else {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      const auto [begin, length] = *it;
      ranges.Free(begin, length);
      if (random() % 4 == 0) {
        ranges.AllocateAt(begin, length);
        continue;
      }
      std::fill_n(used.begin() + begin, length, false);
      live.erase(it);
    }
    ASSERT_EQ(ranges.NumFree(), std::count(used.begin(), used.end(), false));
  }
  for (const auto& [begin, length] : live) ranges.Free(begin, length);
  EXPECT_EQ(ranges.Allocate(kSize), 0);
  ranges.Free(0, kSize);
}

class KvCacheManagerTest : public testing::Test {
 protected:
  static constexpr EngineLimits kLimits = {.num_layers = 2,
                                           .num_kv_heads = 3,
                                           .block_size = 4,
                                           .num_blocks = 60,
                                           .table_entries = 60,
                                           .max_num_seqs = 3,
                                           .max_model_len = 100,
                                           .prefill_arena_tokens = 100};
  // The table arena after the engine has applied the batch.
  void Apply() {
    table_.resize(kLimits.table_entries);
    for (const TableUpdate& update : updates_.table) table_[update.index] = update.block;
    updates_ = CacheUpdates();
  }
  void ExpectTableAgrees(const SequenceBlocks& blocks) {
    for (int head = 0; head < 6; ++head) {
      for (int32_t i = 0; i < blocks.pages[head]; ++i) {
        const int64_t index = blocks.row_begin + static_cast<int64_t>(head) * blocks.row_width + i;
        EXPECT_EQ(table_[index], blocks.page_ids[blocks.BlockIndex(head, i)]);
      }
    }
  }
  KvCacheManager::OpenArgs Args(const CachePlan& plan, int64_t tokens, int64_t final_tokens) {
    return {.plan = &plan, .prompt_tokens = tokens, .tokens = tokens, .final_tokens = final_tokens};
  }

  KvCacheManager kv_cache_{kLimits};
  CacheUpdates updates_;
  std::vector<PageIds> table_;
};

TEST_F(KvCacheManagerTest, OpensGrowsAndReturns) {
  CachePlan full;
  full.prompt = {.num_layers = 2, .num_kv_heads = 3};
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(full, 5, 99), &a, &updates_));
  EXPECT_EQ(a.num_pages, 6 * 2);
  EXPECT_EQ(a.capacity, 8);
  EXPECT_EQ(updates_.Count<SlotSetup>(), 1u);
  EXPECT_EQ(updates_.Count<TableRow>(), 1u);
  EXPECT_EQ(updates_.table.size(), 12u);
  Apply();
  for (int64_t tokens = 6; tokens <= 40; ++tokens) {
    ASSERT_TRUE(kv_cache_.TryGrow(tokens, &a, &updates_)) << tokens;
    EXPECT_EQ(a.num_pages, 6 * ((tokens + 3) / 4));
    Apply();
    ExpectTableAgrees(a);
  }
  EXPECT_EQ(kv_cache_.NumFreePages(), 0);
  EXPECT_FALSE(kv_cache_.TryGrow(41, &a, &updates_));
  EXPECT_TRUE(updates_.table.empty());
  kv_cache_.Release(&a);
  EXPECT_EQ(kv_cache_.NumFreePages(), 60);
  EXPECT_EQ(kv_cache_.NumFreeTableEntries(), 60);
  EXPECT_EQ(kv_cache_.NumFreeArenaTokens(), 100);
  EXPECT_EQ(kv_cache_.NumFreeSlots(), 3);
}

TEST_F(KvCacheManagerTest, ARefusalChangesNothing) {
  CachePlan full;
  full.prompt = {.num_layers = 2, .num_kv_heads = 3};
  SequenceBlocks a, b, c;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(full, 16, 16), &a, &updates_));  // 24 pages, a row of 4
  updates_ = CacheUpdates();
  const auto unchanged = [&] {
    return kv_cache_.NumFreePages() == 36 && kv_cache_.NumFreeTableEntries() == 36 &&
           kv_cache_.NumFreeArenaTokens() == 84 && kv_cache_.NumFreeSlots() == 2 &&
           updates_.list.empty() && updates_.table.empty();
  };
  EXPECT_FALSE(kv_cache_.TryOpen(Args(full, 25, 25), &b, &updates_));  // 42 pages
  EXPECT_TRUE(unchanged());
  KvCacheManager::OpenArgs watermark = Args(full, 24, 24);
  watermark.pages_kept_free = 1;
  EXPECT_FALSE(kv_cache_.TryOpen(watermark, &b, &updates_));
  EXPECT_TRUE(unchanged());
  KvCacheManager::OpenArgs arena = Args(full, 4, 4);
  arena.prompt_tokens = 85;
  EXPECT_FALSE(kv_cache_.TryOpen(arena, &b, &updates_));
  EXPECT_TRUE(unchanged());
  ASSERT_TRUE(
      kv_cache_.TryOpen(Args(full, 4, 40), &b, &updates_));  // 6 pages; roomy rows of 3, 18 entries
  ASSERT_TRUE(
      kv_cache_.TryOpen(Args(full, 4, 40), &c,
                        &updates_));  // as above; now the table is full and 24 pages are free
  updates_ = CacheUpdates();
  EXPECT_FALSE(kv_cache_.TryGrow(13, &b, &updates_));  // no free range for a row of 4
  EXPECT_EQ(kv_cache_.NumFreePages(), 24);
  EXPECT_EQ(updates_.Count<TableRow>(), 0u);
  EXPECT_TRUE(kv_cache_.TryGrow(12, &b, &updates_));
  kv_cache_.Release(&a);
  kv_cache_.Release(&b);
  kv_cache_.Release(&c);
}

TEST_F(KvCacheManagerTest, ACapEndsGrowth) {
  CachePlan plan;
  plan.budget = plan.cap = 7;
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 5, 99), &a, &updates_));
  EXPECT_EQ(a.num_pages, 12);
  EXPECT_EQ(a.row_width, 2);
  updates_ = CacheUpdates();
  ASSERT_TRUE(kv_cache_.TryGrow(1'000'000, &a, &updates_));
  EXPECT_TRUE(updates_.table.empty());
  EXPECT_EQ(kv_cache_.PagesMissing(a, 1'000'000), 0);
  kv_cache_.Release(&a);
}

// While at least half of the table is free, a row gets its final width, up to 64 pages or four
// times its current pages. After that rows are narrow, and move as they grow.
TEST(TableRowsTest, AreWideWhileTheTableHasRoom) {
  const EngineLimits limits = {.num_layers = 2,
                               .num_kv_heads = 3,
                               .block_size = 4,
                               .num_blocks = 4000,
                               .table_entries = 2 * 6 * 160,
                               .max_num_seqs = 4,
                               .max_model_len = 1000,
                               .prefill_arena_tokens = 1000};
  KvCacheManager kv_cache(limits);
  CachePlan full;
  full.prompt = {.num_layers = 2, .num_kv_heads = 3};
  const auto open = [&](int64_t tokens, int64_t final_tokens, SequenceBlocks* opened) {
    CacheUpdates updates;
    return kv_cache.TryOpen(
        {.plan = &full, .prompt_tokens = tokens, .tokens = tokens, .final_tokens = final_tokens},
        opened, &updates);
  };
  SequenceBlocks bounded, unbounded, late;
  ASSERT_TRUE(open(5, 200, &bounded));
  EXPECT_EQ(bounded.row_width, 50);
  ASSERT_TRUE(open(100, 1000, &unbounded));
  EXPECT_EQ(unbounded.row_width, 100);
  ASSERT_TRUE(open(5, 200, &late));
  EXPECT_EQ(late.row_width, 5) << "a part of the other half";
  for (int64_t tokens = 6; tokens < 200; ++tokens) {
    CacheUpdates updates;
    ASSERT_TRUE(kv_cache.TryGrow(tokens, &bounded, &updates));
    EXPECT_EQ(updates.Count<TableRow>(), 0u) << tokens;
  }
  for (SequenceBlocks* each : {&bounded, &unbounded, &late}) kv_cache.Release(each);
}

// 20 of 30 tokens are evicted at once; the cache then grows.
TEST_F(KvCacheManagerTest, EvictedEntriesTakeNoPages) {
  CachePlan plan;
  plan.prompt = {.tokens = 30, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = 10;
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 30, 99), &a, &updates_));
  for (int64_t tokens = 30; tokens <= 45; ++tokens) {
    EXPECT_EQ(kv_cache_.PagesFor(plan, tokens), 6 * ((tokens - 20 + 3) / 4));
    EXPECT_EQ(kv_cache_.PagesMissing(a, tokens), kv_cache_.PagesFor(plan, tokens) - a.num_pages);
    ASSERT_TRUE(kv_cache_.TryGrow(tokens, &a, &updates_));
    EXPECT_EQ(a.num_pages, kv_cache_.PagesFor(plan, tokens));
  }
  Apply();
  ExpectTableAgrees(a);
  kv_cache_.Release(&a);
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, plan), 60);
}

TEST_F(KvCacheManagerTest, ShrinkingFreesPages) {
  CachePlan plan;
  plan.prompt = {.num_layers = 2, .num_kv_heads = 3};
  plan.budget = plan.cap = 10;
  plan.retention = std::make_shared<DelayedCompaction>(22);
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 20, 99), &a, &updates_));
  ASSERT_TRUE(kv_cache_.TryGrow(22, &a, &updates_));
  EXPECT_EQ(a.num_pages, 6 * 6);
  const int64_t free = kv_cache_.NumFreePages();
  kv_cache_.Compact({.cap = plan.cap}, 22, &a);
  EXPECT_EQ(a.num_pages, 6 * 3);
  EXPECT_EQ(kv_cache_.NumFreePages(), free + 6 * 3);
  ASSERT_TRUE(kv_cache_.TryGrow(1'000'000, &a, &updates_));
  EXPECT_EQ(a.num_pages, 6 * 3);
  kv_cache_.Release(&a);
  plan.retention = std::make_shared<DelayedCompaction>(40);
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, plan), std::numeric_limits<int64_t>::max());
  plan.retention = std::make_shared<DelayedCompaction>(41);
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, plan), 40);
}

// A cache that is compacted and grows repeatedly holds exactly the pages that it needs each time.
TEST_F(KvCacheManagerTest, ACompactedCacheGrowsAgain) {
  CachePlan plan;
  plan.prompt = {.num_layers = 2, .num_kv_heads = 3};
  plan.retention = std::make_shared<DelayedCompaction>(20);
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 20, 99), &a, &updates_));
  for (int64_t tokens = 20; tokens <= 80; tokens += 20) {
    kv_cache_.Compact({.dropped = static_cast<int32_t>(tokens) - 5}, tokens, &a);  // 5 stay
    EXPECT_EQ(a.num_pages, 6 * 2) << tokens;
    ASSERT_TRUE(kv_cache_.TryGrow(tokens + 20, &a, &updates_));
    EXPECT_EQ(a.num_pages, 6 * 7) << tokens;
  }
  Apply();
  ExpectTableAgrees(a);
  kv_cache_.Release(&a);
}

// Entries that follow evicted entries reuse their pages.
TEST_F(KvCacheManagerTest, ADroppingCacheKeepsThePagesOfItsCap) {
  CachePlan plan;
  plan.prompt = {.tokens = 20, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = 6;
  plan.cap = 10;
  plan.retention = std::make_shared<ChunkedEviction>(4);
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 20, 99), &a, &updates_));
  EXPECT_EQ(a.num_pages, 6 * 2);
  for (const int64_t tokens : {22, 23, 24, 25, 28, 29, 1'000'000}) {
    EXPECT_EQ(kv_cache_.PagesFor(plan, tokens), 6 * (tokens > 22 ? 3 : 2)) << tokens;
    ASSERT_TRUE(kv_cache_.TryGrow(tokens, &a, &updates_));
    EXPECT_EQ(a.num_pages, kv_cache_.PagesFor(plan, tokens)) << tokens;
  }
  kv_cache_.Release(&a);
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, plan), std::numeric_limits<int64_t>::max());
}

TEST_F(KvCacheManagerTest, LayersWithBudgetsOfTheirOwnHoldTheirs) {
  CachePlan plan;
  plan.prompt = {.tokens = 30, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = 10;
  plan.layer_budgets = {17, 9};
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 30, 99), &a, &updates_));
  EXPECT_EQ(a.pages, (std::vector<int32_t>{5, 5, 5, 3, 3, 3}));
  EXPECT_EQ(a.num_pages, kv_cache_.PagesFor(plan, 30));
  ASSERT_TRUE(kv_cache_.TryGrow(34, &a, &updates_));
  EXPECT_EQ(a.pages, (std::vector<int32_t>{6, 6, 6, 4, 4, 4}));
  Apply();
  ExpectTableAgrees(a);
  kv_cache_.Release(&a);
}

// Three heads share 3 * 10 entries: at most 39 quarters of a page, which need 9 pages.
TEST_F(KvCacheManagerTest, ALayersSharedPagesAreAssignedAndTheSurplusIsFreed) {
  CachePlan plan;
  plan.prompt = {.tokens = 24, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = 10;
  plan.share = {.scope = BudgetScope::kLayer, .floor_ppm = 0};
  plan.ShareBudgets(kNoCap);
  SequenceBlocks a;
  const int64_t free = kv_cache_.NumFreePages();
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 24, 99), &a, &updates_));
  EXPECT_EQ(a.num_pages, 2 * 9);
  EXPECT_EQ(kv_cache_.PagesFor(plan, 24), 2 * 9);
  EXPECT_FALSE(a.lengths_known);
  Apply();
  // The ids lie behind the rows.
  const std::vector<PageIds> list = a.unassigned_pages;
  for (size_t i = 0; i < list.size(); ++i)
    EXPECT_EQ(table_[a.TableIndex(6, 0) + static_cast<int64_t>(i)], list[i]);
  // Assigned from the end of the list, as the engine does.
  const std::vector<int32_t> entries = {20, 0, 10, 9, 11, 10};
  std::vector<PageIds> reported;
  reported.reserve(list.size());
  for (int i = 0; i < 5 + 3 + 3 + 3 + 3; ++i) reported.push_back(list[list.size() - 1 - i]);
  kv_cache_.ApplyReport(plan, entries, reported, &a);
  std::vector<PageIds> assigned;
  for (int head = 0; head < 6; ++head) {
    EXPECT_EQ(a.pages[head], (entries[head] + 3) / 4);
    for (int i = 0; i < a.pages[head]; ++i) assigned.push_back(a.page_ids[a.BlockIndex(head, i)]);
  }
  EXPECT_EQ(assigned, reported);
  EXPECT_EQ(a.num_pages, 5 + 3 + 3 + 3 + 3);
  EXPECT_EQ(kv_cache_.NumFreePages(), free - a.num_pages);
  // Every head grows from its own length.
  ASSERT_TRUE(kv_cache_.TryGrow(26, &a, &updates_));
  for (int head = 0; head < 6; ++head) EXPECT_EQ(a.pages[head], (entries[head] + 2 + 3) / 4);
  kv_cache_.Release(&a);
  EXPECT_EQ(kv_cache_.NumFreePages(), free);
}

// An engine without memory reports no page ids: pages are then assigned in any order, each once.
TEST_F(KvCacheManagerTest, UnreportedPagesAreAssignedOnce) {
  CachePlan plan;
  plan.prompt = {.tokens = 24, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = 10;
  plan.share = {.scope = BudgetScope::kLayer, .floor_ppm = 0};
  plan.ShareBudgets(kNoCap);
  SequenceBlocks a;
  const int64_t free = kv_cache_.NumFreePages(), table = kv_cache_.NumFreeTableEntries();
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 24, 99), &a, &updates_));
  EXPECT_EQ(table - kv_cache_.NumFreeTableEntries(), 6 * a.row_width + 2 * 9);
  kv_cache_.ApplyReport(plan, std::vector<int32_t>{20, 0, 10, 9, 11, 10}, {}, &a);
  EXPECT_EQ(table - kv_cache_.NumFreeTableEntries(), 6 * a.row_width) << "the list is gone";
  std::set<int32_t> ids;
  for (int head = 0; head < 6; ++head) {
    for (int i = 0; i < a.pages[head]; ++i) ids.insert(a.page_ids[a.BlockIndex(head, i)].data);
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), a.num_pages);
  kv_cache_.Release(&a);
  EXPECT_EQ(kv_cache_.NumFreePages(), free);
  EXPECT_EQ(kv_cache_.NumFreeTableEntries(), table);
}

TEST_F(KvCacheManagerTest, ASequenceOfUnknownLengthsFreesItsPages) {
  CachePlan plan;
  plan.prompt = {.tokens = 30, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = plan.cap = 10;
  plan.share.scope = BudgetScope::kLayer;
  plan.ShareBudgets(kNoCap);
  SequenceBlocks a;
  const int64_t free = kv_cache_.NumFreePages();
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 30, 99), &a, &updates_));
  kv_cache_.Release(&a);
  EXPECT_EQ(kv_cache_.NumFreePages(), free);
}

// All heads of all layers share 6 * 8 entries; until the compaction each holds 16 candidates.
TEST_F(KvCacheManagerTest, CandidatesAreFreedWhenTheModelsBudgetIsShared) {
  CachePlan plan;
  plan.prompt = {.tokens = 30, .num_layers = 2, .num_kv_heads = 3};
  plan.budget = plan.cap = 8;
  plan.share.scope = BudgetScope::kModel;
  plan.ShareBudgets(16);
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan, 30, 99), &a, &updates_));
  EXPECT_EQ(a.num_pages, 6 * 4);
  Apply();
  ExpectTableAgrees(a);
  const std::vector<int32_t> entries = {16, 1, 5, 16, 9, 1};
  kv_cache_.ApplyReport(plan, entries, {}, &a);
  EXPECT_EQ(a.pages, (std::vector<int32_t>{4, 1, 2, 4, 3, 1}));
  EXPECT_EQ(a.num_pages, 15);
  ASSERT_TRUE(kv_cache_.TryGrow(1'000'000, &a, &updates_));  // every head is at its cap
  EXPECT_EQ(a.num_pages, 15);
  kv_cache_.Release(&a);
}

// Draws the number of entries that each head keeps: their sum is the heads' shared budgets, and no
// head exceeds the widest cap.
std::vector<int32_t> DrawEntries(const CachePlan& plan, const EngineLimits& limits,
                                 std::mt19937_64& random) {
  const int heads = limits.BudgetHeads();
  const int sharing = plan.share.scope == BudgetScope::kModel ? heads : limits.num_kv_heads;
  std::vector<int32_t> entries(heads, plan.Protected());
  for (int first = 0; first < heads; first += sharing) {
    const int favoured = first + static_cast<int>(random() % sharing);
    for (int left = sharing * (plan.budget - plan.Protected()); left > 0;) {
      int head = random() % 2 == 0 ? favoured : first + static_cast<int>(random() % sharing);
      while (entries[head] == plan.retention->MaxKeep(plan))
        head = first + (head + 1 - first) % sharing;
      ++entries[head];
      --left;
    }
  }
  return entries;
}

// Ragged heads grow by any number of tokens at a time: every head holds exactly the pages that its
// entries need, and `capacity` never exceeds the pages that are there.
TEST(RaggedKvCacheManagerTest, EveryHeadHoldsTheNeededPagesAsItGrows) {
  constexpr uint64_t kSeed = 41;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    EngineLimits limits = {.num_layers = static_cast<int>(1 + random() % 3),
                           .num_kv_heads = static_cast<int>(1 + random() % 4),
                           .block_size = 1 << random() % 5,
                           .num_blocks = 100'000,
                           .table_entries = 100'000,
                           .max_num_seqs = 1,
                           .max_model_len = 4096,
                           .prefill_arena_tokens = 4096};
    if (random() % 2 == 0) {
      const int layers = static_cast<int>(1 + random() % 3);
      limits.num_layers += layers;
      limits.SetWindow(layers, static_cast<int>(1 + random() % 150));
    }
    CachePlan plan;
    plan.prompt = {.tokens = static_cast<int64_t>(2 + random() % 100),
                   .num_layers = limits.BudgetLayers(),
                   .num_kv_heads = limits.num_kv_heads};
    plan.budget = 1 + static_cast<int>(random() % (plan.prompt.tokens - 1));
    plan.rule.recent = 1;
    plan.share.floor_ppm = 0;
    plan.share.scope = random() % 2 == 0 ? BudgetScope::kLayer : BudgetScope::kModel;
    plan.ShareBudgets(3 * plan.budget);
    if (random() % 2 == 0) plan.cap = plan.budget + static_cast<int>(random() % 60);
    KvCacheManager kv_cache(limits);
    SequenceBlocks a;
    CacheUpdates updates;
    const int64_t n = plan.prompt.tokens;
    ASSERT_TRUE(kv_cache.TryOpen(
        {.plan = &plan, .prompt_tokens = n, .tokens = n, .final_tokens = n + 300}, &a, &updates));
    const std::vector<int32_t> entries = DrawEntries(plan, limits, random);
    kv_cache.ApplyReport(plan, entries, {}, &a);
    const auto pages_at = [&](size_t head, int64_t tokens) -> int32_t {
      if (head >= entries.size())
        return static_cast<int32_t>(
            (std::min<int64_t>(tokens, limits.Window()) + limits.block_size - 1) /
            limits.block_size);
      int64_t held = entries[head] + tokens - n;
      if (plan.cap != kNoCap)
        held = std::min<int64_t>(held, entries[head] + plan.cap - plan.budget);
      return static_cast<int32_t>((held + limits.block_size - 1) / limits.block_size);
    };
    for (int64_t tokens = n; tokens < n + 200;
         tokens += 1 + (random() % 4 == 0 ? static_cast<int64_t>(random() % 50) : 0)) {
      int64_t missing = 0, all = 0;
      for (size_t head = 0; head < a.pages.size(); ++head)
        missing += pages_at(head, tokens) - a.pages[head];
      EXPECT_EQ(kv_cache.PagesMissing(a, tokens), missing);
      ASSERT_TRUE(kv_cache.TryGrow(tokens, &a, &updates));
      for (size_t head = 0; head < a.pages.size(); ++head) {
        ASSERT_EQ(a.pages[head], pages_at(head, tokens)) << "head " << head << " at " << tokens;
        ASSERT_EQ(pages_at(head, std::min<int64_t>(a.capacity, 1'000'000)), a.pages[head])
            << "not held for all of the capacity";
        all += a.pages[head];
      }
      ASSERT_EQ(a.num_pages, all);
      EXPECT_LE(all, kv_cache.PagesFor(plan, tokens)) << "more than admission counts on";
    }
    EXPECT_EQ(kv_cache.NumFreePages(), limits.num_blocks - a.num_pages);
    kv_cache.Release(&a);
  }
}

// The table of docs/guide/policies.md, "Layers with a window": the shape of Gemma 3 1B, five layers
// with a window of 512 to one without, at 8,192 tokens.
TEST(WindowedKvCacheManagerTest, PagesOfFiveWindowsToOneFullLayer) {
  EngineLimits limits = {
      .num_layers = 26,
      .num_kv_heads = 1,
      .block_size = 16,
      .num_blocks = 20'000,
      .slab = SlabShape::Of({.dtype = DType::kF16, .head_dim = 64, .num_blocks = 20'000}),
      .table_entries = 100'000,
      .max_num_seqs = 1,
      .max_model_len = 8193,
      .prefill_arena_tokens = 8193};
  const auto pages = [&](const char* policy, std::optional<double> ratio) {
    CacheSpec spec;
    spec.policy = policy;
    spec.cache_ratio = ratio;
    const CachePlan plan = *PlanCache(spec, limits.ShapeOf(8192));
    KvCacheManager kv_cache(limits);
    SequenceBlocks held;
    CacheUpdates updates;
    EXPECT_TRUE(kv_cache.TryOpen(
        {.plan = &plan, .prompt_tokens = 8192, .tokens = 8192, .final_tokens = 8192}, &held,
        &updates));
    const int64_t count = held.num_pages;
    kv_cache.Release(&held);
    return count;
  };
  EXPECT_EQ(pages("full", std::nullopt), 26 * 512);
  limits.SetWindow(22, 512);
  EXPECT_EQ(pages("full", std::nullopt), 4 * 512 + 22 * 32);
  // One page holds the scores of 64. Layers without a window need scores of 412 and of 208 pages.
  EXPECT_EQ(pages("h2o", 0.2), 4 * 103 + 7 + 22 * 32);
  EXPECT_EQ(pages("h2o", 0.1), 4 * 52 + 4 + 22 * 32);
}

// A replay of several turns is opened with pages for all of them. The first turn's compaction
// concerns the budget group alone; windows free the pages that they need only later, and all heads
// grow on.
TEST(WindowedKvCacheManagerTest, CompactingTheBudgetGroupKeepsWindowsInOrder) {
  EngineLimits limits = {.num_layers = 3,
                         .num_kv_heads = 1,
                         .block_size = 4,
                         .num_blocks = 100,
                         .table_entries = 1000,
                         .max_num_seqs = 1,
                         .max_model_len = 72,
                         .prefill_arena_tokens = 72};
  limits.SetWindow(2, 70);
  CachePlan plan;
  plan.prompt = {.tokens = 13, .num_layers = 1, .num_kv_heads = 1};
  KvCacheManager kv_cache(limits);
  SequenceBlocks a;
  CacheUpdates updates;
  ASSERT_TRUE(kv_cache.TryOpen(
      {.plan = &plan, .prompt_tokens = 13, .tokens = 45, .final_tokens = 72}, &a, &updates));
  EXPECT_EQ(a.pages, (std::vector<int32_t>{12, 12, 12}));
  kv_cache.ApplyTurnReport(std::vector<int32_t>{21}, 28, &a);
  EXPECT_EQ(a.pages, (std::vector<int32_t>{6, 7, 7}));
  EXPECT_EQ(a.num_pages, 20);
  for (int tokens = 29; tokens <= 72; ++tokens) {
    ASSERT_TRUE(kv_cache.TryGrow(tokens, &a, &updates));
    const int32_t window = (std::min(tokens, 70) + 3) / 4;
    EXPECT_EQ(a.pages, (std::vector<int32_t>{(tokens - 7 + 3) / 4, window, window}));
  }
  kv_cache.Release(&a);
}

// A sequence that MaxTokensAlone accepts fits for every split of a shared budget.
TEST(RaggedKvCacheManagerTest, MaxTokensAloneHoldsForEverySplit) {
  constexpr uint64_t kSeed = 43;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int bound = 0;
  for (int round = 0; round < 2000; ++round) {
    EngineLimits limits = {.num_layers = static_cast<int>(1 + random() % 6),
                           .num_kv_heads = static_cast<int>(1 + random() % 2),
                           .block_size = 4,
                           .num_blocks = static_cast<int>(20 + random() % 60),
                           .table_entries = 1000,
                           .max_num_seqs = 1,
                           .max_model_len = 4096,
                           .prefill_arena_tokens = 4096};
    if (round % 2 == 0) {
      const int layers = static_cast<int>(random() % limits.num_layers);
      limits.SetWindow(layers, static_cast<int>(1 + random() % 40));
    }
    CachePlan plan;
    plan.prompt = {.tokens = static_cast<int64_t>(4 + random() % 20),
                   .num_layers = limits.BudgetLayers(),
                   .num_kv_heads = limits.num_kv_heads};
    plan.budget = 1 + static_cast<int>(random() % 3);
    plan.rule.recent = 1;
    plan.share.floor_ppm = 0;
    plan.share.scope = random() % 2 == 0 ? BudgetScope::kLayer : BudgetScope::kModel;
    plan.ShareBudgets(3 * plan.budget);
    SCOPED_TRACE(testing::Message()
                 << "round " << round << ": " << limits.num_layers << " layers of "
                 << limits.num_kv_heads << " heads, C " << plan.budget << " of "
                 << plan.prompt.tokens << ", " << limits.num_blocks << " pages");
    const int64_t most = KvCacheManager::MaxTokensAlone(limits, plan), n = plan.prompt.tokens;
    if (most < n) continue;
    ++bound;
    KvCacheManager kv_cache(limits);
    SequenceBlocks a;
    CacheUpdates updates;
    ASSERT_TRUE(kv_cache.TryOpen(
        {.plan = &plan, .prompt_tokens = n, .tokens = n, .final_tokens = most}, &a, &updates));
    kv_cache.ApplyReport(plan, DrawEntries(plan, limits, random), {}, &a);
    ASSERT_TRUE(kv_cache.TryGrow(most, &a, &updates));
    kv_cache.Release(&a);
  }
  EXPECT_GT(bound, 1000);
}

TEST_F(KvCacheManagerTest, HeadsWithCapsOfTheirOwnGrowApart) {
  CachePlan full;
  full.prompt = {.num_layers = 2, .num_kv_heads = 3};
  SequenceBlocks a;
  ASSERT_TRUE(kv_cache_.TryOpen(Args(full, 4, 99), &a, &updates_));
  const std::vector<int32_t> caps = {4, 5, 8, 9, 40, 40};
  for (int head = 0; head < 6; ++head) a.spans[head].cap = caps[head];
  a.growing.clear();  // stale after the change of caps
  for (int64_t tokens = 5; tokens <= 30; ++tokens) {
    ASSERT_TRUE(kv_cache_.TryGrow(tokens, &a, &updates_));
    for (int head = 0; head < 6; ++head) {
      EXPECT_EQ(a.pages[head], (std::min<int64_t>(tokens, caps[head]) + 3) / 4);
    }
  }
  Apply();
  ExpectTableAgrees(a);
  kv_cache_.Release(&a);
}

TEST_F(KvCacheManagerTest, MaxTokensAloneIsTheLongestThatFits) {
  CachePlan full;
  full.prompt = {.num_layers = 2, .num_kv_heads = 3};
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, full), 40);
  CachePlan capped = full;
  capped.cap = 40;
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, capped), std::numeric_limits<int64_t>::max());
  capped.cap = 41;
  EXPECT_EQ(KvCacheManager::MaxTokensAlone(kLimits, capped), 40);
}

}  // namespace
}  // namespace hydrant
