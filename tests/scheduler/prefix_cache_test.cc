// Keys and index of prefix blocks. Random schedules are compared with a plain model of the cached
// blocks and their last use.
#include "engine/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "kernels/ops/prefix_blocks.h"

namespace hydrant {
namespace {

std::vector<uint32_t> Tokens(int count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(PrefixKeyTest, CoverWholeBlocks) {
  for (const int count : {0, 1, 31, 32, 33, 63, 64, 65})
    EXPECT_EQ(PrefixKeys(Tokens(count), "").size(), static_cast<size_t>(count / 32));
}

TEST(PrefixKeyTest, AreEqualUpToTheFirstTokenThatDiffers) {
  const std::vector<uint32_t> tokens = Tokens(5 * kPrefixBlockTokens);
  const std::vector<PrefixKey> keys = PrefixKeys(tokens, "");
  EXPECT_EQ(PrefixKeys(tokens, ""), keys);
  for (int changed = 0; changed < static_cast<int>(tokens.size()); ++changed) {
    std::vector<uint32_t> other = tokens;
    other[changed] ^= 1U << (changed % 32);
    const std::vector<PrefixKey> others = PrefixKeys(other, "");
    for (size_t i = 0; i < keys.size(); ++i)
      EXPECT_EQ(others[i] == keys[i], static_cast<int>(i) < changed / kPrefixBlockTokens);
  }
}

// The same tokens at another position or under another salt are another block.
TEST(PrefixKeyTest, StandForAllThatComesBefore) {
  std::vector<uint32_t> twice = Tokens(kPrefixBlockTokens);
  twice.insert(twice.end(), twice.begin(), twice.begin() + kPrefixBlockTokens);
  const std::vector<PrefixKey> keys = PrefixKeys(twice, "");
  EXPECT_NE(keys[0], keys[1]);
  std::set<PrefixKey> all(keys.begin(), keys.end());
  for (const char* salt : {"a", "b", "ab"}) {
    for (const PrefixKey& key : PrefixKeys(twice, salt))
      EXPECT_TRUE(all.insert(key).second) << salt;
  }
}

// Leases the first blocks, which are cached, and room for the others.
PrefixLease OpenBehind(PrefixCache& cache, std::span<const PrefixKey> keys, int num_cached) {
  return cache.Open(keys.first(num_cached), keys.subspan(num_cached));
}

TEST(PrefixCacheTest, FindsTheLongestFilledPrefix) {
  PrefixCache cache(4);
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(3 * 32), "");
  EXPECT_EQ(cache.NumFilled(keys), 0);
  PrefixLease lease = OpenBehind(cache, keys, 0);
  EXPECT_EQ(lease.fresh.size(), 3u);
  EXPECT_EQ(cache.NumFilled(keys), 0) << "before it was read";
  cache.Fill(&lease);
  EXPECT_TRUE(lease.IsEmpty());
  EXPECT_EQ(cache.NumFilled(keys), 3);
  EXPECT_EQ(cache.NumFilled(PrefixKeys(Tokens(3 * 32, 1), "")), 0);
  std::vector<uint32_t> forked = Tokens(3 * 32);
  forked[40] = 999;
  EXPECT_EQ(cache.NumFilled(PrefixKeys(forked, "")), 1);
  cache.CountLookup(100, 64);
  EXPECT_EQ(cache.Stats().queried_tokens, 100u);
  EXPECT_EQ(cache.Stats().hit_tokens, 64u);
  EXPECT_EQ(cache.Stats().filled_blocks, 3);
}

TEST(PrefixCacheTest, UnfilledBlocksAreNotFound) {
  PrefixCache cache(4);
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(3 * 32), "");
  PrefixLease lease = OpenBehind(cache, keys, 0);
  cache.Abandon(&lease);
  EXPECT_EQ(cache.NumFilled(keys), 0);
  lease = OpenBehind(cache, keys, 0);
  EXPECT_EQ(lease.fresh.size(), 3u);
  cache.Abandon(&lease);
}

TEST(PrefixCacheTest, TheSameFromTwoIsThereOnce) {
  PrefixCache cache(6);
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(3 * 32), "");
  PrefixLease a = OpenBehind(cache, keys, 0), b = OpenBehind(cache, keys, 0);
  cache.Fill(&a);
  cache.Fill(&b);
  EXPECT_EQ(cache.Stats().filled_blocks, 3);
  PrefixLease rest = OpenBehind(cache, PrefixKeys(Tokens(6 * 32, 7), ""), 0);
  EXPECT_EQ(rest.fresh.size(), 6u) << "three are free, three can leave";
  cache.Abandon(&rest);
}

TEST(PrefixCacheTest, TheLastOfTheOldestLeavesFirst) {
  PrefixCache cache(6);
  const std::vector<PrefixKey> old = PrefixKeys(Tokens(3 * 32), ""),
                               newer = PrefixKeys(Tokens(3 * 32, 1000), "");
  for (const std::vector<PrefixKey>* keys : {&old, &newer}) {
    PrefixLease lease = OpenBehind(cache, *keys, 0);
    cache.Fill(&lease);
  }
  PrefixLease lease = OpenBehind(cache, PrefixKeys(Tokens(32, 50), ""), 0);
  cache.Fill(&lease);
  EXPECT_EQ(cache.NumFilled(old), 2);
  lease = OpenBehind(cache, old, 2);  // used again: now the other is older
  cache.Abandon(&lease);
  lease = OpenBehind(cache, PrefixKeys(Tokens(32, 60), ""), 0);
  cache.Fill(&lease);
  EXPECT_EQ(cache.NumFilled(old), 2);
  EXPECT_EQ(cache.NumFilled(newer), 2);
}

