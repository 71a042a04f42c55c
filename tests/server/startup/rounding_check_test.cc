#include "server/startup/rounding_check.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/run/engine.h"
#include "server/startup/daemon.h"
#include "server/startup/given_text.h"
#include "tests/engine/run/random_model.h"
#include "tests/server/byte_tokenizer.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// `loudness`: of the logits; rounding moves large ones more.
std::shared_ptr<const ModelSource> RandomModel(float loudness = 1.0f) {
  ModelConfig config = SmallConfig(4, 2, 32);
  config.vocab_size = ByteTokenizer::kVocab;
  config.max_context = 1024;
  config.logit_scale = loudness;
  return MakeRandomModel(config, 3);
}

// The loss of a random model with such pages.
RoundingLoss LossOf(DType pages, int max_model_len = 1024) {
  EngineOptions options;
  options.sampled_vocab = ByteTokenizer::kVocab;
  options.dtype = WeightDType::kFloat32;
  options.kv_cache_dtype = pages;
  options.max_model_len = max_model_len;
  options.num_blocks_override = 4096;
  const auto engine = *Engine::Create(RandomModel(), options, nullptr);
  const ByteTokenizer tokenizer;
  EventRouter router;
  const auto loop = *ServingLoop::Start(engine.get(), &tokenizer, {}, &router);
  RequestHandle handle = 0;
  const StartupRequests requests(loop.get(), &router, [&] { return ++handle; });
  const absl::StatusOr<RoundingLoss> loss = MeasurePageLoss(requests, tokenizer, max_model_len);
  EXPECT_TRUE(loss.ok()) << loss.status();
  loop->Stop();
  return loss.value_or(RoundingLoss{});
}

TEST(MeasurePageLoss, IsZeroWithoutRoundingAndGrowsWithIt) {
  const RoundingLoss f32 = LossOf(DType::kF32), f16 = LossOf(DType::kF16);
  const RoundingLoss int8 = LossOf(DType::kQ8_0), int4 = LossOf(DType::kQ4_0);
  EXPECT_EQ(f32.tokens, 159);
  EXPECT_NEAR(f32.nats, 0.0, 1e-6);
  EXPECT_NEAR(f16.nats, 0.0, 1e-4);
  EXPECT_GT(int8.nats, std::abs(f16.nats));
  EXPECT_GT(int4.nats, 3 * int8.nats);
}

TEST(MeasurePageLoss, MeasuresFewTokensOrNoneWhereNoMoreFit) {
  EXPECT_EQ(LossOf(DType::kQ4_0, 2).tokens, 0);
  EXPECT_EQ(LossOf(DType::kQ4_0, 4).tokens, 0);
  // Of eight tokens four are given and four measured; the first of them follows the prompt.
  EXPECT_EQ(LossOf(DType::kQ4_0, 9).tokens, 3);
}

TEST(JudgeLoss, RefusesMuchAndSaysWhatToDo) {
  EXPECT_TRUE(JudgeLoss({.nats = 0.0, .tokens = 0}, 0.05, "dtype", "fp8").ok());
  EXPECT_TRUE(JudgeLoss({.nats = 0.05, .tokens = 9}, 0.05, "dtype", "fp8").ok());
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double nats : {0.0501, infinite, std::nan("")}) {
    const absl::Status refused = JudgeLoss({.nats = nats, .tokens = 9}, 0.05, "dtype", "fp8");
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(refused.message()),
        AllOf(HasSubstr("--dtype fp8"), HasSubstr("more than 0.05"), HasSubstr("--force-dtype")));
  }
}

// A daemon over a random model that is stopped once it serves.
class RoundingDaemon : public testing::Test {
 protected:
  RoundingDaemon() {
    BlockSignals();
    spdlog::set_level(spdlog::level::off);
    options.model_path = "random";
    options.listen = "unix:" + testing::TempDir() + "/rounding_" + std::to_string(getpid());
    options.engine.max_num_seqs = 4;
    options.scheduler.max_num_batched_tokens = 256;
  }

