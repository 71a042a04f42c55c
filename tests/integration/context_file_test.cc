// Contexts as files: damaged, foreign or forged files are rejected with their cause, and accepted
// files can be continued.
#include "scheduler/context_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/engine/run/random_model.h"
#include "tests/integration/driven_server.h"

namespace hydrant {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr size_t kMagicBytes = 8;
constexpr size_t kPartHeader = sizeof(uint64_t) + sizeof(Sha256Digest);

struct Parts {
  std::string head, body;
};

Parts Taken(const std::string& file) {
  Parts parts;
  size_t at = kMagicBytes;
  for (std::string* part : {&parts.head, &parts.body}) {
    uint64_t size = 0;
    std::memcpy(&size, file.data() + at, sizeof(size));
    *part = file.substr(at + kPartHeader, size);
    at += kPartHeader + size;
  }
  EXPECT_EQ(at, file.size());
  return parts;
}

// Adds valid checksums, as an attacker would.
std::string Signed(const Parts& parts, const std::string& magic = "HYDRCTX2") {
  std::string file = magic;
  for (const std::string* part : {&parts.head, &parts.body}) {
    const uint64_t size = part->size();
    file.append(reinterpret_cast<const char*>(&size), sizeof(size));
    Sha256 hash;
    hash.Add(*part);
    const Sha256Digest digest = hash.Finish();
    file.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    file += *part;
  }
  return file;
}

class ContextFileTest : public testing::Test {
 protected:
  ContextFileTest() { server_ = MakeServer(); }

