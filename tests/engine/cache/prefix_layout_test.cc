// Prefix blocks that a prompt loads and stores, by its plan.
#include "engine/cache/prefix_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

constexpr int kBlock = 32;

EngineLimits Limits() {
  EngineLimits limits;
  limits.num_layers = 2;
  limits.num_kv_heads = 2;
  limits.query_blocks = 3;
  limits.sums_a_prefix_block = 256;
  return limits;
}

CachePlan PlanOf(const std::string& policy, int tokens,
                 const std::map<std::string, std::string>& params = {}) {
  CacheSpec spec;
  spec.policy = policy;
  if (policy != "full") spec.max_cache_tokens = 20;
  spec.params = {params.begin(), params.end()};
  const absl::StatusOr<CachePlan> plan = PlanCache(spec, {.tokens = tokens,
                                                          .num_layers = 2,
                                                          .num_kv_heads = 2,
                                                          .predicts_scores = policy == "learned"});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

std::vector<PrefixKey> KeysOf(int tokens) {
  std::vector<uint32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), 0);
  return PrefixKeys(ids, "");
}

int UsableOf(const PrefixLayout& layout, std::span<const PrefixKey> keys,
             const std::set<PrefixKey>& there) {
  return layout.Usable(keys, [&](const PrefixKey& key) { return there.contains(key); });
}

// Keys of the blocks that a prompt of `tokens` tokens stores.
std::set<PrefixKey> LeftBy(const std::string& policy, int tokens) {
  const PrefixLayout layout(PlanOf(policy, tokens), tokens, Limits());
  const std::vector<PrefixKey> keys = KeysOf(tokens);
  const std::vector<PrefixKey> left =
      layout.KeysFrom(keys, 0, layout.Checkpoints(static_cast<int>(keys.size()), 0, 0));
  return {left.begin(), left.end()};
}

TEST(PrefixLayoutTest, KeysAndValuesSufficeWithoutEarlyQueries) {
  const std::vector<PrefixKey> keys = KeysOf(1000);
  for (const char* reader : {"full", "snapkv", "h2o", "echo"}) {
    const std::set<PrefixKey> there = LeftBy(reader, 1000);
    const auto usable = [&](const char* policy) {
      return UsableOf(PrefixLayout(PlanOf(policy, 1000), 1000, Limits()), keys, there);
    };
    EXPECT_EQ(usable("full"), 992) << reader;    // all but the partial last block
    EXPECT_EQ(usable("snapkv"), 960) << reader;  // its window is computed
    EXPECT_EQ(usable("h2o"), std::string_view(reader) == "h2o" ? 960 : 0) << reader;
    EXPECT_EQ(usable("echo"), std::string_view(reader) == "echo" ? 960 : 0) << reader;
  }
}

// Sums are stored at checkpoints only.
TEST(PrefixLayoutTest, SumsBeginAtACheckpoint) {
  const PrefixLayout layout(PlanOf("h2o", 1300), 1300, Limits());
  EXPECT_EQ(layout.parts(), 1);
  ASSERT_EQ(layout.sums().size(), 1u);
  const std::vector<PrefixKey> keys = KeysOf(1300);
  ASSERT_EQ(keys.size(), 40u);
  // Every 512 tokens, the end of the last whole block, and the latest start for an equal prompt,
  // which computes its last 32 queries again.
  EXPECT_EQ(layout.Checkpoints(40, 0, 0), (std::vector<int32_t>{512, 1024, 1248, 1280}));
  EXPECT_EQ(layout.Checkpoints(40, 0, 96), (std::vector<int32_t>{96, 512, 1024, 1248, 1280}));
  EXPECT_EQ(layout.Checkpoints(40, 512, 512), (std::vector<int32_t>{1024, 1248, 1280}));
  EXPECT_EQ(layout.SumBlocks(256), 1);
  EXPECT_EQ(layout.SumBlocks(1280), 5);
  const std::set<PrefixKey> there = LeftBy("h2o", 1300);
  for (const auto& [alike, usable] :
       {std::pair{1280, 1248}, {1247, 1024}, {1024, 1024}, {1023, 512}, {512, 512}, {511, 0}}) {
    EXPECT_EQ(UsableOf(layout, std::span(keys).first(alike / kBlock), there), usable) << alike;
  }
}

