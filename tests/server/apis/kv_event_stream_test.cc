// SubscribeKvEvents of a whole server: events match a plain model of the cache.
#include "server/apis/kv_event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "tests/server/test_server.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"

namespace hydrant {
namespace {

namespace common = smg::grpc::common;
using VllmEngine = vllm::grpc::engine::VllmEngine;
using Tokens = std::vector<uint32_t>;

constexpr int kBlock = kPrefixBlockTokens;

// Reads on its own thread, and applies the events.
class Subscriber {
 public:
  explicit Subscriber(const TestServer& server, uint64_t last = 0, bool reads = true)
      : stub_(VllmEngine::NewStub(ChannelTo(server))), last_(last) {
    common::SubscribeKvEventsRequest request;
    request.set_start_sequence_number(last);
    reader_ = stub_->SubscribeKvEvents(&context_, request);
    if (reads) {
      StartReading();
    } else {
      reader_->WaitForInitialMetadata();  // the first message brings it
    }
  }
  ~Subscriber() {
    if (reader_ != nullptr) End();
  }
  // Continues from another subscriber's state.
  Subscriber(const TestServer& server, const Subscriber& other)
      : Subscriber(server, other.last(), false) {
    blocks_ = other.blocks_;
    there_ = other.there_;
    StartReading();
  }

  void StartReading() {
    thread_ = std::thread([this] {
      for (common::KvEventBatch batch; reader_->Read(&batch);) Apply(batch);
    });
  }
  grpc::Status End() {
    context_.TryCancel();
    return Wait();
  }
  // Waits until the server ends the stream.
  grpc::Status Wait() {
    if (!thread_.joinable()) StartReading();
    thread_.join();
    const grpc::Status status = reader_->Finish();
    reader_.reset();
    return status;
  }

  // Each block as the prompt's tokens up to its end.
  std::set<Tokens> Texts() const {
    const std::lock_guard lock(mutex_);
    std::set<Tokens> texts;
    for (const int64_t hash : there_) texts.insert(TextOf(hash));
    return texts;
  }
  uint64_t last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  int snapshots() const {
    const std::lock_guard lock(mutex_);
    return snapshots_;
  }
  std::set<uint32_t> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  struct Block {
    std::optional<int64_t> parent;
    Tokens tokens;
  };

  // A channel with fixed windows, so that unread messages stay on the server.
  static std::shared_ptr<grpc::Channel> ChannelTo(const TestServer& server) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  void Apply(const common::KvEventBatch& batch) {
    const std::lock_guard lock(mutex_);
    if (batch.has_snapshot()) {
      const common::KvSnapshotChunk& chunk = batch.snapshot();
      EXPECT_EQ(batch.events(0).has_cleared(), chunk.index() == 0);
      snapshots_ += chunk.index() == 0;
    } else if (batch.sequence_number() == last_) {
      return;  // already known
    } else {
      EXPECT_EQ(batch.sequence_number(), last_ + 1);
    }
    EXPECT_GT(batch.timestamp(), 1.7e9);
    last_ = batch.sequence_number();
    for (const common::KvCacheEvent& event : batch.events()) {
      if (event.has_cleared()) there_.clear();
      if (event.has_stored()) Store(event.stored());
      for (const int64_t hash : event.removed().block_hashes()) EXPECT_EQ(there_.erase(hash), 1u);
    }
  }
  void Store(const common::KvBlocksStored& stored) {
    std::optional<int64_t> parent;
    if (stored.has_parent_block_hash()) parent = stored.parent_block_hash();
    for (const common::KvBlock& block : stored.blocks()) {
      EXPECT_EQ(block.block_size(), kBlock);
      EXPECT_EQ(block.token_ids_size(), kBlock);
      blocks_[block.block_hash()] = {parent, {block.token_ids().begin(), block.token_ids().end()}};
      tokens_.insert(block.token_ids().begin(), block.token_ids().end());
      EXPECT_TRUE(there_.insert(block.block_hash()).second);
      parent = block.block_hash();
    }
  }
  Tokens TextOf(int64_t hash) const {
    const Block& block = blocks_.at(hash);
    Tokens text = block.parent.has_value() ? TextOf(*block.parent) : Tokens();
    text.insert(text.end(), block.tokens.begin(), block.tokens.end());
    return text;
  }

