// Whole runs under eviction against the independent double-precision model: the kept positions of
// every (layer, KV head) after the prompt and after every step must be identical (policies: oracle
// 6). Where the two candidates' scores lie within a relative 1e-5 either choice is right; the
// reference then adopts the engine's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "engine/engine.h"
#include "tests/device.h"
#include "tests/engine/double_model.h"
#include "tests/engine/driver.h"
#include "tests/engine/random_model.h"

namespace hydrant {
namespace {

constexpr double kMargin = 1e-5;

struct Case {
  const char* name;
  int heads, kv_heads;
  const char* policy;
  int budget;
  int sinks;   // -1: the default
  int window;  // -1: the default
  int prompt;
  std::map<std::string, std::string> params = {};
  const char* family = "llama";
};

class EvictionTest : public ::testing::TestWithParam<std::tuple<std::string, Case>> {};

bool Close(double a, double b) {
  return std::abs(a - b) <= kMargin * std::max(std::abs(a), std::abs(b));
}

double ScoreAt(const DoubleModel::Head& head, int position) {
  for (const DoubleModel::Entry& entry : head.entries) {
    if (entry.position == position) return entry.score;
  }
  ADD_FAILURE() << "position " << position << " is not kept by the reference";
  return std::nan("");
}

std::set<int> Positions(const DoubleModel::Head& head) {
  std::set<int> positions;
  for (const DoubleModel::Entry& entry : head.entries) positions.insert(entry.position);
  return positions;
}

// Ranks become the positions of the entries that the reference has there.
void RanksToPositions(const DoubleModel::Head& expected, Engine::HeadState* actual) {
  for (int32_t& rank : actual->positions) {
    ASSERT_GE(rank, 0);
    ASSERT_LT(rank, static_cast<int>(expected.entries.size()));
    rank = expected.entries[rank].position;
  }
}

// Compares one head; adopts the engine's victim where the margin excuses it. Returns false on a
// real difference.
void CompareHead(const Engine::HeadState& actual, DoubleModel::Head* expected,
                 bool scored_by_attention, int* excused) {
  const std::set<int> positions(actual.positions.begin(), actual.positions.end());
  ASSERT_EQ(positions.size(), actual.positions.size()) << "a position is kept twice";
  ASSERT_EQ(positions, Positions(*expected));
  if (scored_by_attention) {
    for (size_t i = 0; i < actual.positions.size(); ++i) {
      const double score = ScoreAt(*expected, actual.positions[i]);
      ASSERT_NEAR(actual.scores[i], score, 1e-4 * std::max(1.0, score))
          << "position " << actual.positions[i];
    }
  }
  if (expected->victim_position < 0) return;
  ASSERT_GE(actual.victim, 0);
  ASSERT_LT(actual.victim, static_cast<int>(actual.positions.size()));
  const int victim = actual.positions[actual.victim];
  if (victim == expected->victim_position) return;
  ASSERT_TRUE(scored_by_attention &&
              Close(ScoreAt(*expected, victim), ScoreAt(*expected, expected->victim_position)))
      << "victim " << victim << " instead of " << expected->victim_position;
  expected->victim_position = victim;
  ++*excused;
}

TEST_P(EvictionTest, KeptPositionsMatchTheDoubleModelAtEveryStep) {
  const auto& [device, c] = GetParam();
  HYDRANT_SKIP_WITHOUT_DEVICE(device);
  const uint64_t seed = 20240 + c.budget + c.prompt;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const ModelConfig config = InFamily(SmallConfig(c.heads, c.kv_heads), c.family);
  const auto model = MakeRandomModel(config, seed);
  EngineOptions options;
  options.device = device;
  options.num_threads = 2;
  options.dtype = WeightDType::kFloat32;
  options.num_blocks_override = 512;
  options.max_num_seqs = 2;
  // A rolling stream outruns the positions that the engine knows.
  if (c.params.count("rolling") > 0) options.max_model_len = std::max(c.prompt, c.budget) + 1;
  auto engine = Engine::Create(model, options, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status();

  CacheSpec spec;
  spec.policy = c.policy;
  spec.max_cache_tokens = c.budget;
  if (c.sinks >= 0) spec.sink_tokens = c.sinks;
  if (c.window >= 0) spec.protected_window_size = c.window;
  spec.params = c.params;
  const absl::StatusOr<CachePlan> made =
      PlanCache(spec, {c.prompt, config.num_layers, config.num_kv_heads});
  ASSERT_TRUE(made.ok()) << made.status();
  const CachePlan& plan = *made;
  std::mt19937_64 rng(seed);
  std::vector<TokenId> prompt(c.prompt);
  for (TokenId& token : prompt) token = static_cast<TokenId>(rng() % config.vocab_size);

  if (plan.prompt_score == PromptScore::kProbe) {
    const std::vector<TokenId> instruction = {3, 1, 4};
    const std::vector<TokenId> again = prompt;
    prompt.insert(prompt.end(), instruction.begin(), instruction.end());
    prompt.insert(prompt.end(), again.begin(), again.end());
  }
  const DoubleModel truth(*model);
  DoubleModel::Sequence expected(&truth, plan);
  EngineDriver driver(engine->get(), seed);
  constexpr int kSteps = 100;
  const int slot = driver.Add(prompt, plan, kSteps);
  driver.PrefillAll(slot);
  driver.Step();
  expected.Prefill(prompt);
  int excused = 0;
  for (int step = 0; step <= kSteps; ++step) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      for (int head = 0; head < config.num_kv_heads; ++head) {
        SCOPED_TRACE(testing::Message()
                     << "step " << step << " layer " << layer << " head " << head);
        Engine::HeadState actual = (*engine)->ReadHead(slot, layer, head);
        if (plan.rule.rolling) RanksToPositions(expected.head(layer, head), &actual);
        if (HasFatalFailure()) return;
        CompareHead(actual, &expected.head(layer, head), plan.rule.scored && !plan.rule.by_position,
                    &excused);
        if (HasFatalFailure()) return;
      }
    }
    if (step == kSteps) break;
    const TokenId token =
        static_cast<TokenId>(rng() % config.vocab_size);  // teacher-forced: victims vary more
    driver.DecodeToken(slot, token, c.prompt + step);
    driver.Step();
    const std::vector<double> logits = expected.Step(token, c.prompt + step);
    const std::vector<float> actual = driver.Logits(slot);
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(actual[i], logits[i], 3e-4) << "step " << step;
  }
  EXPECT_LE(excused, 5) << "near-ties should be rare";
}

const Case kCases[] = {
    {"H2oGqa", 6, 2, "h2o", 32, -1, -1, 80},
    {"H2oMha", 4, 4, "h2o", 33, -1, -1, 65},
    {"H2oMqa", 4, 1, "h2o", 31, -1, -1, 47},
    {"H2oSinks", 6, 2, "h2o", 16, 4, -1, 17},
    {"H2oHeavyOnly", 6, 2, "h2o", 20, -1, 0, 64},
    {"H2oRecentOnly", 6, 2, "h2o", 20, -1, 20, 64},
    {"H2oGrowsIntoItsCap", 6, 2, "h2o", 48, -1, -1, 20},
    {"H2oOneEntry", 6, 2, "h2o", 1, -1, -1, 20},
    {"LocalGqa", 6, 2, "local", 32, -1, -1, 80},
    {"LocalGrows", 4, 1, "local", 33, -1, -1, 5},
    {"SnapKvGqa", 6, 2, "snapkv", 32, -1, -1, 80},
    {"SnapKvMhaMean", 4, 4, "snapkv", 33, -1, 5, 65, {{"pooling", "avg"}, {"kernel_size", "5"}}},
    {"SnapKvMqaUnpooled", 4, 1, "snapkv", 17, -1, 16, 47, {{"kernel_size", "1"}}},
    {"SnapKvCapped", 6, 2, "snapkv", 32, -1, 8, 80, {{"decode_cap", "40"}}},
    {"SnapKvCappedAtOnce", 6, 2, "snapkv", 32, -1, 8, 80, {{"decode_cap", "32"}}},
    {"SnapKvAllWindow", 6, 2, "snapkv", 20, -1, 20, 64},
    {"SnapKvShortPrompt", 6, 2, "snapkv", 48, -1, -1, 20, {{"decode_cap", "50"}}},
    {"KCenterGqa", 6, 2, "subgen-kcenter", 32, -1, -1, 80},
    {"KCenterMhaCentresAlone", 4, 4, "subgen-kcenter", 17, -1, 0, 65},
    {"KCenterMqaOneCentre", 4, 1, "subgen-kcenter", 16, -1, 15, 47},
    {"KCenterAllWindow", 6, 2, "subgen-kcenter", 20, -1, 20, 64},
    {"KCenterShortPrompt", 6, 2, "subgen-kcenter", 48, -1, -1, 20},
    {"Co2Gqa", 6, 2, "co2", 32, -1, -1, 80},
    {"Co2AddsUp", 4, 4, "co2", 33, -1, -1, 65, {{"alpha", "0"}, {"measurement_steps", "9"}}},
    {"Co2MeanMqa", 4, 1, "co2", 31, -1, -1, 47, {{"alpha", "0.05"}, {"initial_score", "mean"}}},
    {"Co2OneStep", 6, 2, "co2", 16, -1, -1, 40, {{"measurement_steps", "1"}, {"rho", "0.5"}}},
    {"Co2AtOnce", 6, 2, "co2", 32, -1, -1, 80, {{"measurement_steps", "0"}, {"rho", "0"}}},
    {"Co2GrowsFirst", 6, 2, "co2", 40, -1, -1, 30, {{"measurement_steps", "30"}}},
    {"Co2NeverCut", 6, 2, "co2", 40, -1, -1, 20, {{"measurement_steps", "20"}}},
    {"AdaSnapKvGqa", 6, 2, "ada-snapkv", 32, -1, 8, 80},
    {"AdaSnapKvMha", 4, 4, "ada-snapkv", 33, -1, 5, 65, {{"head_floor", "0"}}},
    {"AdaSnapKvMqa", 4, 1, "ada-snapkv", 17, -1, 4, 47},
    {"AdaSnapKvCapped", 4, 4, "ada-snapkv", 24, -1, 8, 80, {{"decode_cap", "30"}}},
    {"AdaSnapKvEven", 4, 4, "ada-snapkv", 33, -1, 5, 65, {{"head_floor", "1"}}},
    {"AdaH2oGqa", 6, 2, "ada-h2o", 32, -1, -1, 80},
    {"AdaH2oMha", 4, 4, "ada-h2o", 20, 3, 5, 67, {{"head_floor", "0.35"}}},
    {"AdaH2oGrowsIntoItsCap", 6, 2, "ada-h2o", 48, -1, -1, 20},
    {"AdaH2oMax", 6, 2, "ada-h2o", 32, -1, 4, 80, {{"group_reduce", "max"}}},
    {"PyramidGqa", 6, 2, "pyramidkv", 32, -1, 8, 80},
    {"PyramidCapped", 4, 4, "pyramidkv", 24, -1, 4, 80, {{"decode_cap", "26"}, {"beta", "3"}}},
    {"AdaPyramid", 4, 4, "ada-pyramid", 30, -1, 6, 80},
    {"H2oModel", 6, 2, "h2o", 24, -1, 6, 80, {{"budget_scope", "model"}}},
    {"H2oModelMha", 4, 4, "h2o", 16, 2, 4, 65, {{"budget_scope", "model"}, {"candidates", "1.5"}}},
    {"SnapKvModel",
     4,
     4,
     "snapkv",
     17,
     -1,
     4,
     80,
     {{"budget_scope", "model"}, {"head_floor", "0"}}},
    {"ReconstructGqa", 6, 2, "reconstruct", 24, -1, -1, 60},
    {"ReconstructMha", 4, 4, "reconstruct", 17, 1, 3, 33, {{"max_weight", "0"}}},
    {"ReconstructMqaLayer", 4, 1, "reconstruct", 16, -1, -1, 47, {{"budget_scope", "layer"}}},
    {"ReconstructHead", 6, 2, "reconstruct", 20, -1, 4, 50, {{"budget_scope", "head"}}},
    {"ReconstructCapped",
     6,
     2,
     "reconstruct",
     16,
     -1,
     4,
     50,
     {{"decode_cap", "25"}, {"sum_weight", "0"}}},
    {"H2oSumOfSquares", 6, 2, "h2o", 32, -1, -1, 80, {{"group_reduce", "sum_of_squares"}}},
    {"H2oOpt", 4, 4, "h2o", 33, -1, -1, 65, {}, "opt"},
    {"H2oNeox", 4, 4, "h2o", 33, -1, -1, 65, {}, "gpt_neox"},
    {"SnapKvOpt", 4, 4, "snapkv", 33, -1, 8, 80, {{"decode_cap", "40"}}, "opt"},
    {"SnapKvNeox", 4, 4, "snapkv", 33, -1, 8, 80, {{"decode_cap", "40"}}, "gpt_neox"},
    {"AdaSnapKvNeox", 4, 4, "ada-snapkv", 33, -1, 5, 65, {}, "gpt_neox"},
    {"Streaming", 6, 2, "streaming", 17, -1, -1, 80},
    {"StreamingOneSink", 4, 4, "streaming", 16, 1, -1, 16},
    {"StreamingRolling", 6, 2, "streaming", 17, -1, -1, 80, {{"rolling", "true"}}},
    {"StreamingRollingGrows", 4, 1, "streaming", 33, 0, -1, 5, {{"rolling", "true"}}},
    {"TovaGqa", 6, 2, "tova", 32, -1, -1, 80},
    {"TovaMhaProtected", 4, 4, "tova", 33, 2, 5, 65},
    {"TovaMqa", 4, 1, "tova", 31, -1, -1, 47, {{"group_reduce", "max"}}},
    {"TovaGrowsIntoItsCap", 6, 2, "tova", 48, -1, 1, 20},
    {"TovaOneEntry", 6, 2, "tova", 1, -1, -1, 20},
    {"RandomGqa", 6, 2, "random", 32, -1, -1, 80},
    {"RandomMhaAlone", 4, 4, "random", 33, 0, 0, 65, {{"seed", "9223372036854775807"}}},
    {"RandomGrowsIntoItsCap", 4, 1, "random", 48, -1, -1, 20, {{"seed", "3"}}},
    {"ScissorhandsGqa", 6, 2, "scissorhands", 32, -1, -1, 80},
    {"ScissorhandsMha", 4, 4, "scissorhands", 33, 2, 0, 65, {{"history_window", "7"}}},
    {"ScissorhandsMqaDropsOne", 4, 1, "scissorhands", 31, -1, -1, 47, {{"drop_tokens", "1"}}},
    {"ScissorhandsDropsMost", 6, 2, "scissorhands", 40, -1, -1, 80, {{"drop_tokens", "39"}}},
    {"ScissorhandsPromptCounts", 6, 2, "scissorhands", 48, -1, -1, 41, {{"group_reduce", "max"}}},
    {"ScissorhandsPromptOfItsBudget", 4, 4, "scissorhands", 33, 1, 3, 33, {{"drop_tokens", "20"}}},
    {"ScissorhandsGrows", 6, 2, "scissorhands", 48, -1, -1, 20, {{"history_window", "5"}}},
    {"ScissorhandsOfTwo", 6, 2, "scissorhands", 2, -1, -1, 20},
    {"H2oRolling", 6, 2, "h2o", 32, 4, -1, 80, {{"rolling", "true"}}},
    {"H2oRollingMhaGrows", 4, 4, "h2o", 48, 2, -1, 20, {{"rolling", "true"}}},
};

INSTANTIATE_TEST_SUITE_P(All, EvictionTest,
                         ::testing::Combine(::testing::Values("reference", "cpu", "cuda"),
                                            ::testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::get<1>(info.param).name;
                         });

std::unique_ptr<Engine> OracleEngine(uint64_t seed) {
  EngineOptions options;
  options.dtype = WeightDType::kFloat32;
  options.batch_invariant = true;
  options.num_blocks_override = 512;
  options.max_num_seqs = 4;
  auto engine = Engine::Create(MakeRandomModel(SmallConfig(6, 2), seed), options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The same prompt of 70 tokens under each of the caches, and 50 tokens after it: equal logits, to
// the bit, at every step.
void ExpectEqualLogits(uint64_t seed, const std::vector<CacheSpec>& caches) {
  const auto engine = OracleEngine(seed);
  std::vector<TokenId> prompt;
  for (int i = 0; i < 70; ++i) prompt.push_back(i * (seed % 7 + 7) % engine->config().vocab_size);
  EngineDriver driver(engine.get(), 1);
  std::vector<int> slots;
  for (const CacheSpec& cache : caches) {
    slots.push_back(driver.Add(prompt, *PlanCache(cache, {70}), 50));
    driver.PrefillAll(slots.back());
  }
  for (int step = 0; step < 50; ++step) {
    driver.Step();
    for (const int slot : slots)
      ASSERT_EQ(driver.Logits(slot), driver.Logits(slots[0])) << "step " << step;
    for (const int slot : slots) driver.Decode(slot);
  }
}

// Oracle 5: h2o without heavy hitters keeps what local keeps.
TEST(EvictionOracle, RecentOnlyH2oIsLocal) {
  CacheSpec h2o, local;
  h2o.policy = "h2o";
  h2o.max_cache_tokens = h2o.protected_window_size = 24;
  local.policy = "local";
  local.max_cache_tokens = 24;
  ExpectEqualLogits(77, {h2o, local});
}

// Oracle 5: co2 that adds up, decides at once and gives half to FIFO is h2o.
TEST(EvictionOracle, Co2ContainsH2o) {
  CacheSpec h2o, co2;
  h2o.policy = "h2o";
  co2.policy = "co2";
  h2o.max_cache_tokens = co2.max_cache_tokens = 25;
  co2.params = {{"alpha", "0"}, {"measurement_steps", "0"}, {"rho", "0.5"}};
  ExpectEqualLogits(79, {h2o, co2});
}

// Oracle 5: a window as long as the prompt drops nothing. Oracle 1: nor does a budget of its
// length.
TEST(EvictionOracle, SnapKvThatDropsNothingIsFull) {
  CacheSpec full, window, budget;
  window.policy = budget.policy = "snapkv";
  window.max_cache_tokens = window.protected_window_size = 70;
  budget.max_cache_tokens = 71;
  ExpectEqualLogits(78, {full, window, budget});
}

// Oracle 1, of the policies that revise their scores.
TEST(EvictionOracle, RevisedScoresWithinTheBudgetAreFull) {
  std::vector<CacheSpec> caches(4);
  caches[1].policy = "tova";
  caches[2].policy = "random";
  caches[3].policy = "scissorhands";
  for (size_t i = 1; i < caches.size(); ++i) caches[i].max_cache_tokens = 120;
  ExpectEqualLogits(81, caches);
}

// Where all that stays is recent, neither chance nor attention has a say.
TEST(EvictionOracle, RecentOnlyIsLocal) {
  std::vector<CacheSpec> caches(3);
  caches[0].policy = "local";
  caches[1].policy = "tova";
  caches[2].policy = "random";
  for (CacheSpec& cache : caches) cache.max_cache_tokens = 24;
  caches[1].protected_window_size = caches[2].protected_window_size = 24;
  caches[2].sink_tokens = 0;
  ExpectEqualLogits(82, caches);
}

// A rolling cache below its cap is the full one but for rounding: its keys were turned and turned
// back, and are turned again by their distance to the query. That no bit changes (oracle 1) does
// not hold for it.
TEST(EvictionOracle, RollingBelowItsCapIsFullButForRounding) {
  for (const char* policy : {"streaming", "h2o"}) {
    const auto engine = OracleEngine(80);
    std::vector<TokenId> prompt;
    for (int i = 0; i < 70; ++i) prompt.push_back(i * 11 % engine->config().vocab_size);
    CacheSpec full, rolling;
    rolling.policy = policy;
    rolling.max_cache_tokens = 130;
    rolling.params = {{"rolling", "true"}};
    EngineDriver driver(engine.get(), 1);
    const int a = driver.Add(prompt, *PlanCache(full, {70}), 50);
    const int b = driver.Add(prompt, *PlanCache(rolling, {70}), 50);
    driver.PrefillAll(a);
    driver.PrefillAll(b);
    for (int step = 0; step < 50; ++step) {
      driver.Step();
      const std::vector<float> expected = driver.Logits(a), actual = driver.Logits(b);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(actual[i], expected[i], 2e-4) << policy << " step " << step;
      for (const int slot : {a, b})
        driver.DecodeToken(slot, step * 7 % engine->config().vocab_size, 70 + step);
    }
  }
}

}  // namespace
}  // namespace hydrant