// Predicted scores are stored as sums are, apart for each predictor; with an echo also queries.
TEST(PrefixLayoutTest, PredictedScoresBeginAtACheckpoint) {
  EngineLimits limits = Limits();
  const std::vector<PrefixKey> keys = KeysOf(1300);
  const auto layout = [&](uint32_t predictor, const std::map<std::string, std::string>& params) {
    limits.score_predictor = predictor;
    return PrefixLayout(PlanOf("learned", 1300, params), 1300, limits);
  };
  const PrefixLayout one = layout(1, {});
  EXPECT_EQ(one.parts(), 1);
  EXPECT_EQ(layout(1, {{"echo", "true"}}).parts(), 4);
  ASSERT_EQ(one.sums().size(), 1u);
  const std::vector<int32_t> checkpoints = one.Checkpoints(40, 0, 0);
  EXPECT_EQ(checkpoints, (std::vector<int32_t>{512, 1024, 1248, 1280}));
  const std::vector<PrefixKey> left = one.KeysFrom(keys, 0, checkpoints);
  const std::set<PrefixKey> there(left.begin(), left.end());
  EXPECT_EQ(there.size(), left.size());
  EXPECT_EQ(UsableOf(one, keys, there), 1248);
  EXPECT_EQ(UsableOf(layout(2, {}), keys, there), 0);
}

TEST(PrefixLayoutTest, AMissingBlockOfAnyKindEndsTheUsablePrefix) {
  for (const char* policy : {"full", "h2o", "echo", "scissorhands"}) {
    const PrefixLayout layout(PlanOf(policy, 300), 300, Limits());
    const std::vector<PrefixKey> keys = KeysOf(300);
    const std::set<PrefixKey> all = LeftBy(policy, 300);
    const int most = UsableOf(layout, keys, all);
    EXPECT_GE(most, 256) << policy;
    for (const PrefixKey& missing : layout.KeysBefore(keys, most)) {
      std::set<PrefixKey> there = all;
      ASSERT_EQ(there.erase(missing), 1u) << policy;
      EXPECT_LT(UsableOf(layout, keys, there), most) << policy;
    }
  }
}

// Keys of different contents differ; keys of equal contents are equal.
TEST(PrefixLayoutTest, KeysTellThemApart) {
  const std::vector<PrefixKey> keys = KeysOf(1300);
  const auto left = [&](const std::string& policy,
                        const std::map<std::string, std::string>& params) {
    const PrefixLayout layout(PlanOf(policy, 1300, params), 1300, Limits());
    return layout.KeysFrom(keys, 0, layout.Checkpoints(40, 0, 0));
  };
  const std::vector<PrefixKey> tokens(keys.begin(), keys.end());
  std::set<PrefixKey> seen;
  size_t sums = 0;
  for (const char* reduce : {"mean", "max", "sum_of_squares"}) {
    const std::vector<PrefixKey> all = left("h2o", {{"group_reduce", reduce}});
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), all.begin()));
    EXPECT_EQ(std::set<PrefixKey>(all.begin(), all.end()).size(), all.size());
    seen.insert(all.begin() + tokens.size(), all.end());
    sums += all.size() - tokens.size();
  }
  EXPECT_EQ(seen.size(), sums);
  const std::vector<PrefixKey> echo = left("echo", {});
  EXPECT_EQ(echo.size(), tokens.size() * 4);
  EXPECT_EQ(std::set<PrefixKey>(echo.begin(), echo.end()).size(), echo.size());
  for (const PrefixKey& key : echo) EXPECT_FALSE(seen.contains(key));
  EXPECT_EQ(left("h2o", {}), left("ada-h2o", {})) << "the same sums";
}

// For any set of stored blocks: the usable prefix is stored completely, and a prefix longer by a
// block is not.
TEST(PrefixLayoutTest, UsesAsMuchAsThereIs) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const char* policies[] = {"full", "snapkv", "h2o", "echo", "scissorhands", "co2", "auto"};
  for (int round = 0; round < 300; ++round) {
    const int tokens = 33 + static_cast<int>(random() % 1500);
    const std::vector<PrefixKey> keys = KeysOf(tokens);
    const char* policy = policies[random() % std::size(policies)];
    const PrefixLayout layout(PlanOf(policy, tokens), tokens, Limits());
    std::set<PrefixKey> there = LeftBy(policies[random() % std::size(policies)], tokens);
    there.merge(LeftBy(policy, tokens));
    const uint64_t rare = 1 + random() % 200;
    std::erase_if(there, [&](const PrefixKey&) { return random() % rare == 0; });
    const int usable = UsableOf(layout, keys, there);
    const auto all_there = [&](int first_token) {
      const std::vector<PrefixKey> wanted = layout.KeysBefore(keys, first_token);
      return std::all_of(wanted.begin(), wanted.end(),
                         [&](const PrefixKey& key) { return there.contains(key); });
    };
    EXPECT_TRUE(all_there(usable)) << policy;
    EXPECT_LT(usable, tokens) << "the last token is read";
    const int longest = UsableOf(layout, keys, LeftBy(policy, tokens));
    for (int more = usable + kBlock; more <= longest; more += kBlock)
      EXPECT_FALSE(all_there(more)) << policy << ", " << more << " of " << tokens;
  }
}

}  // namespace
}  // namespace hydrant
