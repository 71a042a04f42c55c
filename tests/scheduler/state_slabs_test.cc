// State slabs, pool pages that hold entry state: its layout in them, the slabs of a sequence, and
// how they are freed.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/cache/kv_cache_manager.h"
#include "gtest/gtest.h"

namespace hydrant {
namespace {

// Every line lies in the page's keys or its values, and states do not overlap.
TEST(SlabShapeTest, StateLiesWithinItsSlab) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    for (const auto& [head_dim, block_size] :
         {std::pair(64, 16), std::pair(32, 16), std::pair(96, 7), std::pair(128, 256),
          std::pair(32, 1)}) {
      const KvLayout layout = {
          .dtype = dtype, .head_dim = head_dim, .block_size = block_size, .num_blocks = 37};
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " " << head_dim << " " << block_size);
      const SlabShape shape = SlabShape::Of(layout);
      const auto keys = static_cast<int64_t>(BytesOf(dtype, size_t{1} * block_size * head_dim));
      const int64_t line = 4 * block_size;
      ASSERT_GE(shape.values_line * line, 37 * keys);
      EXPECT_EQ(shape.values_line * line % 256, 0);
      for (const int lines : {kScoreLines, kAllStateLines}) {
        std::set<int64_t> taken;
        ASSERT_GT(shape.StatesIn(lines), 0);
        // Aligning a line may waste this much of the page's keys, and again of its values.
        EXPECT_GE(shape.StatesIn(lines), 2 * ((keys - line) / line / lines));
        for (const int32_t slab : {0, 1, 2, 17, 36}) {
          for (int64_t i = 0; i < shape.StatesIn(lines); ++i) {
            const int64_t state = shape.StatesOf(slab, lines).At(i);
            EXPECT_LT(state, shape.EndOfStates(37));
            for (int64_t at = state; at < state + lines; ++at) EXPECT_TRUE(taken.insert(at).second);
            const bool in_values = state >= shape.values_line;
            const int64_t begin = state * line - (in_values ? shape.values_line * line : 0);
            EXPECT_GE(begin, slab * keys);
            EXPECT_LE(begin + lines * line, (slab + 1) * keys);
          }
        }
      }
    }
  }
}

// In f16 with heads of 64 a page's keys are 32 lines, in fp8 16, in int8 17, in int4 9.
TEST(SlabShapeTest, PagesWhoseStateASlabHolds) {
  const auto states_in = [](DType dtype, int lines) {
    return SlabShape::Of({.dtype = dtype, .head_dim = 64, .num_blocks = 9}).StatesIn(lines);
  };
  EXPECT_EQ(states_in(DType::kF16, kScoreLines), 64);
  EXPECT_EQ(states_in(DType::kF16, kAllStateLines), 20);
  EXPECT_EQ(states_in(DType::kE4M3, kScoreLines), 32);
  EXPECT_EQ(states_in(DType::kE4M3, kAllStateLines), 10);
  EXPECT_EQ(states_in(DType::kQ8_0, kScoreLines), 34);
  EXPECT_EQ(states_in(DType::kQ8_0, kAllStateLines), 10);
  EXPECT_EQ(states_in(DType::kQ4_0, kScoreLines), 18);
  EXPECT_EQ(states_in(DType::kQ4_0, kAllStateLines), 6);
}

// 4 heads, one of two layers with a window of 8: 2 heads have state. A slab holds the state of 8
// pages, or of 2 if three lines are needed.
class StateSlabsTest : public testing::Test {
 protected:
  static constexpr EngineLimits kLimits = {.num_layers = 2,
                                           .num_kv_heads = 2,
                                           .fixed_groups = {{{}, {GroupKind::kWindow, 1, 2, 8}}},
                                           .block_size = 4,
                                           .num_blocks = 200,
                                           .slab = {.line_bytes = 16, .keys_bytes = 128},
                                           .table_entries = 2000,
                                           .num_host_pages = 200,
                                           .max_offloaded_caches = 2,
                                           .max_num_seqs = 4,
                                           .max_model_len = 200,
                                           .prefill_arena_tokens = 1000};

