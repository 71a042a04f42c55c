// BlockAllocator: a live id is never allocated twice, and pages of one head get consecutive ids.
#include "engine/cache/block_allocator.h"

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hydrant {
namespace {

using testing::ElementsAre;

constexpr uint32_t kSeed = 20261127;
constexpr int32_t kNone = BlockAllocator::kNone;

std::vector<int32_t> Take(BlockAllocator* blocks, int count, int32_t last = kNone, int room = 0) {
  std::vector<int32_t> ids(count);
  EXPECT_TRUE(blocks->Extend(last, room, ids));
  return ids;
}

void FreeAll(BlockAllocator* blocks, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) blocks->Free(id);
}

TEST(BlockAllocatorTest, HeadsLieInRunsWithRoomBehindThem) {
  BlockAllocator blocks(200);
  std::vector<int32_t> first = Take(&blocks, 3, kNone, 2);
  const std::vector<int32_t> second = Take(&blocks, 4, kNone, 2);
  EXPECT_THAT(first, ElementsAre(0, 1, 2));
  EXPECT_THAT(second, ElementsAre(5, 6, 7, 8));
  // Fills the room behind the run, then continues elsewhere.
  const std::vector<int32_t> more = Take(&blocks, 3, 2, 2);
  EXPECT_THAT(more, ElementsAre(3, 4, 11));
  for (const auto& ids : {first, second, more}) FreeAll(&blocks, ids);
  EXPECT_EQ(blocks.NumFree(), 200);
}

TEST(BlockAllocatorTest, RoomIsNotReserved) {
  BlockAllocator blocks(24);
  std::vector<int32_t> all;
  for (int i = 0; i < 3; ++i) {
    const std::vector<int32_t> ids = Take(&blocks, 8, kNone, 6);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(blocks.NumFree(), 0);
  std::vector<int32_t> one(1);
  EXPECT_FALSE(blocks.Allocate(one));
  EXPECT_FALSE(blocks.Extend(all.back(), 3, one));
  EXPECT_EQ(std::set<int32_t>(all.begin(), all.end()).size(), 24u);
  FreeAll(&blocks, all);
}

TEST(BlockAllocatorTest, APoolInPieces) {
  BlockAllocator blocks(1000);
  std::vector<int32_t> held = Take(&blocks, 1000), given, left;
  for (const int32_t id : held) (id % 3 == 0 || id == 500 ? given : left).push_back(id);
  FreeAll(&blocks, given);
  std::vector<int32_t> again = Take(&blocks, static_cast<int>(given.size()), kNone, 8);
  std::sort(again.begin(), again.end());
  EXPECT_EQ(again, given);
  FreeAll(&blocks, again);
  FreeAll(&blocks, left);
}

// Memory that was never written is allocated last.
TEST(BlockAllocatorTest, FreedBlocksAreReusedFirst) {
  BlockAllocator blocks(1000);
  std::vector<int32_t> first = Take(&blocks, 40), rest = Take(&blocks, 300, kNone, 16);
  FreeAll(&blocks, first);
  EXPECT_EQ(Take(&blocks, 40), first);
  FreeAll(&blocks, first);
  FreeAll(&blocks, rest);
}

// Freed neighbours are joined, so runs are found again.
TEST(BlockAllocatorTest, RunsAfterPieces) {
  BlockAllocator blocks(300);
  const std::vector<int32_t> held = Take(&blocks, 300);
  for (int i = 0; i < 300; i += 2) blocks.Free(held[i]);
  const std::vector<int32_t> pieces = Take(&blocks, 20);
  for (int i = 101; i < 300; i += 2) blocks.Free(held[i]);
  const std::vector<int32_t> run = Take(&blocks, 150);
  for (int i = 0; i < 150; ++i) ASSERT_EQ(run[i], run[0] + i);
  FreeAll(&blocks, pieces);
  FreeAll(&blocks, run);
  for (int i = 1; i < 101; i += 2) blocks.Free(held[i]);
}

// Runs that cross 64-bit words, next to runs that are one id too short.
TEST(BlockAllocatorTest, RunsOverWords) {
  constexpr int kTotal = 800;
  for (const int begin : {0, 1, 63, 64, 65, 300}) {
    for (const int length : {1, 2, 63, 64, 65, 128, 130, 200}) {
      SCOPED_TRACE(std::to_string(length) + " from " + std::to_string(begin) + " on");
      const auto is_free = [=](int id) {
        const int before = begin - 1 - id, behind = id - (begin + length + 1);
        return (id >= begin && id < begin + length) || (before >= 1 && before < length) ||
               (behind >= 0 && behind < length - 1);
      };
      BlockAllocator blocks(kTotal);
      std::vector<int32_t> live;
      for (const int32_t id : Take(&blocks, kTotal))
        is_free(id) ? blocks.Free(id) : live.push_back(id);
      const std::vector<int32_t> run = Take(&blocks, length);
      for (int i = 0; i < length; ++i) ASSERT_EQ(run[i], begin + i);
      FreeAll(&blocks, run);
      FreeAll(&blocks, live);
    }
  }
}

class BlockAllocatorOrderTest : public testing::TestWithParam<bool> {};

TEST_P(BlockAllocatorOrderTest, NoIdIsGivenTwice) {
  RecordProperty("seed", kSeed);
  std::mt19937 rng(kSeed);
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  for (const int total : {1, 63, 64, 65, 500}) {
    BlockAllocator blocks(total, GetParam() ? std::optional<uint64_t>(kSeed) : std::nullopt);
    std::vector<std::vector<int32_t>> heads(6);
    std::set<int32_t> live;
    for (int step = 0; step < 3000; ++step) {
      std::vector<int32_t>& head = heads[below(6)];
      if (below(5) == 0) {
        for (const int32_t id : head) live.erase(id);
        FreeAll(&blocks, head);
        head.clear();
      }
      std::vector<int32_t> ids(below(2) == 0 ? 1 : 1 + below(total));
      const bool fits = ids.size() <= total - live.size();
      ASSERT_EQ(blocks.Extend(head.empty() ? kNone : head.back(), below(20), ids), fits);
      for (const int32_t id : ids) {
        if (!fits) break;
        ASSERT_TRUE(id >= 0 && id < total);
        ASSERT_TRUE(live.insert(id).second) << "block " << id << " is live";
        head.push_back(id);
      }
      ASSERT_EQ(blocks.NumFree(), static_cast<int64_t>(total - live.size()));
      for (int32_t id = 0; id < total; id += 1 + below(7))
        ASSERT_EQ(blocks.IsLive(id), live.count(id) == 1);
    }
    for (const std::vector<int32_t>& head : heads) FreeAll(&blocks, head);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, BlockAllocatorOrderTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return std::string(info.param ? "Shuffled" : "LowFirst");
                         });

// A long-running pool: sequences of random lengths are allocated, grow by a page per head, and are
// freed. The pages of a live head still lie in runs of 20 or more on average.
TEST(BlockAllocatorTest, PiecesStayLong) {
  RecordProperty("seed", kSeed);
  constexpr int kHeads = 30, kSequences = 16, kTurns = 400, kTotal = 60000, kRoom = 16;
  std::mt19937 rng(kSeed);
  struct Sequence {
    int final_pages;
    std::vector<std::vector<int32_t>> heads;
  };
  BlockAllocator blocks(kTotal);
  std::deque<Sequence> live;
  const auto grow = [&](Sequence& sequence, int count) {
    for (std::vector<int32_t>& head : sequence.heads) {
      const int wanted = static_cast<int>(head.size()) + count;
      const int room = std::min(kRoom, sequence.final_pages - wanted);
      const std::vector<int32_t> ids =
          Take(&blocks, count, head.empty() ? kNone : head.back(), room);
      head.insert(head.end(), ids.begin(), ids.end());
    }
  };
  const auto leave = [&](size_t which) {
    for (const std::vector<int32_t>& head : live[which].heads) FreeAll(&blocks, head);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    if (live.size() == kSequences) leave(rng() % kSequences);
    const int prompt = 4 + static_cast<int>(rng() % 60), answer = 1 + static_cast<int>(rng() % 30);
    live.push_back({prompt + answer, std::vector<std::vector<int32_t>>(kHeads)});
    grow(live.back(), prompt);
    for (int step = 0; step < 3; ++step) {
      for (Sequence& sequence : live) {
        if (static_cast<int>(sequence.heads[0].size()) < sequence.final_pages) grow(sequence, 1);
      }
    }
  }
  int64_t pages = 0, pieces = 0;
  for (const Sequence& sequence : live) {
    for (const std::vector<int32_t>& head : sequence.heads) {
      pages += static_cast<int64_t>(head.size());
      for (size_t i = 0; i < head.size(); ++i)
        pieces += i == 0 || head[i] != head[i - 1] + 1 ? 1 : 0;
    }
  }
  RecordProperty("pages_a_piece", std::to_string(static_cast<double>(pages) / pieces));
  EXPECT_GE(pages, 20 * pieces);
  while (!live.empty()) leave(0);
}

}  // namespace
}  // namespace hydrant
