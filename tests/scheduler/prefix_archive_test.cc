// Prefix blocks in a store: loops with fake engines, which check the contents of loaded blocks,
// over an in-memory store that can fail. Run it under ThreadSanitizer.
#include "scheduler/prefix_archive.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/call_on_loop.h"
#include "scheduler/context_file.h"
#include "tests/scheduler/collecting_sink.h"
#include "tests/scheduler/fake_engine.h"
#include "tests/scheduler/fake_tokenizer.h"
#include "tests/scheduler/gated_store.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

constexpr int kBlock = 32;

struct Values {
  absl::Status Check() {
    ++calls;
    return failure;
  }
  std::mutex mutex;
  std::map<std::string, std::string> by_key;
  absl::Status failure;  // status of every call
  int calls = 0;
  int puts = 0;
};

// One store that several archives share.
class MemoryStore final : public ContextStore {
 public:
  explicit MemoryStore(std::shared_ptr<Values> values) : values_(std::move(values)) {}
  absl::Status Put(std::string_view key, std::string_view value,
                   std::optional<int64_t> /*ttl_seconds*/, StoreDeadline /*deadline*/) override {
    EXPECT_TRUE(CheckStoreKey(key).ok()) << key;
    const std::lock_guard<std::mutex> lock(values_->mutex);
    if (const absl::Status status = values_->Check(); !status.ok()) return status;
    ++values_->puts;
    values_->by_key[std::string(key)] = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes,
                                  StoreDeadline /*deadline*/) override {
    EXPECT_LT(max_bytes, size_t{1} << 30);
    const std::lock_guard<std::mutex> lock(values_->mutex);
    if (const absl::Status status = values_->Check(); !status.ok()) return status;
    const auto it = values_->by_key.find(std::string(key));
    if (it == values_->by_key.end()) return absl::NotFoundError("no such key");
    return it->second;
  }
  absl::StatusOr<bool> Delete(std::string_view, StoreDeadline) override { return false; }
  absl::StatusOr<int64_t> SizeOf(std::string_view, StoreDeadline) override { return 0; }
  absl::StatusOr<std::vector<StoredKey>> List(std::string_view, StoreDeadline) override {
    return std::vector<StoredKey>();
  }
  std::string Description() const override { return "memory"; }

 private:
  std::shared_ptr<Values> values_;
};

EngineLimits Limits(int num_prefix_blocks = 200) {
  EngineLimits limits = SmallLimits();
  limits.num_blocks = 4000;
  limits.table_entries = 8000;
  limits.max_model_len = limits.prefill_arena_tokens = 640;
  limits.num_prefix_blocks = num_prefix_blocks;
  limits.query_blocks = 2;
  limits.sums_a_prefix_block = 64;
  return limits;
}

// A server and its archive.
class Replica {
 public:
  explicit Replica(const std::shared_ptr<Values>& values, const EngineLimits& limits = Limits())
      : Replica(std::make_unique<MemoryStore>(values), limits) {}
  explicit Replica(std::unique_ptr<ContextStore> store, const EngineLimits& limits = Limits())
      : engine_(limits) {
    loop = *ServingLoop::Start(&engine_, &tokenizer_, {}, &sink_);
    archive = std::make_unique<PrefixArchive>(loop.get(), &tokenizer_, limits,
                                              engine_.prefix_memory(), std::move(store),
                                              [this](const absl::Status&) { ++failures; });
  }
  ~Replica() { loop->Stop(); }

  Finished Run(const Request& request) {
    archive->Fetch(request);
    const RequestHandle handle = ++handle_;
    EXPECT_TRUE(std::holds_alternative<Queued>(loop->Submit(handle, request)));
    const Stream stream = sink_.WaitForEnd(handle);
    EXPECT_TRUE(stream.finished.has_value());
    tokens = stream.token_ids;
    return stream.finished.value_or(Finished());
  }
  bool Flush() {
    return archive->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  }

  std::unique_ptr<ServingLoop> loop;
  std::unique_ptr<PrefixArchive> archive;
  std::vector<TokenId> tokens;  // of the last answer
  std::atomic<int> failures{0};