  const std::unique_ptr<VllmEngine::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<common::KvEventBatch>> reader_;
  std::thread thread_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<int64_t, Block> blocks_;  // including removed ones
  std::set<int64_t> there_;
  std::set<uint32_t> tokens_;  // all ever seen
  uint64_t last_;
  int snapshots_ = 0;
};

// The cache as its header describes it, for sequential requests.
class PlainCache {
 public:
  explicit PlainCache(size_t blocks) : blocks_(blocks) {}

  // REQUIRES: the prompt does not end at a block's end
  void Read(const Tokens& prompt) {
    std::vector<Tokens> texts;
    for (size_t end = kBlock; end <= prompt.size(); end += kBlock)
      texts.emplace_back(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(end));
    size_t cached = 0;
    while (cached < texts.size() && Erase(texts[cached])) ++cached;
    size_t end = cached;
    for (size_t held = cached; end < texts.size(); ++end, ++held) {
      if (order_.size() + held < blocks_) continue;
      if (order_.empty()) break;
      order_.pop_front();
    }
    for (size_t i = end; i-- > cached;) order_.push_back(texts[i]);
    for (size_t i = cached; i-- > 0;) order_.push_back(texts[i]);
  }
  void Clear() { order_.clear(); }
  std::set<Tokens> Texts() const { return {order_.begin(), order_.end()}; }

 private:
  bool Erase(const Tokens& text) {
    const auto it = std::ranges::find(order_, text);
    if (it == order_.end()) return false;
    order_.erase(it);
    return true;
  }

  const size_t blocks_;
  std::list<Tokens> order_;  // least recently used first
};

class KvEventStreamTest : public testing::Test {
 protected:
  static constexpr int kBlocks = 10;

  explicit KvEventStreamTest(int blocks = kBlocks)
      : plain_(static_cast<size_t>(blocks)), server_([blocks] {
          TestServerOptions options;
          options.limits.num_prefix_blocks = blocks;
          return options;
        }()) {}