  static CachePlan Plan(int64_t tokens, int state_lines, int32_t cap = kNoCap) {
    CachePlan plan;
    plan.prompt = {.tokens = tokens, .num_layers = 1, .num_kv_heads = 2};
    plan.budget = plan.cap = cap;
    plan.rule.scored = true;
    plan.state_lines = state_lines;
    return plan;
  }
  static KvCacheManager::OpenArgs Args(const CachePlan& plan) {
    return {.plan = &plan,
            .prompt_tokens = plan.prompt.tokens,
            .tokens = plan.prompt.tokens,
            .final_tokens = 200};
  }
  // Applies a batch's moves of states, and compares the result with the blocks.
  void Apply(const SequenceBlocks& blocks) {
    updates_.ForEach<SlotCopies>([&](const SlotCopies& list) {
      for (const PageCopy& move : list.pages) {
        EXPECT_EQ(move.from.data, kNotCopied);
        EXPECT_EQ(move.to.data, kNotCopied);
        EXPECT_EQ(holds_.at(move.from.state), 1);
        EXPECT_EQ(holds_[move.to.state], 0);
        holds_[move.from.state] = 0;
        holds_[move.to.state] = 1;
      }
    });
    for (const TableUpdate& update : updates_.table) table_[update.index] = update.block;
    updates_ = CacheUpdates();
    for (int head = 0; head < 4; ++head) {
      for (int32_t i = 0; i < blocks.pages[head]; ++i) {
        const PageIds page = blocks.page_ids[blocks.BlockIndex(head, i)];
        EXPECT_EQ(table_[blocks.TableIndex(head, i)], page);
        EXPECT_EQ(page.state == kNoState, head >= 2 || blocks.state_lines == kNoStateLines);
      }
    }
  }
  // Marks the states of the sequence's pages as written, all others as empty.
  void Write(const SequenceBlocks& blocks) {
    holds_.clear();
    for (int head = 0; head < 2; ++head) {
      for (int32_t i = 0; i < blocks.pages[head]; ++i)
        holds_[blocks.page_ids[blocks.BlockIndex(head, i)].state] = 1;
    }
  }
  void TearDown() override {
    for (SequenceBlocks* blocks : {&first_, &second_}) kv_cache_.Release(blocks);
    EXPECT_EQ(kv_cache_.NumFreePages(), kLimits.num_blocks);
    EXPECT_EQ(kv_cache_.NumSlabs(), 0);
  }

  KvCacheManager kv_cache_{kLimits};
  SequenceBlocks first_, second_;
  CacheUpdates updates_;
  std::map<int64_t, PageIds> table_;
  std::map<int32_t, int> holds_;
};

// 70 tokens are 18 pages a head, and 2 in each head with a window: 40 pages, 36 with state.
TEST_F(StateSlabsTest, AsManyAsTheStateFills) {
  for (const auto& [lines, slabs, grown] :
       {std::tuple(kNoStateLines, 0, 0), std::tuple(kScoreLines, 5, 6),
        std::tuple(kAllStateLines, 18, 24)}) {
    const CachePlan plan = Plan(70, lines);
    EXPECT_EQ(kv_cache_.PagesFor(plan, 70), 40 + slabs);
    EXPECT_EQ(kv_cache_.PagesFor(plan, 94), 52 + grown) << "24 pages a head";
    KvCacheManager::OpenArgs args = Args(plan);
    args.pages_kept_free = kLimits.num_blocks - (40 + slabs) + 1;
    EXPECT_FALSE(kv_cache_.TryOpen(args, &first_, &updates_)) << "a page too many";
    --args.pages_kept_free;
    ASSERT_TRUE(kv_cache_.TryOpen(args, &first_, &updates_));
    EXPECT_EQ(first_.num_pages, 40 + slabs);
    EXPECT_EQ(first_.NumDataPages(), 40);
    EXPECT_EQ(kv_cache_.NumSlabs(), slabs);
    EXPECT_EQ(kLimits.num_blocks - kv_cache_.NumFreePages(), 40 + slabs);
    EXPECT_EQ(kv_cache_.PagesMissing(first_, 94), 12 + grown - slabs);
    for (int64_t tokens = 71; tokens <= 94; ++tokens)
      ASSERT_TRUE(kv_cache_.TryGrow(tokens, &first_, &updates_));
    EXPECT_EQ(first_.num_pages, 52 + grown);
    Apply(first_);
    kv_cache_.Release(&first_);
  }
}

TEST_F(StateSlabsTest, WithoutAPageForStateNothingGrows) {
  const CachePlan plan = Plan(64, kScoreLines), none = Plan(16, kNoStateLines);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan), &first_, &updates_));  // 32 pages have state in 4 slabs
  KvCacheManager::OpenArgs rest = Args(none);
  rest.reservation = &none;  // takes all but 2 pages: 2 heads of 4, windows of 2
  rest.final_tokens = 4 * (kv_cache_.NumFreePages() - 2 - 4) / 2;
  ASSERT_TRUE(kv_cache_.TryOpen(rest, &second_, &updates_));
  ASSERT_EQ(kv_cache_.NumUnreservedPages(), 2);
  EXPECT_EQ(kv_cache_.PagesMissing(first_, 65), 3) << "a page a head, and one for their state";
  EXPECT_FALSE(kv_cache_.TryGrow(65, &first_, &updates_));
  EXPECT_EQ(first_.num_pages, 32 + 4 + 4);
  EXPECT_EQ(kv_cache_.NumUnreservedPages(), 2);
}