 private:
  FakeTokenizer tokenizer_;
  FakeEngine engine_;
  CollectingSink sink_;
  std::atomic<RequestHandle> handle_{0};
};

Request Ask(const std::string& policy, int tokens = 500) {
  Request request = MakeRequest(tokens, 4);
  request.cache.policy = policy;
  if (policy != "full") request.cache.max_cache_tokens = 40;
  return request;
}

TEST(PrefixArchiveTest, BlocksOfOneServerServeAnother) {
  for (const char* policy : {"full", "snapkv", "h2o", "scissorhands", "echo", "reconstruct"}) {
    SCOPED_TRACE(policy);
    const auto values = std::make_shared<Values>();
    const Request request = Ask(policy, 300);
    std::vector<TokenId> tokens;
    int32_t cached = 0;
    {
      Replica first(values);
      EXPECT_EQ(first.Run(request).usage->cached_tokens, 0);
      cached = first.Run(request).usage->cached_tokens;
      tokens = first.tokens;
      ASSERT_TRUE(first.Flush());
      EXPECT_GT(cached, 0);
      EXPECT_EQ(first.archive->metrics().loaded_tokens, 0u) << "it was there";
    }
    Replica second(values);
    EXPECT_EQ(second.Run(request).usage->cached_tokens, cached);
    EXPECT_EQ(second.tokens, tokens);
    EXPECT_EQ(second.archive->metrics().loaded_tokens, static_cast<uint64_t>(cached));
    EXPECT_EQ(second.failures, 0);
  }
}

// A block is written once, however often it is read.
TEST(PrefixArchiveTest, SavesNewBlocks) {
  const auto values = std::make_shared<Values>();
  Replica first(values);
  first.Run(Ask("full"));
  ASSERT_TRUE(first.Flush());
  EXPECT_EQ(values->puts, 500 / kBlock);
  Replica second(values);
  Request longer = Ask("full", 600);
  second.Run(longer);
  ASSERT_TRUE(second.Flush());
  EXPECT_EQ(values->puts, 600 / kBlock);
  second.Run(longer);
  ASSERT_TRUE(second.Flush());
  EXPECT_EQ(values->puts, 600 / kBlock);
}

// KV events report blocks loaded from the store like blocks computed here.
TEST(PrefixArchiveTest, FetchedBlocksArePublished) {
  const auto values = std::make_shared<Values>();
  const auto told = [](const Replica& replica) {
    std::vector<std::pair<KvBlockHash, std::vector<TokenId>>> blocks;
    for (const KvBlock& block : replica.loop->kv_events().Blocks().blocks)
      blocks.emplace_back(block.hash, std::vector(block.tokens.begin(), block.tokens.end()));
    return blocks;
  };
  for (const bool is_published : {false, true}) {
    Request request = Ask("echo");  // saves queries, too
    request.publish_kv_events = is_published;
    Replica first(values), second(values);
    first.Run(request);
    ASSERT_TRUE(first.Flush());
    second.archive->Fetch(request);
    EXPECT_GT(second.archive->metrics().loaded_tokens, 0u);
    // This call runs on the loop after its events were published.
    CallOnLoop(second.loop.get(), &ServingLoop::WithPrefixCache, [](PrefixCache*) { return true; });
    EXPECT_EQ(told(first).size(), is_published ? size_t{500 / kBlock} : 0u);
    const size_t loaded = second.archive->metrics().loaded_tokens / kBlock;
    auto expected = told(first);
    expected.resize(std::min(expected.size(), loaded));
    EXPECT_EQ(told(second), expected);
  }
}

