#include "server/startup/cache_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "engine/run/engine.h"
#include "server/startup/given_text.h"
#include "tests/engine/run/random_model.h"
#include "tests/server/byte_tokenizer.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The loss of a random model with such pages.
CacheLoss LossOf(DType pages, int max_model_len = 1024) {
  ModelConfig config = SmallConfig(4, 2, 32);
  config.vocab_size = ByteTokenizer::kVocab;
  config.max_context = 1024;
  EngineOptions options;
  options.sampled_vocab = ByteTokenizer::kVocab;
  options.dtype = WeightDType::kFloat32;
  options.kv_cache_dtype = pages;
  options.max_model_len = max_model_len;
  options.num_blocks_override = 4096;
  const auto engine = *Engine::Create(MakeRandomModel(config, 3), options, nullptr);
  const ByteTokenizer tokenizer;
  EventRouter router;
  const auto loop = *ServingLoop::Start(engine.get(), &tokenizer, {}, &router);
  RequestHandle handle = 0;
  const StartupRequests requests(loop.get(), &router, [&] { return ++handle; });
  const absl::StatusOr<CacheLoss> loss = MeasureCacheLoss(requests, tokenizer, max_model_len);
  EXPECT_TRUE(loss.ok()) << loss.status();
  loop->Stop();
  return loss.value_or(CacheLoss{});
}

TEST(MeasureCacheLoss, IsZeroWithoutRoundingAndGrowsWithIt) {
  const CacheLoss f32 = LossOf(DType::kF32), f16 = LossOf(DType::kF16);
  const CacheLoss int8 = LossOf(DType::kQ8_0), int4 = LossOf(DType::kQ4_0);
  EXPECT_EQ(f32.tokens, 159);
  EXPECT_NEAR(f32.nats, 0.0, 1e-6);
  EXPECT_NEAR(f16.nats, 0.0, 1e-4);
  EXPECT_GT(int8.nats, std::abs(f16.nats));
  EXPECT_GT(int4.nats, 3 * int8.nats);
}

TEST(MeasureCacheLoss, MeasuresFewTokensOrNoneWhereNoMoreFit) {
  EXPECT_EQ(LossOf(DType::kQ4_0, 2).tokens, 0);
  EXPECT_EQ(LossOf(DType::kQ4_0, 4).tokens, 0);
  // Of eight tokens four are given and four measured; the first of them follows the prompt.
  EXPECT_EQ(LossOf(DType::kQ4_0, 9).tokens, 3);
}

TEST(JudgeCacheLoss, RefusesMuchAndSaysWhatToDo) {
  EXPECT_TRUE(JudgeCacheLoss({.nats = 0.0, .tokens = 0}, DType::kQ4_0, false).ok());
  EXPECT_TRUE(JudgeCacheLoss({.nats = kMostCacheLoss, .tokens = 9}, DType::kQ4_0, false).ok());
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double nats : {kMostCacheLoss * 1.01, infinite, std::nan("")}) {
    const CacheLoss loss = {.nats = nats, .tokens = 9};
    const absl::Status refused = JudgeCacheLoss(loss, DType::kQ4_0, false);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("--kv-cache-dtype int4"), HasSubstr("more than 0.05"),
                      HasSubstr("--force-kv-cache-dtype")));
    EXPECT_TRUE(JudgeCacheLoss(loss, DType::kQ4_0, true).ok());
  }
}

TEST(GivenText, AdmitsItsTokensAlone) {
  std::unique_ptr<TokenConstraint> constraint = GivenText({33, 0}).NewConstraint();
  uint32_t mask[2] = {7, 7};
  EXPECT_EQ(constraint->FillMask(mask), NextTokens::kSome);
  EXPECT_THAT(mask, testing::ElementsAre(0u, 2u));
  EXPECT_FALSE(constraint->Accept(0));
  EXPECT_TRUE(constraint->Accept(33));
  EXPECT_FALSE(constraint->IsComplete());
  EXPECT_EQ(constraint->FillMask(mask), NextTokens::kSome);
  EXPECT_THAT(mask, testing::ElementsAre(1u, 0u));
  EXPECT_TRUE(constraint->Accept(0));
  EXPECT_TRUE(constraint->IsComplete());
  EXPECT_EQ(constraint->FillMask(mask), NextTokens::kEnd);
  EXPECT_FALSE(constraint->Accept(0));
}

}  // namespace
}  // namespace hydrant