// A prompt's pages are allocated head by head, so a compaction of all heads frees state in each
// slab. 18 pages a head become 3; one slab holds their state.
TEST_F(StateSlabsTest, ACompactionFreesSlabs) {
  const CachePlan plan = Plan(70, kScoreLines, 100);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan), &first_, &updates_));
  Apply(first_);
  kv_cache_.Compact({.cap = 12}, 70, &first_);
  Write(first_);
  EXPECT_EQ(first_.NumDataPages(), 6 + 4);
  EXPECT_EQ(first_.num_pages, 10 + 5) << "steps that are under way may read what lies there";
  ASSERT_TRUE(first_.HasSpareSlab());
  kv_cache_.PackState(&first_, &updates_);
  EXPECT_EQ(first_.num_pages, 10 + 1);
  EXPECT_EQ(kLimits.num_blocks - kv_cache_.NumFreePages(), 11);
  EXPECT_FALSE(first_.HasSpareSlab());
  Apply(first_);
  for (int head = 0; head < 2; ++head) {
    for (int32_t i = 0; i < 3; ++i)
      EXPECT_EQ(holds_[first_.page_ids[first_.BlockIndex(head, i)].state], 1) << "it came along";
  }
  kv_cache_.PackState(&first_, &updates_);
  EXPECT_TRUE(updates_.table.empty());
}

TEST_F(StateSlabsTest, GrowthAfterACompactionUsesFreeStatesFirst) {
  const CachePlan plan = Plan(70, kScoreLines);
  ASSERT_TRUE(kv_cache_.TryOpen(Args(plan), &first_, &updates_));
  kv_cache_.ApplyTurnReport(std::vector<int32_t>{12, 40}, 70,
                            &first_);  // 3 and 10 pages: 13 in 2 slabs
  EXPECT_EQ(kv_cache_.PagesMissing(first_, 74), 2) << "and no slab";
  ASSERT_TRUE(kv_cache_.TryGrow(74, &first_, &updates_));
  EXPECT_EQ(first_.slabs.size(), 5u);
  kv_cache_.PackState(&first_, &updates_);
  EXPECT_EQ(first_.slabs.size(), 2u) << "of 15 pages";
}

// Random compactions and growth: the page counts hold after each packing.
TEST_F(StateSlabsTest, RandomCompactionsAndGrowth) {
  const uint64_t seed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const int lines : {kScoreLines, kAllStateLines}) {
    const CachePlan plan = Plan(60, lines);
    ASSERT_TRUE(kv_cache_.TryOpen(Args(plan), &first_, &updates_));
    for (int64_t tokens = 61; tokens < 190; ++tokens) {
      ASSERT_TRUE(kv_cache_.TryGrow(tokens, &first_, &updates_));
      Apply(first_);
      if (tokens % 9 != 0) continue;
      std::vector<int32_t> keep;
      for (int head = 0; head < 2; ++head) {
        const int32_t held = first_.spans[head].EntriesAfter(tokens);
        keep.push_back(static_cast<int32_t>(held - random() % std::min(held, 30)));
      }
      kv_cache_.ApplyTurnReport(keep, tokens, &first_);
      Write(first_);
      kv_cache_.PackState(&first_, &updates_);
      Apply(first_);
      int64_t of_state = 0;
      for (int head = 0; head < 2; ++head) {
        EXPECT_EQ(first_.pages[head], (keep[head] + 3) / 4);
        of_state += first_.pages[head];
        for (int32_t i = 0; i < first_.pages[head]; ++i)
          EXPECT_EQ(holds_[first_.page_ids[first_.BlockIndex(head, i)].state], 1);
      }
      const int64_t a_slab = lines == kScoreLines ? 8 : 2;
      EXPECT_EQ(static_cast<int64_t>(first_.slabs.size()), (of_state + a_slab - 1) / a_slab);
    }
    kv_cache_.Release(&first_);
  }
}

TEST_F(StateSlabsTest, TheReservationCountsThem) {
  const CachePlan plan = Plan(30, kScoreLines);
  KvCacheManager::OpenArgs args = Args(plan);
  args.reservation = &plan;
  args.final_tokens = 94;
  ASSERT_TRUE(kv_cache_.TryOpen(args, &first_, &updates_));
  EXPECT_EQ(first_.num_pages, 2 * 8 + 2 * 2 + 2);
  EXPECT_EQ(first_.num_pages + first_.reserved_pages, 2 * 24 + 2 * 2 + 6);
  const CachePlan other = Plan(190, kNoStateLines);
  KvCacheManager::OpenArgs rest = Args(other);
  rest.pages_kept_free = kv_cache_.NumUnreservedPages() - (2 * 48 + 4);
  ASSERT_TRUE(kv_cache_.TryOpen(rest, &second_, &updates_));
  for (int64_t tokens = 31; tokens <= 94; ++tokens)
    ASSERT_TRUE(kv_cache_.TryGrow(tokens, &first_, &updates_));
  EXPECT_EQ(first_.reserved_pages, 0);
}

}  // namespace
}  // namespace hydrant