TEST(PrefixArchiveTest, NeitherAcrossSaltsNorWhereItIsOff) {
  const auto values = std::make_shared<Values>();
  Request request = Ask("full");
  request.cache_salt = "a";
  Replica first(values);
  first.Run(request);
  ASSERT_TRUE(first.Flush());
  Replica second(values);
  request.cache_salt = "b";
  EXPECT_EQ(second.Run(request).usage->cached_tokens, 0);
  ASSERT_TRUE(second.Flush());
  request.cache_salt = "a";
  request.prefix_caching = false;
  const int calls = values->calls;
  EXPECT_EQ(second.Run(request).usage->cached_tokens, 0);
  ASSERT_TRUE(second.Flush());
  EXPECT_EQ(values->calls, calls);
  request.prefix_caching = true;
  EXPECT_EQ(second.Run(request).usage->cached_tokens, 480);
}

// Secrets differ between models and between cache formats.
TEST(PrefixArchiveTest, TheSecretTellsModelsApart) {
  ContextHome home;
  home.layout.head_dim = 64;
  const Sha256Digest secret = PrefixSecretOf(home);
  EXPECT_EQ(PrefixSecretOf(home), secret);
  ContextHome other = home;
  other.model[3] = 1;
  EXPECT_NE(PrefixSecretOf(other), secret);
  other = home;
  other.layout.dtype = DType::kF16;
  EXPECT_NE(PrefixSecretOf(other), secret);
  other = home;
  other.limits.num_layers = 7;
  EXPECT_NE(PrefixSecretOf(other), secret);
}

// Blocks before a useless value are used.
TEST(PrefixArchiveTest, AValueThatIsWrongIsNotThere) {
  const auto values = std::make_shared<Values>();
  Replica first(values);
  first.Run(Ask("full"));
  ASSERT_TRUE(first.Flush());
  const std::map<std::string, std::string> right = values->by_key;
  using Spoil = void (*)(std::string*);
  for (const Spoil spoil : {
           Spoil([](std::string* value) { value->clear(); }),
           Spoil([](std::string* value) { value->pop_back(); }),
           Spoil([](std::string* value) { value->push_back(0); }),
           Spoil([](std::string* value) { value->front() ^= 1; }),
           Spoil([](std::string* value) { value->back() ^= 1; }),
           Spoil([](std::string* value) { (*value)[10] ^= 1; }),
       }) {
    std::set<int32_t> found;
    for (const auto& [key, value] : right) {
      values->by_key = right;
      spoil(&values->by_key[key]);
      Replica second(values);
      const int32_t cached = second.Run(Ask("full")).usage->cached_tokens;
      EXPECT_EQ(second.tokens, first.tokens);
      EXPECT_EQ(second.archive->metrics().failed_loads, 1u);
      EXPECT_EQ(second.failures, 1);
      EXPECT_TRUE(found.insert(cached).second) << "another block is missing each time";
    }
    EXPECT_EQ(found.size(), right.size());
    EXPECT_EQ(*found.rbegin(), 448);
  }
  // A value under another block's key, too.
  values->by_key = right;
  values->by_key.begin()->second = std::next(values->by_key.begin())->second;
  Replica second(values);
  second.Run(Ask("full"));
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.archive->metrics().failed_loads, 1u);
}

TEST(PrefixArchiveTest, AStoreThatFailsIsLeftAlone) {
  const auto values = std::make_shared<Values>();
  values->failure = absl::UnavailableError("gone");
  Replica replica(values);
  EXPECT_EQ(replica.Run(Ask("full")).usage->cached_tokens, 0);
  ASSERT_TRUE(replica.Flush());
  EXPECT_EQ(values->calls, 1);
  EXPECT_EQ(replica.failures, 1);
  EXPECT_EQ(replica.archive->metrics().failed_saves, 500u / kBlock);
  EXPECT_EQ(replica.Run(Ask("full")).usage->cached_tokens, 480) << "from memory";
}

// The store is called only for blocks that it may hold.
TEST(PrefixArchiveTest, WithNothingToFetchTheStoreIsNotCalled) {
  const auto values = std::make_shared<Values>();
  Replica replica(values);
  EXPECT_FALSE(replica.archive->MayFetch(Ask("full", 2)));
  EXPECT_TRUE(replica.archive->MayFetch(Ask("full", kBlock + 1)));
  replica.Run(Ask("full", 2));
  replica.Run(Ask("full", kBlock - 1));
  ASSERT_TRUE(replica.Flush());
  EXPECT_EQ(values->calls, 0);
  replica.Run(Ask("full"));
  ASSERT_TRUE(replica.Flush());
  const int calls = values->calls;
  EXPECT_EQ(replica.Run(Ask("full")).usage->cached_tokens, 480);
  EXPECT_EQ(values->calls, calls) << "all of it is here";
}