TEST(PrefixCacheTest, LeasedBlocksAreNotEvicted) {
  PrefixCache cache(3);
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(3 * 32), "");
  PrefixLease first = OpenBehind(cache, keys, 0);
  cache.Fill(&first);
  PrefixLease reader = OpenBehind(cache, keys, 2);
  EXPECT_EQ(reader.fresh.size(), 1u) << "the third left for itself";
  PrefixLease other = OpenBehind(cache, PrefixKeys(Tokens(3 * 32, 5), ""), 0);
  EXPECT_TRUE(other.IsEmpty());
  cache.Fill(&reader);
  EXPECT_EQ(cache.NumFilled(keys), 3);
  cache.Abandon(&other);
}

TEST(PrefixCacheTest, DropsUnleasedBlocks) {
  PrefixCache cache(4);
  const std::vector<PrefixKey> old = PrefixKeys(Tokens(2 * kPrefixBlockTokens), "");
  PrefixLease lease = OpenBehind(cache, old, 0);
  cache.Fill(&lease);
  const std::vector<PrefixKey> read = PrefixKeys(Tokens(2 * kPrefixBlockTokens, 5000), "");
  lease = OpenBehind(cache, read, 0);
  cache.Fill(&lease);
  lease = OpenBehind(cache, read, 2);  // a second lease
  EXPECT_EQ(cache.EvictUnleased(), 2);
  EXPECT_EQ(cache.NumFilled(old), 0);
  EXPECT_EQ(cache.NumFilled(read), 2);
  cache.Fill(&lease);
  EXPECT_EQ(cache.EvictUnleased(), 2);
  EXPECT_EQ(cache.Stats().filled_blocks, 0);
  lease = OpenBehind(cache, PrefixKeys(Tokens(4 * kPrefixBlockTokens), ""), 0);
  EXPECT_EQ(lease.fresh.size(), 4u) << "all are free";
  cache.Abandon(&lease);
}

TEST(PrefixCacheTest, NoRoomIsNoCache) {
  PrefixCache cache(0);
  const std::vector<PrefixKey> keys = PrefixKeys(Tokens(3 * 32), "");
  PrefixLease lease = OpenBehind(cache, keys, 0);
  EXPECT_TRUE(lease.IsEmpty());
  cache.Fill(&lease);
  EXPECT_EQ(cache.NumFilled(keys), 0);
}

// A schedule of leases next to a model that scans everything: contents of blocks, their readers,
// their last use.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed), num_blocks_(1 + Below(12)), cache_(num_blocks_) {}
  ~Model() {
    while (!open_.empty()) End();
  }

  void Step() {
    if (open_.empty() || Below(2) == 0) {
      Begin();
    } else {
      End();
    }
    std::vector<const PrefixLease*> leases;
    for (const Open& open : open_) leases.push_back(&open.lease);
    const absl::Status invariants = cache_.CheckInvariants(leases);
    ASSERT_TRUE(invariants.ok()) << invariants;
  }
  int hits() const { return hits_; }

 private:
  struct Open {
    std::vector<PrefixKey> keys;
    PrefixLease lease;
  };
  int Below(int n) { return static_cast<int>(random_() % n); }

  // One of a few texts up to some length, perhaps diverging at a random token.
  void Begin() {
    std::vector<uint32_t> tokens = Tokens(32 * (1 + Below(6)), 100 * Below(3));
    if (Below(2) == 0) tokens[Below(static_cast<int>(tokens.size()))] += 50 + Below(2);
    Open open;
    open.keys = PrefixKeys(tokens, "");
    int there = 0;
    while (there < static_cast<int>(open.keys.size()) && holds_.contains(open.keys[there])) ++there;
    ASSERT_EQ(cache_.NumFilled(open.keys), there);
    const int used = Below(there + 1);
    open.lease = OpenBehind(cache_, open.keys, used);
    hits_ += used;
    ASSERT_EQ(open.lease.cached.size(), static_cast<size_t>(used));
    for (int i = 0; i < used; ++i) ASSERT_EQ(open.lease.cached[i], holds_.at(open.keys[i]));
    for (const int32_t id : open.lease.fresh) {
      const auto held = std::find_if(holds_.begin(), holds_.end(),
                                     [id](const auto& pair) { return pair.second == id; });
      if (held == holds_.end()) continue;
      for (const Open& other : open_) {
        const std::vector<int32_t>& read = other.lease.cached;
        ASSERT_EQ(std::count(read.begin(), read.end(), id), 0) << "it is being read";
      }
      holds_.erase(held);
    }
    open_.push_back(std::move(open));
  }

  void End() {
    const int which = Below(static_cast<int>(open_.size()));
    Open open = std::move(open_[which]);
    open_.erase(open_.begin() + which);
    if (Below(4) == 0) {
      cache_.Abandon(&open.lease);
      return;
    }
    for (size_t i = 0; i < open.lease.fresh.size(); ++i)
      holds_.emplace(open.lease.keys[i], open.lease.fresh[i]);
    cache_.Fill(&open.lease);
  }

  std::mt19937_64 random_;
  int hits_ = 0;
  const int num_blocks_;
  PrefixCache cache_;
  std::map<PrefixKey, int32_t> holds_;
  std::vector<Open> open_;
};

TEST(PrefixCacheTest, RandomSchedules) {
  int hits = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model model(seed);
    for (int i = 0; i < 300 && !HasFailure(); ++i) model.Step();
    if (HasFailure()) return;
    hits += model.hits();
  }
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace hydrant
