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
#include "tests/engine/run/random_model.h"
#include "tests/server/byte_tokenizer.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// `loudness`: of the logits; rounding moves large ones more.
std::shared_ptr<const ModelSource> RandomModel(float loudness = 1.0f) {
  ModelConfig config = SmallConfig(4, 2, 32);
  config.vocab_size = ByteTokenizer::kVocab;
  config.max_context = 1024;
  config.logit_scale = loudness;
  return MakeRandomModel(config, 3);
}

// A random model with such pages reads the check's text.
CheckReading ReadWith(DType pages, int max_model_len = 1024) {
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
  const absl::StatusOr<CheckReading> reading = ReadCheckText(requests, tokenizer, max_model_len);
  EXPECT_TRUE(reading.ok()) << reading.status();
  loop->Stop();
  return reading.value_or(CheckReading{});
}

TEST(LossBetween, IsZeroWithoutRoundingAndGrowsWithIt) {
  const CheckReading exact = ReadWith(DType::kF32);
  const auto loss = [&](DType pages) { return LossBetween(exact, ReadWith(pages)); };
  EXPECT_EQ(loss(DType::kF32).tokens, 191);
  EXPECT_EQ(loss(DType::kF32).nats, 0.0);
  const double int8 = loss(DType::kQ8_0).nats;
  EXPECT_GT(int8, 1e-5);
  EXPECT_GT(loss(DType::kQ4_0).nats, 10 * int8);
}

TEST(ReadCheckText, ReadsFewTokensOrNoneWhereNoMoreFit) {
  EXPECT_EQ(ReadWith(DType::kF32, 2).size(), 0);
  EXPECT_EQ(ReadWith(DType::kF32, 9).size(), 7);
  EXPECT_EQ(LossBetween({}, {}).tokens, 0);
}

TEST(JudgeLoss, RefusesMuchAndSaysWhatToDo) {
  DaemonOptions options;
  options.engine.kv_cache_dtype = DType::kE4M3;
  const CheckedRounding pages = CheckedRoundingOf(options);
  EXPECT_TRUE(JudgeLoss({.nats = 0.0, .tokens = 0}, pages, options).ok());
  EXPECT_TRUE(JudgeLoss({.nats = 0.05, .tokens = 9}, pages, options).ok());
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double nats : {0.0501, infinite, std::nan("")}) {
    const absl::Status refused = JudgeLoss({.nats = nats, .tokens = 9}, pages, options);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(StartsWith("--kv-cache-dtype fp8: "), HasSubstr("more than 0.05"),
                      HasSubstr("give --force-kv-cache-dtype to")));
  }
  options.engine.dtype = WeightDType::kQ8_0;
  EXPECT_THAT(
      std::string(
          JudgeLoss({.nats = 0.2, .tokens = 9}, CheckedRoundingOf(options), options).message()),
      AllOf(StartsWith("--dtype q8_0 and --kv-cache-dtype fp8: "), HasSubstr("more than 0.15"),
            HasSubstr("give --force-dtype and --force-kv-cache-dtype to")));
}

TEST(CheckedRoundingOf, LeavesOutWhatIsForcedOrRoundsNothing) {
  DaemonOptions options;
  EXPECT_FALSE(CheckedRoundingOf(options).Any());
  options.engine.dtype = WeightDType::kBFloat16;
  options.engine.kv_cache_dtype = DType::kF16;
  EXPECT_FALSE(CheckedRoundingOf(options).Any());
  options.engine.dtype = WeightDType::kFp8;
  options.engine.kv_cache_dtype = DType::kQ8_0;
  EXPECT_TRUE(CheckedRoundingOf(options).weights);
  EXPECT_TRUE(CheckedRoundingOf(options).pages);
  options.force_dtype = true;
  EXPECT_FALSE(CheckedRoundingOf(options).weights);
  EXPECT_TRUE(CheckedRoundingOf(options).pages);
  options.force_kv_cache_dtype = true;
  EXPECT_FALSE(CheckedRoundingOf(options).Any());
  options.force_dtype = options.force_kv_cache_dtype = false;
  options.load_format = LoadFormat::kDummy;
  EXPECT_FALSE(CheckedRoundingOf(options).Any());
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
  bool first_fits = true;
  std::vector<std::optional<WeightDType>> loaded;

 private:
  absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const DaemonOptions& of) {
    loaded.push_back(of.engine.dtype);
    if (loaded.size() == 1 && !first_fits) return absl::ResourceExhaustedError("little memory");
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
  first_fits = false;
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
  EXPECT_EQ(loaded.size(), 2);
}

TEST_F(RoundingDaemon, ServesThemWhereTheyAreForcedToo) {
  options.engine.kv_cache_dtype = DType::kQ4_0;
  options.force_kv_cache_dtype = true;
  EXPECT_TRUE(Run(kLoud).ok());
}

}  // namespace
}  // namespace hydrant