// Prompts are prefilled without the store; only the first prompt has waited for it.
TEST(PrefixArchiveTest, AStoreThatDoesNotAnswerIsLeftAlone) {
  const auto gate = std::make_shared<Gate>();
  gate->Hold([](Gate::Call, const std::string&) { return true; });
  Replica replica(std::make_unique<GatedStore>(gate));
  replica.Run(Ask("full"));
  EXPECT_FALSE(replica.archive->MayFetch(Ask("full")));
  EXPECT_TRUE(replica.archive->circuit().is_open());
  EXPECT_EQ(replica.failures, 1);
  const int calls = gate->calls();
  replica.archive->Fetch(Ask("snapkv"));
  EXPECT_EQ(gate->calls(), calls);
  gate->Open();
}

TEST(PrefixArchiveTest, ACancelledPromptWaitsForNoStore) {
  const auto gate = std::make_shared<Gate>();
  gate->Hold([](Gate::Call, const std::string&) { return true; });
  Replica replica(std::make_unique<GatedStore>(gate));
  std::stop_source gone;
  std::thread client([&] {
    gate->WaitUntilHeld(1);
    gone.request_stop();
  });
  replica.archive->Fetch(Ask("full"), gone.get_token());
  client.join();
  EXPECT_FALSE(replica.archive->circuit().is_open()) << "it did not wait for its second";
  EXPECT_EQ(replica.failures, 0);
  gate->Open();
}

// A prefix cache smaller than a prompt: saves take the blocks that fit, and a load uses at most
// half of it.
TEST(PrefixArchiveTest, WithLittleRoom) {
  const auto values = std::make_shared<Values>();
  Replica first(values);
  first.Run(Ask("full"));
  ASSERT_TRUE(first.Flush());
  Replica second(values, Limits(8));
  EXPECT_EQ(second.Run(Ask("full")).usage->cached_tokens, 4 * kBlock);
  EXPECT_EQ(second.tokens, first.tokens);
}

// Prompts with shared prefixes, of all policies, on several replicas, with random cancels.
TEST(PrefixArchiveTest, ManyAtOnce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto values = std::make_shared<Values>();
  std::vector<std::unique_ptr<Replica>> replicas;
  replicas.reserve(3);
  for (int i = 0; i < 3; ++i) replicas.push_back(std::make_unique<Replica>(values, Limits(60)));
  std::vector<std::thread> clients;
  clients.reserve(6);
  for (int client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937_64 random(seed + client);
      const char* policies[] = {"full", "h2o", "echo", "snapkv"};
      for (int i = 0; i < 30; ++i) {
        Replica& replica = *replicas[random() % replicas.size()];
        Request request = Ask(policies[random() % 4], 100 + static_cast<int>(random() % 400));
        const RequestHandle handle = 1'000'000 + client * 1000 + i;
        replica.archive->Fetch(request);
        EXPECT_TRUE(std::holds_alternative<Queued>(replica.loop->Submit(handle, request)));
        if (random() % 4 == 0) replica.loop->Cancel(handle, absl::CancelledError("test"));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& replica : replicas) {
    while (!replica->loop->Idle()) std::this_thread::yield();
    EXPECT_TRUE(replica->Flush());
    EXPECT_EQ(replica->failures, 0);
  }
}

TEST(PrefixArchiveTest, ALoopThatHasStoppedAnswersNothing) {
  const auto values = std::make_shared<Values>();
  Replica first(values);
  first.Run(Ask("full"));
  ASSERT_TRUE(first.Flush());
  Replica second(values);
  second.loop->Stop();
  second.archive->Fetch(Ask("full"));
}

}  // namespace
}  // namespace hydrant