  // The daemon's status: of its start, or after it served.
  absl::Status Run(float loudness) {
    source_ = RandomModel(loudness);
    std::thread stopping([this] {
      grpc::ChannelArguments soon;
      for (const char* backoff :
           {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
            GRPC_ARG_MAX_RECONNECT_BACKOFF_MS})
        soon.SetInt(backoff, 10);
      const auto channel =
          grpc::CreateCustomChannel(options.listen, grpc::InsecureChannelCredentials(), soon);
      while (!ended_ && HealthOf(channel, "") != grpc::health::v1::HealthCheckResponse::SERVING)
        usleep(1000);
      if (!ended_) kill(getpid(), SIGTERM);
    });
    const absl::Status status =
        RunDaemon(options, [this](const DaemonOptions& of, const auto&) { return Load(of); });
    ended_ = true;
    stopping.join();
    return status;
  }

  DaemonOptions options;
  bool stored_fits = true;
  std::vector<std::optional<WeightDType>> loaded;

 private:
  absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const DaemonOptions& of) {
    loaded.push_back(of.engine.dtype);
    if (of.engine.dtype == WeightDType::kStored && !stored_fits)
      return absl::ResourceExhaustedError("little memory");
    EngineOptions engine_options = of.engine;
    engine_options.sampled_vocab = ByteTokenizer::kVocab;
    auto engine = *Engine::Create(source_, engine_options, nullptr);
    auto model = std::make_unique<LoadedModel>();
    model->tokenizer = std::make_unique<ByteTokenizer>();
    model->served.name = "random";
    model->served.config = engine->config();
    model->served.limits = engine->limits();
    model->served.kv_layout = engine->kv_layout();
    model->served.page_bytes = static_cast<int64_t>(engine->kv_layout().PageBytes());
    model->served.tokenizer = model->tokenizer.get();
    model->engine = std::move(engine);
    return model;
  }

  std::shared_ptr<const ModelSource> source_;
  std::atomic<bool> ended_{false};
};

constexpr float kLoud = 400.0f;

TEST_F(RoundingDaemon, RefusesQuantisedWeightsThatMoveTheModelMuch) {
  options.engine.dtype = WeightDType::kQ4_0;
  const absl::Status refused = Run(kLoud);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--dtype q4_0"), HasSubstr("--force-dtype")));
  EXPECT_THAT(loaded, ElementsAre(WeightDType::kStored, WeightDType::kQ4_0));
}

TEST_F(RoundingDaemon, ServesThemWhereTheyAreForced) {
  options.engine.dtype = WeightDType::kQ4_0;
  options.force_dtype = true;
  EXPECT_TRUE(Run(kLoud).ok());
  EXPECT_THAT(loaded, ElementsAre(WeightDType::kQ4_0));
}

TEST_F(RoundingDaemon, ServesThemWhereTheWeightsAsStoredDoNotFit) {
  options.engine.dtype = WeightDType::kQ4_0;
  stored_fits = false;
  EXPECT_TRUE(Run(kLoud).ok());
  EXPECT_THAT(loaded, ElementsAre(WeightDType::kStored, WeightDType::kQ4_0));
}

TEST_F(RoundingDaemon, ServesQuantisedWeightsThatTheModelBears) {
  options.engine.dtype = WeightDType::kQ8_0;
  EXPECT_TRUE(Run(1.0f).ok());
  EXPECT_THAT(loaded, ElementsAre(WeightDType::kStored, WeightDType::kQ8_0));
}

TEST_F(RoundingDaemon, LoadsOnceWhereNothingIsQuantised) {
  EXPECT_TRUE(Run(kLoud).ok());
  EXPECT_THAT(loaded, ElementsAre(std::nullopt));
}

TEST_F(RoundingDaemon, RefusesPagesThatMoveTheModelMuch) {
  options.engine.kv_cache_dtype = DType::kQ4_0;
  const absl::Status refused = Run(kLoud);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--kv-cache-dtype int4"), HasSubstr("--force-kv-cache-dtype")));
}

TEST_F(RoundingDaemon, ServesThemWhereTheyAreForcedToo) {
  options.engine.kv_cache_dtype = DType::kQ4_0;
  options.force_kv_cache_dtype = true;
  EXPECT_TRUE(Run(kLoud).ok());
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
