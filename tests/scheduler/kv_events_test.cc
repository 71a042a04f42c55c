// A subscriber's view of KV events, compared with the prefix cache that publishes them.
#include "scheduler/kv_events.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/cache/prefix_cache.h"

namespace hydrant {
namespace {

using Tokens = std::vector<uint32_t>;

Tokens Count(int blocks, uint32_t first) {
  Tokens tokens(static_cast<size_t>(blocks) * kPrefixBlockTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A subscriber that applies every event.
class Reader {
 public:
  explicit Reader(uint64_t last) : next_(last + 1) {}

  // Reads all available batches; false: the next batch is no longer retained.
  bool Read(const KvEvents& events) {
    while (true) {
      const auto batch = events.Find(next_);
      if (!batch.has_value()) return false;
      if (*batch == nullptr) return true;
      EXPECT_EQ((*batch)->sequence, next_);
      EXPECT_FALSE((*batch)->changes.empty());
      EXPECT_LE((*batch)->changes.size(), kMaxKvChanges);
      for (const KvChange& change : (*batch)->changes) Apply(change);
      ++next_;
    }
  }
  void Take(const KvEvents::Snapshot& snapshot) {
    there_.clear();
    for (const KvBlock& block : snapshot.blocks) Apply(block);
    next_ = snapshot.sequence + 1;
  }

  // Each cached block as the tokens from the beginning of its prompt to its end.
  std::set<Tokens> Texts() const {
    std::set<Tokens> texts;
    for (const KvBlockHash hash : there_) texts.insert(TextOf(hash));
    EXPECT_EQ(texts.size(), there_.size());
    return texts;
  }

 private:
  void Apply(const KvChange& change) {
    if (const auto* block = std::get_if<KvBlock>(&change)) {
      EXPECT_TRUE(there_.insert(block->hash).second) << "stored twice";
      known_[block->hash] = *block;
    } else {
      EXPECT_EQ(there_.erase(std::get<KvBlockRemoved>(change).hash), 1u) << "was not there";
    }
  }
  Tokens TextOf(KvBlockHash hash) const {
    const KvBlock& block = known_.at(hash);
    Tokens text = block.parent.has_value() ? TextOf(*block.parent) : Tokens();
    EXPECT_EQ(text.size(), static_cast<size_t>(block.place) * kPrefixBlockTokens);
    text.insert(text.end(), block.tokens.begin(), block.tokens.end());
    return text;
  }

  std::map<KvBlockHash, KvBlock> known_;  // every block ever stored
  std::set<KvBlockHash> there_;
  uint64_t next_;
};

// Opens a lease: blocks that are cached already, and new ones for the rest.
PrefixLease OpenFor(PrefixCache& cache, const std::vector<PrefixKey>& keys) {
  const int cached = cache.NumFilled(keys);
  const std::span all(keys);
  return cache.Open(all.first(cached), all.subspan(cached));
}

void ReadPrompt(PrefixCache& cache, const Tokens& prompt) {
  const std::vector<PrefixKey> keys = PrefixKeys(prompt, "");
  PrefixLease lease = OpenFor(cache, keys);
  cache.Fill(&lease, {keys, prompt});
}

TEST(KvEvents, DescribeTheCache) {
  constexpr unsigned kSeed = 20261126;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  KvEvents events(1000);
  PrefixCache cache(12);
  cache.Watch(&events);
  Reader reader(1000);
  struct Open {
    Tokens prompt;
    std::vector<PrefixKey> keys;
    PrefixLease lease;
  };
  std::vector<Open> open;
  std::set<Tokens> seen;  // the prefixes of all prompts
  for (int step = 0; step < 3000; ++step) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", step " << step);
    const unsigned what = random() % 20;
    if (what == 0) {
      cache.EvictUnleased();
    } else if (what < 10 || open.empty()) {
      Open one;
      for (unsigned i = 0, blocks = 1 + random() % 4; i < blocks; ++i) {
        const Tokens next = Count(1, 100 * (random() % 3));
        one.prompt.insert(one.prompt.end(), next.begin(), next.end());
        seen.insert(one.prompt);
      }
      one.keys = PrefixKeys(one.prompt, "");
      one.lease = OpenFor(cache, one.keys);
      open.push_back(std::move(one));
    } else {
      const size_t i = random() % open.size();
      if (what < 18) {
        cache.Fill(&open[i].lease, {open[i].keys, open[i].prompt});
      } else {
        cache.Abandon(&open[i].lease);
      }
      open.erase(open.begin() + static_cast<ptrdiff_t>(i));
    }
    if (random() % 3 > 0) continue;
    events.Publish(1.5);
    ASSERT_TRUE(reader.Read(events));
    std::set<Tokens> there;
    for (const Tokens& text : seen) {
      if (cache.IsFilled(PrefixKeys(text, "").back())) there.insert(text);
    }
    ASSERT_EQ(reader.Texts(), there);
    Reader late = reader;  // also knows parents that are gone
    late.Take(events.Blocks());
    ASSERT_EQ(late.Texts(), there);
  }
  EXPECT_GT(cache.Stats().evicted_blocks, 100u);
  for (Open& one : open) cache.Abandon(&one.lease);
}

TEST(KvEvents, OtherBlocksAndSaltedPromptsAreNotPublished) {
  KvEvents events(0);
  PrefixCache cache(4);
  cache.Watch(&events);
  const Tokens secret = Count(2, 7), reported = Count(2, 1000);
  const std::vector<PrefixKey> secret_keys = PrefixKeys(secret, "salt");
  PrefixLease lease = OpenFor(cache, secret_keys);
  cache.Fill(&lease);
  events.Publish(1);
  EXPECT_EQ(*events.Find(1), nullptr) << "no batch";
  // Next to the prompt's blocks, a block of another kind, such as scores.
  std::vector<PrefixKey> keys = PrefixKeys(reported, "");
  const std::vector<PrefixKey> text = keys;
  PrefixKey other = keys.back();
  other[0] ^= 1;
  keys.push_back(other);
  lease = cache.Open({}, keys);
  cache.Fill(&lease, {text, reported});
  events.Publish(2);
  EXPECT_EQ((*events.Find(1))->changes.size(), 2u) << "what the secret ones left is not told";
  EXPECT_EQ((*events.Find(1))->unix_seconds, 2);
  cache.EvictUnleased();
  events.Publish(3);
  EXPECT_EQ((*events.Find(2))->changes.size(), 2u);
  EXPECT_TRUE(events.Blocks().blocks.empty());
}

TEST(KvEvents, ParentsComeBeforeTheirChildren) {
  KvEvents events(0);
  PrefixCache cache(8);
  cache.Watch(&events);
  ReadPrompt(cache, Count(3, 0));
  ReadPrompt(cache, Count(4, 0));
  ReadPrompt(cache, Count(2, 5000));
  events.Publish(1);
  const KvEvents::Snapshot snapshot = events.Blocks();
  EXPECT_EQ(snapshot.sequence, 1u);
  ASSERT_EQ(snapshot.blocks.size(), 6u);
  std::set<KvBlockHash> before;
  for (const KvBlock& block : snapshot.blocks) {
    EXPECT_EQ(block.parent.has_value(), block.place > 0);
    EXPECT_TRUE(!block.parent.has_value() || before.contains(*block.parent));
    before.insert(block.hash);
  }
}

TEST(KvEvents, OnlyTheLastChangesAreKept) {
  KvEvents events(500);
  PrefixCache cache(2 * static_cast<int>(kMaxKvChanges));
  cache.Watch(&events);
  int reported = 0;
  const uint64_t listener = events.Listen([&] { ++reported; });
  EXPECT_EQ(*events.Find(501), nullptr);
  EXPECT_FALSE(events.Find(500).has_value());
  EXPECT_FALSE(events.Find(502).has_value()) << "of another process";
  constexpr int kBlocks = 64, kPrompts = static_cast<int>(kMaxKvChanges) / kBlocks;
  const auto read = [&](uint32_t from, int prompts) {
    for (int i = 0; i < prompts; ++i)
      ReadPrompt(cache, Count(kBlocks, from + static_cast<uint32_t>(i) * 10'000));
    events.Publish(1);
  };
  read(0, kPrompts + 1);  // more than one batch holds
  EXPECT_EQ(reported, 1);
  ASSERT_NE(*events.Find(502), nullptr);
  EXPECT_EQ((*events.Find(502))->changes.size(), size_t{kBlocks});
  Reader reader(500);
  ASSERT_TRUE(reader.Read(events));
  Reader slow = reader;
  for (uint32_t i = 1; i <= 8; ++i) {
    read(i * 10'000'000, kPrompts);
    ASSERT_TRUE(reader.Read(events));
  }
  EXPECT_FALSE(events.Find(502).has_value());
  EXPECT_FALSE(slow.Read(events));
  slow.Take(events.Blocks());
  EXPECT_TRUE(slow.Read(events));
  EXPECT_EQ(slow.Texts(), reader.Texts());
  events.StopListening(listener);
  const int before = reported;
  cache.EvictUnleased();
  events.Publish(1);
  EXPECT_EQ(reported, before);
}

}  // namespace
}  // namespace hydrant