  std::unique_ptr<Server> MakeServer(DType kv_dtype = DType::kF16, int max_model_len = 0) const {
    EngineOptions options = InvariantOptions("cpu", kv_dtype);
    options.num_blocks_override = 400;
    options.context_memory_bytes = 16 << 20;
    if (max_model_len > 0) options.max_model_len = max_model_len;
    return std::make_unique<Server>(model_, options);
  }
  Request MakeRequest(const std::string& policy, int tokens = 60) const {
    Request request;
    request.prompt = RandomTokens(tokens, model_->config().vocab_size, 1);
    request.cache.policy = policy;
    if (policy != "full") request.cache.max_cache_tokens = 20;
    request.cache_salt = "a salt";
    request.sampling.temperature = 0;
    request.stopping.max_tokens = 4;
    request.stopping.ignore_eos = true;
    request.keep_as.handle = "kept";
    return request;
  }
  std::string FileOf(const Request& request) {
    const Answer answer = server_->Run(request);
    EXPECT_EQ(answer.context, "kept");
    return server_->Save({"a salt", "kept"});
  }
  absl::Status Refusal(const std::string& bytes) const {
    return DecodeContext(bytes, server_->Home()).status();
  }

  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(SmallConfig(4, 2), 5);
  std::unique_ptr<Server> server_;
};

TEST_F(ContextFileTest, SaysAllOfAContext) {
  Request request = MakeRequest("snapkv");
  request.keep_as = {.handle = "kept", .created_at = 1000, .expires_at = 5000, .pinned = true};
  request.question_tokens = 10;
  request.cache.params = {{"decode_cap", "25"}};
  const std::string bytes = FileOf(request);
  const auto file = DecodeContext(bytes, server_->Home());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto context = server_->contexts().Find({"a salt", "kept"}, 0);
  ASSERT_NE(context, nullptr);
  const Context& read = *file->context;
  EXPECT_EQ(read.id, context->id);
  EXPECT_EQ(read.tokens, context->tokens);
  EXPECT_EQ(read.num_seen, context->num_seen);
  EXPECT_EQ(read.append_ranges, (std::vector<TokenRange>{{50, 60}})) << "the question";
  EXPECT_EQ(read.spec.policy, "snapkv");
  EXPECT_EQ(read.spec.max_cache_tokens, 20);
  EXPECT_EQ(read.spec.params.at("decode_cap"), "25");
  EXPECT_EQ(read.plan.prompt.question_tokens, 10);
  EXPECT_EQ(read.plan.cap, context->plan.cap);
  EXPECT_EQ(read.entries, context->entries);
  EXPECT_EQ(read.pages, context->pages);
  ASSERT_TRUE(read.retained_mass.has_value());
  EXPECT_EQ(read.retained_mass->mean, context->retained_mass->mean);
  EXPECT_EQ(read.created_at, 1000);
  EXPECT_EQ(read.expires_at, 5000);
  EXPECT_TRUE(read.pinned);
}

// Scores of different predictors do not compare. Other policies need none.
TEST_F(ContextFileTest, PredictedScoresNeedTheirPredictor) {
  ContextHome with = server_->Home(), another = with, without = with;
  ASSERT_NE(with.limits.score_predictor, 0u);
  another.limits.score_predictor ^= 1;
  without.limits.score_predictor = 0;
  for (const char* policy : {"learned", "auto", "h2o"}) {
    SCOPED_TRACE(policy);
    const std::string file = FileOf(MakeRequest(policy));
    const auto read = DecodeContext(file, with);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->context->plan.rule.predicted, std::string_view(policy) != "h2o");
    for (const ContextHome* home : {&another, &without}) {
      const absl::Status status = DecodeContext(file, *home).status();
      if (std::string_view(policy) == "h2o") {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(status.message(), HasSubstr("another score predictor"));
    }
  }
}

TEST_F(ContextFileTest, IsAsSmallAsItsEntries) {
  const size_t compressed = FileOf(MakeRequest("h2o", 200)).size();
  const size_t full = FileOf(MakeRequest("full", 200)).size();
  // 20 of 200 entries, and 200 token ids.
  EXPECT_LT(compressed, full / 7);
}

TEST_F(ContextFileTest, CutAnywhereItIsRefused) {
  const std::string file = FileOf(MakeRequest("h2o"));
  for (size_t size = 0; size < file.size(); size += 1 + size / 64) {
    const absl::Status status = Refusal(file.substr(0, size));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << size << ": " << status;
  }
  EXPECT_THAT(Refusal(file.substr(0, file.size() - 1)).message(), HasSubstr("body is cut short"));
  EXPECT_THAT(Refusal(file + "x").message(), HasSubstr("more or fewer bytes"));
  EXPECT_THAT(Refusal("").message(), HasSubstr("no context"));
}

TEST_F(ContextFileTest, OneChangedBitAnywhereIsRefused) {
  const std::string file = FileOf(MakeRequest("h2o"));
  for (size_t at = 0; at < file.size(); at += at < 4000 ? 1 : 101) {
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    const absl::Status status = Refusal(changed);
    EXPECT_FALSE(status.ok()) << at;
    EXPECT_EQ(status.code() == StatusCode::kFailedPrecondition, at == kMagicBytes - 1) << status;
  }
  std::string changed = file;
  changed[file.size() - 1] ^= 1;
  EXPECT_THAT(Refusal(changed).message(), HasSubstr("its body was changed"));
  changed = file;
  changed[100] ^= 1;
  EXPECT_THAT(Refusal(changed).message(), HasSubstr("its head was changed"));
}

TEST_F(ContextFileTest, OtherFilesAreRefusedByName) {
  const std::string file = FileOf(MakeRequest("h2o"));
  const auto refusal = [&](auto change) {
    ContextHome home = server_->Home();
    change(home);
    const absl::Status status = DecodeContext(file, home).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](ContextHome& home) { home.model[3] ^= 1; }),
              HasSubstr("another model or tokenizer"));
  EXPECT_THAT(refusal([](ContextHome& home) { home.layout.dtype = DType::kBF16; }),
              HasSubstr("--kv-cache-dtype"));
  EXPECT_THAT(refusal([](ContextHome& home) { home.limits.num_kv_heads = 4; }),
              HasSubstr("another number format"));
  const Parts parts = Taken(file);
  EXPECT_TRUE(Refusal(Signed(parts)).ok());
  const absl::Status newer = Refusal(Signed(parts, "HYDRCTX3"));
  EXPECT_EQ(newer.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(newer.message(), HasSubstr("newer version"));
  ContextHome small = server_->Home();
  small.vocab_size = 3;
  EXPECT_EQ(DecodeContext(file, small).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(MakeServer(DType::kBF16)->Load(file).code(), StatusCode::kFailedPrecondition);
}

TEST_F(ContextFileTest, NumbersThatAreNoneAreRefused) {
  const Parts good = Taken(FileOf(MakeRequest("h2o")));
  const auto server = MakeServer();
  const KvLayout layout = server->Home().layout;
  const size_t vectors = 2 * BytesOf(layout.dtype, layout.head_dim);
  const auto file = DecodeContext(Signed(good), server->Home());
  ASSERT_TRUE(file.ok());
  const int32_t length = file->lengths[0];
  const auto refusal = [&](size_t at, auto value) {
    Parts parts = good;
    std::memcpy(parts.body.data() + at, &value, sizeof(value));
    return std::string(Refusal(Signed(parts)).message());
  };
  const size_t positions = vectors * length, scores = positions + sizeof(int32_t) * length;
  EXPECT_EQ(refusal(positions, int32_t{-1}), "an entry has the position -1");
  EXPECT_EQ(refusal(positions + 4, int32_t{1 << 30}), "an entry has the position 1073741824");
  EXPECT_EQ(refusal(scores, std::nanf("")), "an entry has the score nan");
  EXPECT_EQ(refusal(scores, 1.0f), "");
  const std::string none = "a key or value is infinite, or no number";
  ASSERT_EQ(layout.dtype, DType::kF16);
  constexpr uint16_t kInfinite = 0x7c00, kNoNumber = 0xfe00, kLargest = 0x7bff;
  EXPECT_EQ(refusal(0, kInfinite), none);
  EXPECT_EQ(refusal(positions - sizeof(uint16_t), kNoNumber), none) << "the last value";
  EXPECT_EQ(refusal(0, kLargest), "");
}

// e4m3 has one byte per value; 0x7f and 0xff are NaN.
TEST_F(ContextFileTest, OfFp8PagesComesBack) {
  server_ = MakeServer(DType::kE4M3);
  const std::string file = FileOf(MakeRequest("h2o"));
  const auto other = MakeServer(DType::kE4M3);
  ASSERT_TRUE(other->Load(file).ok());
  EXPECT_EQ(MakeServer()->Load(file).code(), StatusCode::kFailedPrecondition);
  const Parts good = Taken(file);
  const auto refusal = [&](char byte) {
    Parts parts = good;
    parts.body[1] = byte;
    return std::string(DecodeContext(Signed(parts), server_->Home()).status().message());
  };
  EXPECT_EQ(refusal('\x7f'), "a key or value is infinite, or no number");
  EXPECT_EQ(refusal('\xff'), "a key or value is infinite, or no number");
  EXPECT_EQ(refusal('\xfe'), "");
}

// Versions that did not scale keys before they rounded them wrote another byte for the dtype.
TEST_F(ContextFileTest, OfUnscaledKeysIsRefused) {
  model_ = MakeRandomModel(SmallConfig(4, 2, 32), 5);
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    server_ = MakeServer(dtype);
    Parts parts = Taken(FileOf(MakeRequest("h2o")));
    ASSERT_TRUE(Refusal(Signed(parts)).ok());
    parts.head[sizeof(uint64_t) + sizeof(Sha256Digest)] = static_cast<char>(dtype);
    const absl::Status refusal = Refusal(Signed(parts));
    EXPECT_EQ(refusal.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(refusal.message(), HasSubstr("another number format"));
  }
}

// Forged heads with valid checksums: each file is rejected, or the context can be continued.
TEST_F(ContextFileTest, MutatedFilesCrashNothing) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<Parts> files;
  for (const char* policy : {"full", "h2o", "co2", "subgen", "ada-snapkv", "streaming"}) {
    Request request = MakeRequest(policy);
    if (request.cache.policy == "co2") request.cache.params = {{"measurement_steps", "2"}};
    if (request.cache.policy == "streaming") request.cache.params = {{"rolling", "true"}};
    files.push_back(Taken(FileOf(request)));
  }
  Request growing = MakeRequest("h2o");  // continued below
  growing.cache.max_cache_tokens.reset();
  growing.cache.cache_ratio = 0.3;
  growing.cache.min_cache_tokens = 4;
  FileOf(growing);
  Request turn = MakeRequest("full", 20);
  turn.cache = CacheSpec();
  turn.context = "kept";
  files.push_back(Taken(FileOf(turn)));
  const auto server = MakeServer();
  int taken = 0, gone_on = 0;
  for (int i = 0; i < 6000; ++i) {
    Parts parts = files[i % files.size()];
    for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % parts.head.size();
      // Numbers are small and at any offset: most meaningful changes change one byte.
      constexpr uint8_t kTelling[] = {0, 1, 2, 15, 16, 17, 127, 128, 255};
      parts.head[at] = static_cast<char>(random() % 2 == 0 ? random() : kTelling[random() % 9]);
    }
    const std::string bytes = Signed(parts);
    const auto file = DecodeContext(bytes, server->Home());
    if (!file.ok()) continue;
    ++taken;
    if (!server->Load(bytes).ok()) continue;
    Request next = MakeRequest("full", 20);
    next.cache = CacheSpec();
    next.keep_as.handle = "";
    next.cache_salt = file->context->id.salt;
    next.context = file->context->id.handle;
    if (next.context.empty() || server->contexts().Resolve(&next).has_value()) continue;
    if (server->TryRun(next)) ++gone_on;
    ASSERT_FALSE(HasFatalFailure()) << "change " << i;
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(gone_on, 50);
}

}  // namespace
}  // namespace hydrant
