// A conversation through the scheduler, kept between its turns, equals the same turns through
// EngineDriver, which hydrant-eval uses: the same tokens for every policy, bit for bit
// (--batch-invariant).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/prompt_scorer.h"
#include "tests/device.h"
#include "tests/engine/run/random_model.h"
#include "tests/integration/driven_server.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

constexpr int kTurns = 4;
constexpr int kAnswerTokens = 7;

class TurnsTest : public ::testing::TestWithParam<std::tuple<std::string, Family>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(std::get<0>(GetParam())); }

  std::vector<TokenId> TurnOf(int turn) const {
    // The first is within its budget where the test says so.
    return RandomTokens(turn == 0 ? first_tokens_ : 30 + 25 * turn, model_->config().vocab_size,
                        turn + 1);
  }
  EngineOptions Options() const {
    EngineOptions options =
        InvariantOptions(std::get<0>(GetParam()), std::get<1>(GetParam()).kv_dtype);
    options.context_memory_bytes = 64 << 20;
    return options;
  }
  static CacheSpec SpecOf(const std::string& policy) {
    CacheSpec spec;
    spec.policy = policy;
    if (policy == "full") return spec;
    spec.cache_ratio = 0.3;
    spec.min_cache_tokens = 12;
    // Beside windows the default is a budget for each head.
    if (policy == "reconstruct") spec.params = {{"budget_scope", "model"}};
    return spec;
  }

  std::vector<std::vector<TokenId>> ByScheduler(const std::string& policy) const {
    Server server(model_, Options());
    std::vector<std::vector<TokenId>> answers;
    for (int turn = 0; turn < kTurns; ++turn) {
      Request request;
      request.prompt = TurnOf(turn);
      if (turn == 0) request.cache = SpecOf(policy);
      if (turn > 0) request.context = "turn " + std::to_string(turn - 1);
      request.sampling.temperature = 0;
      request.stopping.max_tokens = kAnswerTokens;
      request.stopping.ignore_eos = true;
      request.keep_as.handle = "turn " + std::to_string(turn);
      answers.push_back(server.Run(std::move(request)).tokens);
    }
    return answers;
  }

  std::vector<std::vector<TokenId>> ByDriver(const std::string& policy) const {
    const auto engine = *Engine::Create(model_, WithPredictor(Options(), *model_), nullptr);
    eval::EngineDriver driver(engine.get(), 3);
    const CacheSpec spec = SpecOf(policy);
    PromptShape prompt = engine->limits().ShapeOf(first_tokens_);
    prompt.goes_on = true;
    const CachePlan plan = *PlanCache(spec, prompt);
    const int slot = driver.Add(ReadingOf(plan), plan, 400);
    driver.PrefillAll(slot);
    driver.Step();
    std::vector<std::vector<TokenId>> answers;
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn > 0) Read(slot, spec, answers.back().back(), TurnOf(turn), &driver);
      std::vector<TokenId>& answer = answers.emplace_back();
      while (static_cast<int>(answer.size()) < kAnswerTokens) {
        answer.push_back(driver.last_token(slot));
        if (static_cast<int>(answer.size()) == kAnswerTokens) break;
        driver.Decode(slot);
        driver.Step();
      }
    }
    return answers;
  }

  // The first prompt, twice where the plan reads it twice.
  std::vector<TokenId> ReadingOf(const CachePlan& plan) const {
    const std::vector<TokenId> prompt = TurnOf(0);
    std::vector<TokenId> reading = prompt;
    if (!plan.ReadsProbe()) return reading;
    const std::vector<TokenId> instruction = *FakeTokenizer().Encode(
        kProbeInstruction, {.add_special_tokens = false, .parse_special_tokens = false});
    reading.insert(reading.end(), instruction.begin(), instruction.end());
    reading.insert(reading.end(), prompt.begin(), prompt.end());
    return reading;
  }

  // A turn, behind the last generated token.
  static void Read(int slot, const CacheSpec& spec, TokenId last, const std::vector<TokenId>& turn,
                   eval::EngineDriver* driver) {
    std::vector<TokenId> run = {last};
    run.insert(run.end(), turn.begin(), turn.end());
    if (driver->Plan(slot).AppendsRuns()) {
      driver->AppendTurn(slot, spec, run);
      return driver->Step();
    }
    for (const TokenId token : run) {
      driver->DecodeToken(slot, token, driver->position(slot));
      driver->Step();
    }
  }

  void Compare() const {
    for (const PolicyInfo& policy : ListPolicies()) {
      SCOPED_TRACE(policy.name);
      EXPECT_EQ(ByScheduler(policy.name), ByDriver(policy.name));
    }
  }

  int first_tokens_ = 90;
  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(
      InFamily(SmallConfig(6, 2, std::get<1>(GetParam()).head_dim), std::get<1>(GetParam()).name),
      5);
};

INSTANTIATE_TEST_SUITE_P(Devices, TurnsTest,
                         DevicesWith({{"llama", DType::kF16}, {"gemma3_text", DType::kF16}}),
                         NameOfDeviceAndFamily);

TEST_P(TurnsTest, SchedulerAndDriverAnswerAlike) { Compare(); }

TEST_P(TurnsTest, AfterAPromptWithinItsBudget) {
  first_tokens_ = 10;
  Compare();
}

}  // namespace
}  // namespace hydrant