  void Ask(const Tokens& prompt, const std::string& salt = "") {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_stopping()->set_max_tokens(1);
    if (!salt.empty()) request.mutable_cache()->set_cache_salt(salt);
    const StreamResult result = RunToEnd(server_.stub(), request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    if (salt.empty()) plain_.Read(prompt);
  }
  // Uses few beginnings, so that many prompts share one.
  Tokens Prompt(int most_blocks = 4) {
    Tokens prompt;
    for (unsigned i = 0, blocks = random_() % (static_cast<unsigned>(most_blocks) + 1); i < blocks;
         ++i)
      prompt.insert(prompt.end(), kBlock, 97 + random_() % 3);
    prompt.insert(prompt.end(), 1 + random_() % (kBlock - 1), 65 + random_() % 20);
    return prompt;
  }
  void ExpectSame(const Subscriber& subscriber) {
    EXPECT_TRUE(WaitFor([&] { return subscriber.Texts() == plain_.Texts(); }))
        << "seed " << kSeed << ": " << subscriber.Texts().size() << " blocks, and "
        << plain_.Texts().size() << " of the model";
  }

  static constexpr unsigned kSeed = 20261126;
  std::mt19937 random_{kSeed};
  PlainCache plain_;
  TestServer server_;
};

TEST_F(KvEventStreamTest, EqualsAPlainModel) {
  Subscriber subscriber(server_);
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    Ask(Prompt());
    ExpectSame(subscriber);
  }
  EXPECT_EQ(subscriber.snapshots(), 1) << "of nothing, at the beginning";
  const Subscriber late(server_);
  ExpectSame(late);
  EXPECT_EQ(late.snapshots(), 1);
  EXPECT_GT(server_.loop->Stats().prefix_cache.evicted_blocks, 100u);
}

TEST_F(KvEventStreamTest, AReconnectingClientGetsMissedEvents) {
  Subscriber first(server_);
  for (int i = 0; i < 10; ++i) Ask(Prompt());
  ExpectSame(first);
  first.End();
  const uint64_t last = first.last();
  {
    const Subscriber idle(server_, first);
    ExpectSame(idle);
    EXPECT_EQ(idle.snapshots(), 0) << "nothing was missed";
  }
  for (int i = 0; i < 10; ++i) Ask(Prompt());
  const Subscriber again(server_, first);
  ExpectSame(again);
  EXPECT_EQ(again.snapshots(), 0);
  EXPECT_GT(again.last(), last);
  // Numbers of another process, or never used.
  for (const uint64_t other : {uint64_t{1}, last - 1'000'000, last + 1'000'000, ~uint64_t{0}}) {
    const Subscriber lost(server_, other);
    ExpectSame(lost);
    EXPECT_EQ(lost.snapshots(), 1) << other;
  }
}

TEST_F(KvEventStreamTest, FlushedBlocksAreRemoved) {
  const Subscriber subscriber(server_);
  for (int i = 0; i < 5; ++i) Ask(Prompt());
  ExpectSame(subscriber);
  EXPECT_FALSE(subscriber.Texts().empty());
  const auto stub = VllmEngine::NewStub(server_.NewChannel());
  grpc::ClientContext context;
  common::FlushCacheResponse flushed;
  ASSERT_TRUE(stub->FlushCache(&context, {}, &flushed).ok());
  plain_.Clear();
  ExpectSame(subscriber);
  Ask(Prompt());
  ExpectSame(subscriber);
}

TEST_F(KvEventStreamTest, SaltedPromptsAreNotPublished) {
  const Subscriber subscriber(server_);
  const Tokens secret(3 * kBlock, 200);
  Ask(secret, "mine");
  Ask(Tokens(kBlock + 1, 65));
  ExpectSame(subscriber);
  const Subscriber late(server_);
  ExpectSame(late);
  EXPECT_EQ(subscriber.tokens(), std::set<uint32_t>{65});
  EXPECT_EQ(late.tokens(), std::set<uint32_t>{65});
  EXPECT_EQ(server_.loop->Stats().prefix_cache.filled_blocks, 4);
}

TEST_F(KvEventStreamTest, TheServerEndsIt) {
  Subscriber subscriber(server_);
  Ask(Prompt());
  ExpectSame(subscriber);
  server_.server->Shutdown(std::chrono::seconds(20));  // no grace: unsent messages are cut
  const grpc::Status status = subscriber.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
}

class LargeCache : public KvEventStreamTest {
 protected:
  LargeCache() : KvEventStreamTest(200) {}
};

// Batches that it has not read in time are no longer stored.
TEST_F(LargeCache, ASlowReaderGetsASnapshot) {
  Subscriber slow(server_, 0, /*reads=*/false);
  Subscriber fast(server_);
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    Tokens prompt;
    while (prompt.size() < 2000) prompt.push_back(random_() % 256);
    Ask(prompt);
  }
  ExpectSame(fast);
  EXPECT_EQ(fast.snapshots(), 1);
  slow.StartReading();
  ExpectSame(slow);
  EXPECT_EQ(slow.snapshots(), 2);
}

TEST(KvEventStream, SaysNoWhileTheModelLoads) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  Subscriber subscriber(server);
  const grpc::Status status = subscriber.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "LOADING");
}

TEST(KvEventStream, ALongSnapshotIsSeveralMessages) {
  KvEvents::Snapshot snapshot{.sequence = 100, .blocks = {}};
  for (int i = 0; i < 10'000; ++i) snapshot.blocks.push_back({.hash = i});
  const auto chunks = ToWireSnapshot(snapshot, 2.5);
  ASSERT_EQ(chunks.size(), 3u);
  int64_t blocks = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i].sequence_number(), 98 + i);
    EXPECT_EQ(chunks[i].snapshot().index(), i);
    EXPECT_EQ(chunks[i].snapshot().count(), 3u);
    EXPECT_EQ(chunks[i].snapshot().blocks(), 10'000u);
    EXPECT_LT(chunks[i].ByteSizeLong(), size_t{4} << 20) << "what clients take";
    for (const common::KvCacheEvent& event : chunks[i].events())
      blocks += event.stored().blocks_size();
  }
  EXPECT_EQ(blocks, 10'000);
  EXPECT_EQ(ToWireSnapshot({.sequence = 7, .blocks = {}}, 1).size(), 1u) << "of nothing";
}

}  // namespace
}  // namespace hydrant
