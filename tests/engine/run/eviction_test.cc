// Whole runs with eviction against the independent double-precision model: the kept positions of
// every (layer, KV head) after the prompt and after every step must be identical. If two scores lie
// within a relative 1e-5, either victim is right; the reference adopts the engine's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "engine/cache/policies/self_tuning.h"
#include "engine/run/engine.h"
#include "engine/run/engine_probe.h"
#include "tests/device.h"
#include "tests/engine/cache/plan_view.h"
#include "tests/engine/run/double_model.h"
#include "tests/engine/run/random_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;

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

// Whether entries have scores at every step.
bool HasScores(const CachePlan& plan) {
  return plan.rule.predicted || (plan.rule.scored && !plan.rule.by_position);
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

// Replaces ranks by the positions of the reference's entries.
void RanksToPositions(const DoubleModel::Head& expected, HeadState* actual) {
  for (int32_t& rank : actual->positions) {
    ASSERT_GE(rank, 0);
    ASSERT_LT(rank, static_cast<int>(expected.entries.size()));
    rank = expected.entries[rank].position;
  }
}

// The trials of a self-tuning plan, and the decision that it made from them.
void CompareTrials(const std::vector<float>& actual, const DoubleModel::Matrix& expected,
                   const CachePlan& decided) {
  ASSERT_EQ(actual.size(), expected.size() * expected[0].size());
  const SelfTuning& tuning = *SelfTuningOf(decided);
  std::vector<double> means;
  for (size_t t = 0; t < expected.size(); ++t) {
    double sum = 0;
    for (size_t head = 0; head < expected[t].size(); ++head) {
      ASSERT_NEAR(actual[t * expected[t].size() + head], expected[t][head], 2e-5)
          << "trial " << t << " head " << head;
      sum += expected[t][head];
    }
    means.push_back(sum / static_cast<double>(expected[t].size()));
  }
  const double best = *std::max_element(means.begin(), means.end() - 1);
  EXPECT_GE(tuning.retained, 0.98 * best - 1e-5);
  for (size_t t = 0; t + 1 < means.size(); ++t) {
    const double rho = t % 3 == 0 ? 0.1 : t % 3 == 1 ? 0.25 : 0.5;
    EXPECT_TRUE(rho < tuning.rho || means[t] < 0.98 * best + 1e-5 ||
                (rho == tuning.rho && means[t] < tuning.retained + 1e-5))
        << "trial " << t << " is nearly as good, and has more FIFO entries or retains more";
  }
  EXPECT_NEAR(tuning.attainable, means.back(), 1e-5);
  EXPECT_GE(means.back(), best - 1e-9) << "no choice retains more than one that knows";
}

// Compares one head; adopts the engine's victim if the margin excuses it.
void CompareHead(const HeadState& actual, DoubleModel::Head* expected, bool scored_by_attention,
                 int* excused) {
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

std::unique_ptr<Engine> EngineOf(const std::string& device,
                                 const std::shared_ptr<const ModelSource>& model, const Case& c) {
  EngineOptions options;
  options.device = device;
  options.num_threads = 2;
  options.dtype = WeightDType::kFloat32;
  options.num_blocks_override = 512;
  options.max_num_seqs = 2;
  options.max_held_tokens = 8;
  options.score_predictor = MakeRandomPredictor(model->config());
  // A rolling stream runs past max_model_len.
  if (c.params.count("rolling") > 0) options.max_model_len = std::max(c.prompt, c.budget) + 1;
  return Engine::Create(model, options, nullptr).value();
}

absl::StatusOr<CachePlan> PlanOf(const Case& c, const EngineLimits& limits,
                                 bool evictable = false) {
  CacheSpec spec;
  spec.evictable = evictable;
  spec.policy = c.policy;
  if (spec.policy != "full") spec.max_cache_tokens = c.budget;
  if (c.sinks >= 0) spec.sink_tokens = c.sinks;
  if (c.window >= 0) spec.protected_window_size = c.window;
  spec.params = c.params;
  return PlanCache(spec, {.tokens = c.prompt,
                          .num_layers = limits.BudgetLayers(),
                          .num_kv_heads = limits.num_kv_heads,
                          .predicts_scores = spec.policy == "learned"});
}

std::vector<TokenId> Draw(int count, int vocab_size, std::mt19937_64* rng) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>((*rng)() % vocab_size);
  return tokens;
}

// Tokens to prefill: the prompt and, for a probe, an instruction and the prompt again.
std::vector<TokenId> ReadingOf(const CachePlan& plan, const std::vector<TokenId>& prompt) {
  std::vector<TokenId> reading = prompt;
  if (!plan.ReadsProbe()) return reading;
  reading.insert(reading.end(), {3, 1, 4});
  reading.insert(reading.end(), prompt.begin(), prompt.end());
  return reading;
}

// An engine and the double-precision model with the same model, plan and tokens.
struct Pair {
  Pair(const std::string& device, const Case& c, uint64_t seed, bool evictable = false)
      : config(InFamily(SmallConfig(c.heads, c.kv_heads), c.family)),
        model(MakeRandomModel(config, seed)),
        engine(EngineOf(device, model, c)),
        plan(PlanOf(c, engine->limits(), evictable).value()),
        truth(*model, MakeRandomPredictor(config)),
        expected(&truth, plan),
        driver(engine.get(), seed),
        rng(seed) {}
  // Prefills a prompt in both; up to `steps` tokens may follow.
  void ReadPrompt(const Case& c, int steps) {
    const std::vector<TokenId> prompt = ReadingOf(plan, Draw(c.prompt, config.vocab_size, &rng));
    slot = driver.Add(prompt, plan, steps);
    driver.PrefillAll(slot);
    driver.Step();
    expected.Prefill(prompt);
  }

  const ModelConfig config;
  const std::shared_ptr<const ModelSource> model;
  const std::unique_ptr<Engine> engine;
  const CachePlan plan;
  const DoubleModel truth;
  DoubleModel::Sequence expected;
  EngineDriver driver;
  std::mt19937_64 rng;
  int slot = -1;
};

TEST_P(EvictionTest, KeptPositionsMatchTheDoubleModelAtEveryStep) {
  const auto& [device, c] = GetParam();
  HYDRANT_SKIP_WITHOUT_DEVICE(device);
  const uint64_t seed = 20240 + c.budget + c.prompt;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Pair pair(device, c, seed);
  constexpr int kSteps = 100;
  pair.ReadPrompt(c, kSteps);
  int excused = 0;
  for (int step = 0; step <= kSteps; ++step) {
    for (int layer = 0; layer < pair.config.num_layers; ++layer) {
      for (int head = 0; head < pair.config.num_kv_heads; ++head) {
        SCOPED_TRACE(testing::Message()
                     << "step " << step << " layer " << layer << " head " << head);
        HeadState actual = EngineProbe(*pair.engine).ReadHead(pair.slot, layer, head);
        if (pair.plan.rule.rolling) RanksToPositions(pair.expected.head(layer, head), &actual);
        if (HasFatalFailure()) return;
        CompareHead(actual, &pair.expected.head(layer, head),
                    HasScores(pair.plan) && !pair.expected.InWindow(layer), &excused);
        if (HasFatalFailure()) return;
      }
    }
    if (step == kSteps) break;
    if (step == 0 && pair.plan.resolve_at == ResolveAt::kPrefilled) {
      CompareTrials(pair.driver.Observations(pair.slot), pair.expected.TrialMasses(),
                    pair.driver.Plan(pair.slot));
      pair.expected.Decide(pair.driver.Plan(pair.slot));
    }
    const TokenId token = static_cast<TokenId>(
        pair.rng() % pair.config.vocab_size);  // teacher-forced: victims vary more
    pair.driver.DecodeToken(pair.slot, token, c.prompt + step);
    pair.driver.Step();
    const std::vector<double> logits = pair.expected.Step(token, c.prompt + step);
    const std::vector<float> actual = pair.driver.Logits(pair.slot);
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(actual[i], logits[i], 3e-4) << "step " << step;
  }
  EXPECT_LE(excused, 5) << "near-ties should be rare";
}

// If the engine evicted another entry than the reference and their scores lie within the margin,
// the reference adopts the engine's choice.
void AdoptTies(const HeadState& actual, DoubleModel::Head* expected, int* excused) {
  const std::set<int> kept(actual.positions.begin(), actual.positions.end());
  for (DoubleModel::Entry& entry : expected->entries) {
    if (kept.contains(entry.position)) continue;
    for (DoubleModel::Entry& left : expected->left) {
      if (!kept.contains(left.position) || !Close(entry.score, left.score)) continue;
      std::swap(entry, left);
      ++*excused;
      break;
    }
  }
}

// Appends runs of `counts` tokens to the prompt; single tokens are decoded. compacts: each run is
// another turn, and compacts every head to a number of its own, or all to so many together.
void AppendRuns(const std::string& device, const Case& c, std::initializer_list<int> counts,
                bool compacts) {
  HYDRANT_SKIP_WITHOUT_DEVICE(device);
  const uint64_t seed = 4711 + c.budget + c.prompt;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Pair pair(device, c, seed);
  if (!pair.plan.AppendsRuns()) GTEST_SKIP() << "the policy sees what follows token by token";
  if (compacts && pair.plan.cap != kNoCap) GTEST_SKIP() << "its turns raise caps";
  pair.ReadPrompt(c, 300);
  int position = c.prompt, excused = 0;
  int scored_end = pair.plan.ScoresPrompt() ? c.prompt : 0;
  for (const int count : counts) {
    SCOPED_TRACE(testing::Message() << count << " tokens at " << position);
    const std::vector<TokenId> tokens = Draw(count, pair.config.vocab_size, &pair.rng);
    std::vector<double> logits;
    if (count == 1) {
      pair.driver.DecodeToken(pair.slot, tokens[0], position);
      logits = pair.expected.Step(tokens[0], position);
    } else {
      std::vector<int32_t> keep;
      for (int i = 0; i < pair.config.num_layers * pair.config.num_kv_heads && compacts; ++i) {
        const int layer = i / pair.config.num_kv_heads;
        if (pair.expected.InWindow(layer)) continue;
        const DoubleModel::Head& head = pair.expected.head(layer, i % pair.config.num_kv_heads);
        const auto held = static_cast<int32_t>(head.entries.size()) + count;
        const int32_t least = std::min(held, std::max(1, pair.plan.Protected()));
        keep.push_back(least + static_cast<int32_t>(pair.rng() % (held - least + 1)));
      }
      if (compacts) {
        if (pair.plan.rule.predicted) scored_end = position;
        const TurnRun turn = {.scored_end = scored_end, .keep = keep};
        pair.driver.Append(pair.slot, tokens, turn);
        logits = pair.expected.AppendTurn(tokens, position, turn);
        scored_end = position + count;
      } else {
        pair.driver.Append(pair.slot, tokens);
        logits = pair.expected.Append(tokens, position);
      }
    }
    pair.driver.Step();
    position += count;
    const std::vector<float> actual = pair.driver.Logits(pair.slot);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(actual[i], logits[i], 3e-4);
    const bool scored = compacts ? count > 1 : HasScores(pair.plan);
    for (int layer = 0; layer < pair.config.num_layers; ++layer) {
      for (int head = 0; head < pair.config.num_kv_heads; ++head) {
        SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
        const HeadState state = EngineProbe(*pair.engine).ReadHead(pair.slot, layer, head);
        DoubleModel::Head* of_truth = &pair.expected.head(layer, head);
        if (count > 1) AdoptTies(state, of_truth, &excused);
        CompareHead(state, of_truth, scored && !pair.expected.InWindow(layer), &excused);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  EXPECT_LE(excused, 5) << "near-ties should be rare";
}

// Entries that each head keeps when the cache is shrunk for other requests twice during decode.
TEST_P(EvictionTest, CutsForOthersMatchTheDoubleModel) {
  const auto& [device, c] = GetParam();
  HYDRANT_SKIP_WITHOUT_DEVICE(device);
  const uint64_t seed = 977 + c.budget + c.prompt;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Pair pair(device, c, seed, /*evictable=*/true);
  if (!CanShrink(pair.plan)) GTEST_SKIP() << "the policy's caches are not cut for others";
  constexpr int kSteps = 50;
  pair.ReadPrompt(c, kSteps);
  int excused = 0;
  for (int step = 0; step < kSteps; ++step) {
    const int position = c.prompt + step;
    const bool compacts = step == 10 || step == 25;
    if (compacts) {
      int64_t held = 0, heads = 0;
      for (int layer = 0; layer < pair.config.num_layers; ++layer) {
        for (int head = 0; head < pair.config.num_kv_heads && !pair.expected.InWindow(layer);
             ++head) {
          held += static_cast<int64_t>(pair.expected.head(layer, head).entries.size());
          ++heads;
        }
      }
      const auto mean = static_cast<int>(held / heads * 3 / 4);
      if (mean < pair.plan.rule.sinks + 2) GTEST_SKIP() << "there is too little to cut";
      pair.driver.Shrink(pair.slot, mean);
      pair.expected.Shrink(mean, position);
    }
    const auto token = static_cast<TokenId>(pair.rng() % pair.config.vocab_size);
    pair.driver.DecodeToken(pair.slot, token, position);
    pair.driver.Step();
    const std::vector<double> logits = pair.expected.Step(token, position);
    const std::vector<float> actual = pair.driver.Logits(pair.slot);
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(actual[i], logits[i], 3e-4) << "step " << step;
    for (int layer = 0; layer < pair.config.num_layers; ++layer) {
      for (int head = 0; head < pair.config.num_kv_heads; ++head) {
        SCOPED_TRACE(testing::Message()
                     << "step " << step << " layer " << layer << " head " << head);
        const HeadState state = EngineProbe(*pair.engine).ReadHead(pair.slot, layer, head);
        DoubleModel::Head* of_truth = &pair.expected.head(layer, head);
        if (compacts) AdoptTies(state, of_truth, &excused);
        CompareHead(state, of_truth, !pair.plan.rule.by_position && !pair.expected.InWindow(layer),
                    &excused);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  EXPECT_LE(excused, 5) << "near-ties should be rare";
}

TEST_P(EvictionTest, RunsThatAreAppendedMatchTheDoubleModel) {
  AppendRuns(std::get<0>(GetParam()), std::get<1>(GetParam()), {23, 1, 1, 1, 2, 70, 1, 1}, false);
}

TEST_P(EvictionTest, TurnsCutAsTheDoubleModelDoes) {
  AppendRuns(std::get<0>(GetParam()), std::get<1>(GetParam()), {23, 1, 1, 80, 1}, true);
}

// Runs of tokens that are committed later, and in part: the double model never sees the tokens that
// were rejected. `behind_the_commit`: the next token is decoded in the step of the commit.
void HoldRuns(const std::string& device, const Case& c, bool behind_the_commit) {
  HYDRANT_SKIP_WITHOUT_DEVICE(device);
  const uint64_t seed = 611 + c.budget + c.prompt;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Pair pair(device, c, seed);
  if (!pair.plan.AppendsRuns()) GTEST_SKIP() << "the policy reads later tokens one by one";
  pair.ReadPrompt(c, 300);
  int position = c.prompt, excused = 0;
  for (const auto& [count, kept] : {std::pair(5, 3), {1, 1}, {4, 0}, {8, 8}, {7, 1}}) {
    SCOPED_TRACE(testing::Message() << kept << " of " << count << " tokens at " << position);
    const std::vector<TokenId> tokens = Draw(count, pair.config.vocab_size, &pair.rng);
    pair.driver.Hold(pair.slot, tokens);
    pair.driver.Step();
    ASSERT_EQ(std::ssize(pair.driver.HeldSamples(pair.slot)), count);
    for (int i = 0; i < count; ++i) {
      DoubleModel::Sequence copy = pair.expected;
      const std::vector<double> logits =
          copy.Append({tokens.begin(), tokens.begin() + i + 1}, position);
      const std::span<const float> actual = pair.driver.HeldLogits(pair.slot, i);
      for (size_t j = 0; j < logits.size(); ++j)
        ASSERT_NEAR(actual[j], logits[j], 3e-4) << "after token " << i;
      EXPECT_EQ(pair.driver.HeldSamples(pair.slot)[i],
                std::ranges::max_element(actual) - actual.begin());
    }
    pair.driver.CommitHeld(pair.slot, kept);
    if (!behind_the_commit) pair.driver.Step();
    if (kept > 0) pair.expected.Append({tokens.begin(), tokens.begin() + kept}, position);
    position += kept;
    for (int layer = 0; layer < pair.config.num_layers && !behind_the_commit; ++layer) {
      for (int head = 0; head < pair.config.num_kv_heads; ++head) {
        SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
        const HeadState state = EngineProbe(*pair.engine).ReadHead(pair.slot, layer, head);
        DoubleModel::Head* of_truth = &pair.expected.head(layer, head);
        AdoptTies(state, of_truth, &excused);
        const bool scored = HasScores(pair.plan);
        CompareHead(state, of_truth, scored && !pair.expected.InWindow(layer), &excused);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    const auto next = static_cast<TokenId>(pair.rng() % pair.config.vocab_size);
    pair.driver.DecodeToken(pair.slot, next, position);
    pair.driver.Step();
    const std::vector<double> logits = pair.expected.Step(next, position++);
    const std::vector<float> actual = pair.driver.Logits(pair.slot);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(actual[i], logits[i], 3e-4);
  }
  EXPECT_LE(excused, 5) << "near-ties should be rare";
}

TEST_P(EvictionTest, RunsCommittedLaterMatchTheDoubleModel) {
  HoldRuns(std::get<0>(GetParam()), std::get<1>(GetParam()), false);
}

// A full cache has no near-ties.
TEST(HeldRuns, ATokenIsDecodedInTheStepOfTheCommit) {
  for (const char* device : {"reference", "cpu"})
    HoldRuns(device, {"Full", 6, 2, "full", 512, -1, -1, 45}, true);
}

// A model with sliding windows in all layers but the last, or in all (as Mistral 7B v0.1).
ModelConfig WithWindow(const char* family, int window, bool everywhere) {
  ModelConfig config = InFamily(SmallConfig(6, 2), family);
  config.layer_kinds.resize(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer)
    config.layer_kinds[layer].window = everywhere || layer + 1 < config.num_layers ? window : 0;
  return config;
}

// The slicing of an appended run changes no bit of the kept entries and the logits.
TEST(AppendedRuns, SlicingChangesNoBit) {
  const uint64_t seed = 8;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const char* name : {"h2o", "ada-h2o", "snapkv", "streaming", "snapkv, cut", "echo, cut",
                           "learned", "learned, cut", "windows"}) {
    SCOPED_TRACE(name);
    const bool cut = std::string(name).ends_with(", cut"), windows = std::string(name) == "windows";
    const std::string policy =
        windows ? "h2o" : std::string(name).substr(0, std::string(name).find(','));
    const Case c = {policy.c_str(), 6, 2, policy.c_str(), 48, -1, -1, 90, {}};
    const ModelConfig config =
        windows ? WithWindow("gemma3_text", 50, false) : SmallConfig(c.heads, c.kv_heads);
    const std::vector<int32_t> keep(cut ? config.num_layers * c.kv_heads : 0, 61);
    const auto engine = EngineOf("cpu", MakeRandomModel(config, seed), c);
    ASSERT_NE(engine, nullptr);
    const CachePlan plan = *PlanOf(c, engine->limits());
    std::mt19937_64 rng(seed);
    const std::vector<TokenId> prompt = Draw(c.prompt, config.vocab_size, &rng);
    const std::vector<TokenId> run = Draw(75, config.vocab_size, &rng);
    EngineDriver driver(engine.get(), seed);
    std::vector<std::vector<float>> logits;
    for (const bool sliced : {false, true}) {
      const int slot = driver.Add(prompt, plan, 100);
      driver.PrefillAll(slot);
      driver.Step();
      if (cut) {
        driver.BeginRun(slot, run, TurnRun{.scored_end = c.prompt, .keep = keep});
      } else {
        driver.BeginRun(slot, run);
      }
      for (int layer = 0; layer < config.num_layers && sliced; ++layer) {
        for (const auto& [begin, end] : {std::pair(0, 32), std::pair(32, 64), std::pair(64, 75)}) {
          driver.AppendPart(slot, layer, layer + 1, begin, end);
          driver.Step();
        }
      }
      if (!sliced) {
        driver.AppendPart(slot, 0, config.num_layers, 0, 75);
        driver.Step();
      }
      logits.push_back(driver.Logits(slot));
    }
    EXPECT_EQ(logits[0], logits[1]);
    for (int layer = 0; layer < config.num_layers; ++layer) {
      for (int head = 0; head < c.kv_heads; ++head) {
        const HeadState a = EngineProbe(*engine).ReadHead(0, layer, head);
        const HeadState b = EngineProbe(*engine).ReadHead(1, layer, head);
        EXPECT_EQ(a.positions, b.positions);
        if (HasScores(plan) && !(windows && layer + 1 < config.num_layers)) {
          EXPECT_EQ(a.scores, b.scores);
        }
        EXPECT_EQ(a.keys, b.keys);
        EXPECT_EQ(a.values, b.values);
      }
    }
  }
}

// Two sequences that have seen the same tokens hold the same positions, with equal scores but for
// rounding errors.
void ExpectSameCaches(const Engine& engine, int one, int other, bool scored) {
  for (int layer = 0; layer < engine.config().num_layers; ++layer) {
    for (int head = 0; head < engine.config().num_kv_heads; ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
      std::map<int, float> scores[2];
      for (const int i : {0, 1}) {
        const HeadState state = EngineProbe(engine).ReadHead(i == 0 ? one : other, layer, head);
        for (size_t entry = 0; entry < state.positions.size(); ++entry)
          scores[i][state.positions[entry]] = state.scores[entry];
        EXPECT_EQ(scores[i].size(), state.positions.size()) << "a position is kept twice";
      }
      ASSERT_EQ(scores[0].size(), scores[1].size());
      for (const auto& [position, score] : scores[0]) {
        ASSERT_EQ(scores[1].count(position), 1u) << "position " << position;
        if (!scored) continue;
        EXPECT_NEAR(scores[1][position], score, 1e-4 * std::max(1.0f, score));
      }
    }
  }
}

// Turns of 200, 31 and 90 tokens, each in one step, against the same tokens decoded one by one;
// windows are shorter and longer than the prompt and a turn. Heads without a window evict nothing
// after the prompt, so both ways keep the same entries.
void CompareTurns(const std::string& device, const ModelConfig& config, const Case& c) {
  const uint64_t seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << c.policy << ", " << device);
  const auto engine = EngineOf(device, MakeRandomModel(config, seed), c);
  ASSERT_GT(engine->limits().WindowLayers(), 0);
  const CachePlan plan = *PlanOf(c, engine->limits());
  ASSERT_TRUE(plan.AppendsRuns());
  const bool scored = plan.rule.scored && !plan.rule.by_position;
  std::mt19937_64 rng(seed);
  const std::vector<TokenId> prompt = Draw(c.prompt, config.vocab_size, &rng);
  EngineDriver driver(engine.get(), seed);
  const int at_once = driver.Add(prompt, plan, 330), one_by_one = driver.Add(prompt, plan, 330);
  driver.PrefillAll(at_once);
  driver.PrefillAll(one_by_one);
  driver.Step();
  int position = c.prompt;
  for (const int count : {200, 31, 90}) {
    SCOPED_TRACE(testing::Message() << "a turn of " << count << " at " << position);
    const std::vector<TokenId> turn = Draw(count, config.vocab_size, &rng);
    for (const TokenId token : turn) {
      driver.DecodeToken(one_by_one, token, position++);
      driver.Step();
    }
    const std::vector<float> expected = driver.Logits(one_by_one);
    driver.Append(at_once, turn);
    driver.Step();
    const std::vector<float> logits = driver.Logits(at_once);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 3e-4);
    EXPECT_EQ(driver.last_token(at_once), driver.last_token(one_by_one));
    ExpectSameCaches(*engine, at_once, one_by_one, scored);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(AppendedRuns, ATurnOnWindowsEqualsReadingItTokenByToken) {
  for (const char* device : {"reference", "cpu"}) {
    for (const int window : {7, 40, 210}) {
      for (const auto& [family, everywhere] :
           {std::pair("gemma3_text", false), std::pair("gpt_oss", false),
            std::pair("llama", true)}) {
        SCOPED_TRACE(testing::Message() << family << ", a window of " << window);
        const ModelConfig config = WithWindow(family, window, everywhere);
        CompareTurns(device, config, {"", 6, 2, "full", 512, -1, -1, 45});
        if (everywhere) continue;
        CompareTurns(device, config, {"", 6, 2, "snapkv", 20, -1, -1, 45});
        CompareTurns(device, config, {"", 6, 2, "h2o", 400, -1, -1, 45});
      }
    }
  }
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
    {"Co2LayerGqa", 6, 2, "co2", 32, -1, -1, 80, {{"budget_scope", "layer"}}},
    {"Co2LayerMha",
     4,
     4,
     "co2",
     17,
     -1,
     -1,
     65,
     {{"budget_scope", "layer"}, {"head_floor", "0"}, {"measurement_steps", "3"}}},
    {"Co2Model",
     6,
     2,
     "co2",
     20,
     -1,
     -1,
     60,
     {{"budget_scope", "model"}, {"head_floor", "0"}, {"alpha", "0"}}},
    {"Co2ModelMqaGrowsFirst",
     4,
     1,
     "co2",
     40,
     -1,
     -1,
     30,
     {{"budget_scope", "model"}, {"measurement_steps", "30"}}},
    {"Co2ModelAtOnce",
     6,
     2,
     "co2",
     32,
     -1,
     -1,
     80,
     {{"budget_scope", "model"}, {"measurement_steps", "0"}}},
    {"Co2TunedGqa", 6, 2, "co2", 32, -1, -1, 220, {{"self_tuning", "true"}}},
    {"Co2TunedMha", 4, 4, "co2", 17, -1, -1, 165, {{"self_tuning", "true"}}},
    {"Co2TunedMqaModel",
     4,
     1,
     "co2",
     40,
     -1,
     -1,
     193,
     {{"self_tuning", "true"}, {"budget_scope", "model"}}},
    {"Co2TunedLayer",
     6,
     2,
     "co2",
     9,
     -1,
     -1,
     210,
     {{"self_tuning", "true"}, {"budget_scope", "layer"}, {"measurement_steps", "30"}}},
    {"Co2TunedAtOnce",
     4,
     4,
     "co2",
     33,
     -1,
     -1,
     90,
     {{"self_tuning", "true"}, {"measurement_steps", "0"}}},
    {"Co2TooShortToTune", 6, 2, "co2", 60, -1, -1, 92, {{"self_tuning", "true"}}},
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
    {"ReconstructEcho", 6, 2, "reconstruct", 24, -1, -1, 60, {{"echo", "true"}}},
    {"ReconstructEchoLayer",
     4,
     1,
     "reconstruct",
     16,
     1,
     3,
     47,
     {{"echo", "true"}, {"budget_scope", "layer"}}},
    {"EchoGqa", 6, 2, "echo", 24, -1, -1, 60},
    {"EchoMha", 4, 4, "echo", 17, 1, 3, 33, {{"max_weight", "0"}, {"value_norms", "false"}}},
    {"ReconstructNoNorms", 6, 2, "reconstruct", 24, -1, -1, 60, {{"value_norms", "false"}}},
    {"EchoMqaLayer", 4, 1, "echo", 16, -1, -1, 47, {{"budget_scope", "layer"}}},
    {"EchoHead", 6, 2, "echo", 20, -1, 4, 50, {{"budget_scope", "head"}, {"sum_weight", "0"}}},
    {"EchoDecodeCap", 6, 2, "echo", 20, -1, 4, 96, {{"decode_cap", "30"}}},
    {"EchoOpt", 4, 4, "echo", 33, -1, -1, 65, {}, "opt"},
    {"EchoNeox", 4, 4, "echo", 33, -1, -1, 65, {}, "gpt_neox"},
    {"LearnedGqa", 6, 2, "learned", 24, -1, -1, 60},
    {"LearnedMha", 4, 4, "learned", 17, 1, 3, 33, {{"budget_scope", "head"}}},
    {"LearnedMqaLayer", 4, 1, "learned", 16, -1, -1, 47, {{"budget_scope", "layer"}}},
    {"LearnedEcho", 6, 2, "learned", 24, -1, -1, 60, {{"echo", "true"}}},
    {"LearnedEchoHead",
     4,
     4,
     "learned",
     17,
     -1,
     4,
     65,
     {{"echo", "true"}, {"budget_scope", "head"}, {"value_norms", "false"}}},
    {"LearnedDecodeCap", 6, 2, "learned", 20, -1, 4, 96, {{"decode_cap", "30"}}},
    {"LearnedOpt", 4, 4, "learned", 33, -1, -1, 65, {}, "opt"},
    {"LearnedNeox", 4, 4, "learned", 33, -1, -1, 65, {{"echo", "true"}}, "gpt_neox"},
    {"LearnedScaledResidual", 6, 2, "learned", 24, -1, -1, 60, {}, "granitemoeshared"},
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

// One case of each policy, and the first rolling one, for every family that kCases lacks.
std::vector<Case> FamilyCases() {
  std::vector<Case> cases;
  for (const char* family : {"qwen2", "qwen3", "granite", "smollm3", "phi3", "olmo2", "gemma",
                             "gemma2", "gemma3_text", "qwen3_moe", "granitemoeshared", "gpt_oss"}) {
    std::set<std::string> seen;
    for (const Case& c : kCases) {
      const bool rolls = c.params.count("rolling") > 0;
      if (!seen.insert(rolls ? "rolling" : c.policy).second) continue;
      cases.push_back(c);
      cases.back().family = family;
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, EvictionTest,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::ValuesIn(FamilyCases())),
                         [](const auto& info) {
                           const Case& c = std::get<1>(info.param);
                           return std::string(c.family) + c.name;
                         });

std::unique_ptr<Engine> OracleEngine(uint64_t seed, int kv_heads = 2,
                                     const std::string& device = "cpu", int max_num_seqs = 4) {
  EngineOptions options;
  options.device = device;
  options.dtype = WeightDType::kFloat32;
  options.batch_invariant = true;
  options.num_blocks_override = 128 * max_num_seqs;
  options.max_num_seqs = max_num_seqs;
  options.max_shared_statistics = 16;
  auto engine = Engine::Create(MakeRandomModel(SmallConfig(6, kv_heads), seed), options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The same prompt of 70 tokens and 50 tokens after it under each of the caches: logits must be
// equal, bit for bit, at every step.
void ExpectEqualLogits(uint64_t seed, const std::vector<CacheSpec>& caches, int kv_heads = 2) {
  const auto engine = OracleEngine(seed, kv_heads);
  std::vector<TokenId> prompt;
  prompt.reserve(70);
  for (int i = 0; i < 70; ++i) prompt.push_back(i * (seed % 7 + 7) % engine->config().vocab_size);
  EngineDriver driver(engine.get(), 1);
  std::vector<int> slots;
  for (const CacheSpec& cache : caches) {
    slots.push_back(driver.Add(prompt, *PlanCache(cache, {70, 2, kv_heads}), 50));
    driver.PrefillAll(slots.back());
  }
  for (int step = 0; step < 50; ++step) {
    driver.Step();
    for (const int slot : slots)
      ASSERT_EQ(driver.Logits(slot), driver.Logits(slots[0])) << "step " << step;
    for (const int slot : slots) driver.Decode(slot);
  }
}

// h2o without heavy hitters keeps the same entries as local.
TEST(EvictionOracle, RecentOnlyH2oIsLocal) {
  CacheSpec h2o, local;
  h2o.policy = "h2o";
  h2o.max_cache_tokens = h2o.protected_window_size = 24;
  local.policy = "local";
  local.max_cache_tokens = 24;
  ExpectEqualLogits(77, {h2o, local});
}

// co2 that sums without decay, compacts after the prompt and gives half to FIFO entries is h2o.
TEST(EvictionOracle, Co2ContainsH2o) {
  CacheSpec h2o, co2;
  h2o.policy = "h2o";
  co2.policy = "co2";
  h2o.max_cache_tokens = co2.max_cache_tokens = 25;
  co2.params = {{"alpha", "0"}, {"measurement_steps", "0"}, {"rho", "0.5"}};
  ExpectEqualLogits(79, {h2o, co2});
}

// Neither a window as long as the prompt nor a budget above its length evicts anything.
TEST(EvictionOracle, SnapKvThatDropsNothingIsFull) {
  CacheSpec full, window, budget;
  window.policy = budget.policy = "snapkv";
  window.max_cache_tokens = window.protected_window_size = 70;
  budget.max_cache_tokens = 71;
  ExpectEqualLogits(78, {full, window, budget});
}

// Policies that revise their scores equal the full cache until their budget is exceeded.
TEST(EvictionOracle, RevisedScoresWithinTheBudgetAreFull) {
  std::vector<CacheSpec> caches(4);
  caches[1].policy = "tova";
  caches[2].policy = "random";
  caches[3].policy = "scissorhands";
  for (size_t i = 1; i < caches.size(); ++i) caches[i].max_cache_tokens = 120;
  ExpectEqualLogits(81, caches);
}

// If only recent entries are kept, neither random draws nor attention matter.
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

// A rolling cache below its cap equals the full one up to rounding, not bit for bit: its keys are
// rotated, rotated back, and rotated again by their distance to the query.
TEST(EvictionOracle, RollingBelowItsCapIsFullButForRounding) {
  for (const char* policy : {"streaming", "h2o"}) {
    const auto engine = OracleEngine(80);
    std::vector<TokenId> prompt;
    prompt.reserve(70);
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

CacheSpec Cache(const std::string& policy, int budget,
                std::map<std::string, std::string> params = {}) {
  CacheSpec spec;
  spec.policy = policy;
  spec.max_cache_tokens = budget;
  spec.params = std::move(params);
  return spec;
}

// With a floor of the whole budget, heads that share a budget get the same entries as without
// sharing; a pyramid of beta 1 has the same budget in every layer.
TEST(EvictionOracle, SharingWithAWholeFloorIsUniform) {
  ExpectEqualLogits(81, {Cache("h2o", 25), Cache("ada-h2o", 25, {{"head_floor", "1"}})});
  ExpectEqualLogits(82, {Cache("snapkv", 24), Cache("ada-snapkv", 24, {{"head_floor", "1"}}),
                         Cache("pyramidkv", 24, {{"beta", "1"}})});
  ExpectEqualLogits(83, {Cache("pyramidkv", 24, {{"decode_cap", "30"}}),
                         Cache("ada-pyramid", 24, {{"decode_cap", "30"}, {"head_floor", "1"}})});
}

// In a group of one query head the mean is the maximum.
TEST(EvictionOracle, AGroupOfOneHasOneReduction) {
  ExpectEqualLogits(84, {Cache("h2o", 25), Cache("h2o", 25, {{"group_reduce", "max"}})}, 6);
  ExpectEqualLogits(
      85, {Cache("ada-snapkv", 25), Cache("ada-snapkv", 25, {{"group_reduce", "max"}})}, 6);
}

// The prompt, and after it the probe, if the plan reads one.
std::vector<TokenId> PrefillTokens(const CachePlan& plan, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> reading(plan.prompt.tokens);
  for (TokenId& token : reading) token = static_cast<TokenId>(rng() % vocab);
  if (!plan.ReadsProbe()) return reading;
  const std::vector<TokenId> again = reading;
  reading.insert(reading.end(), {3, 1, 4});
  reading.insert(reading.end(), again.begin(), again.end());
  return reading;
}

class RaggedOracle : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, RaggedOracle, ::testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return info.param; });

// Heads that share a layer's budget keep at least the floor. In decode, sinks and recent entries
// are never evicted, and no head grows beyond its cap.
TEST_P(RaggedOracle, AdaCapsSumUpAndProtect) {
  constexpr int kKvHeads = 3, kPrompt = 90, kSteps = 60;
  struct AdaCase {
    CacheSpec spec;
    int sinks, recent, growth;
    double floor;
  };
  AdaCase cases[] = {
      {Cache("ada-h2o", 30), 3, 5, 0, 0.2},
      {Cache("ada-h2o", 21, {{"head_floor", "0"}}), 1, 1, 0, 0.0},
      {Cache("ada-snapkv", 29, {{"decode_cap", "33"}, {"head_floor", "0.5"}}), 0, 7, 4, 0.5},
      {Cache("ada-pyramid", 29, {{"decode_cap", "29"}}), 0, 7, 0, 0.2}};
  for (AdaCase& c : cases) {
    SCOPED_TRACE(c.spec.policy);
    const auto engine = OracleEngine(86, kKvHeads, GetParam());
    if (c.sinks > 0) c.spec.sink_tokens = c.sinks;
    c.spec.protected_window_size = c.recent;
    const CachePlan plan = *PlanCache(c.spec, {kPrompt, 2, kKvHeads});
    EngineDriver driver(engine.get(), 1);
    const int slot = driver.Add(PrefillTokens(plan, engine->config().vocab_size, 86), plan, kSteps);
    driver.PrefillAll(slot);
    driver.Step();
    const std::vector<int32_t> entries = driver.Entries(slot);
    ASSERT_EQ(entries.size(), 2u * kKvHeads);
    std::set<int32_t> different;
    for (int layer = 0; layer < 2; ++layer) {
      const int budget = plan.LayerBudget(layer), guarded = c.sinks + c.recent;
      int sum = 0;
      for (int head = 0; head < kKvHeads; ++head) {
        const int32_t kept = entries[layer * kKvHeads + head];
        EXPECT_GE(kept, static_cast<int>(c.floor * (budget - guarded)) + guarded);
        EXPECT_LE(kept, MaxKeep(plan));
        sum += kept;
        different.insert(kept);
      }
      EXPECT_EQ(sum, kKvHeads * budget);
    }
    EXPECT_GT(different.size(), 2u) << "heads that are alike test nothing";
    for (int seen = kPrompt; seen <= kPrompt + kSteps; ++seen) {
      for (int head = 0; head < 2 * kKvHeads; ++head) {
        const HeadState state =
            EngineProbe(*engine).ReadHead(slot, head / kKvHeads, head % kKvHeads);
        const std::set<int> positions(state.positions.begin(), state.positions.end());
        ASSERT_EQ(static_cast<int>(positions.size()),
                  entries[head] + std::min(seen - kPrompt, c.growth))
            << "after " << seen;
        for (int i = 0; i < c.sinks; ++i) ASSERT_TRUE(positions.count(i)) << i << " of " << seen;
        for (int i = seen - c.recent; i < seen; ++i)
          ASSERT_TRUE(positions.count(i)) << i << " of " << seen;
      }
      if (seen == kPrompt + kSteps) break;
      driver.DecodeToken(slot, seen * 7 % engine->config().vocab_size, seen);
      driver.Step();
    }
  }
}

// Caches with budgets shared between heads, and two without (h2o and snapkv by head).
std::vector<CacheSpec> RaggedCaches(int budget) {
  std::vector<CacheSpec> caches = {
      Cache("h2o", budget),         Cache("snapkv", budget),
      Cache("ada-snapkv", budget),  Cache("ada-h2o", budget, {{"head_floor", "0"}}),
      Cache("ada-pyramid", budget), Cache("h2o", budget, {{"budget_scope", "model"}}),
      Cache("echo", budget),        Cache("auto", budget),
      Cache("reconstruct", budget), Cache("reconstruct", budget, {{"echo", "true"}})};
  for (CacheSpec& cache : caches) {
    if (cache.policy != "auto") cache.protected_window_size = 6;
  }
  return caches;
}

// The outcome of a prefill: entries kept, retained mass, logits and scores.
struct Decided {
  std::vector<int32_t> entries;
  std::vector<float> retained_mass, logits;
  std::vector<std::map<int32_t, float>> heads;  // position -> score
  bool operator==(const Decided&) const = default;
};

Decided Decide(Engine* engine, EngineDriver* driver, int slot, int kv_heads) {
  Decided decided = {driver->Entries(slot), driver->RetainedMass(slot), driver->Logits(slot), {}};
  for (int head = 0; head < 2 * kv_heads; ++head) {
    const HeadState state = EngineProbe(*engine).ReadHead(slot, head / kv_heads, head % kv_heads);
    auto& positions = decided.heads.emplace_back();
    for (size_t i = 0; i < state.positions.size(); ++i)
      positions[state.positions[i]] = state.scores[i];
  }
  return decided;
}

// The same entries with the same scores. (Compaction may reorder them, so attention may round
// differently.)
TEST_P(RaggedOracle, AModelsBudgetWithAWholeFloorIsUniform) {
  std::vector<Decided> decided;
  for (const char* scope : {"head", "model"}) {
    const auto engine = OracleEngine(90, 2, GetParam());
    const CachePlan plan =
        *PlanCache(Cache("h2o", 25, {{"head_floor", "1"}, {"budget_scope", scope}}), {90, 2, 2});
    EngineDriver driver(engine.get(), 1);
    const int slot = driver.Add(PrefillTokens(plan, engine->config().vocab_size, 90), plan, 1);
    driver.PrefillAll(slot);
    driver.Step();
    decided.push_back(Decide(engine.get(), &driver, slot, 2));
  }
  EXPECT_EQ(decided[0].heads, decided[1].heads);
  EXPECT_EQ(decided[0].retained_mass, decided[1].retained_mass);
  EXPECT_EQ(decided[1].entries, std::vector<int32_t>(4, 25));
}

// One prefill can serve several slots: each slot gets the cache and the logits that its own prefill
// would give, for any slicing. The slices include the first slot's probe.
TEST_P(RaggedOracle, SharingSlotsEqualTheirOwnPrefill) {
  constexpr int kPrompt = 200, kSteps = 30;
  std::vector<CacheSpec> caches = RaggedCaches(30);
  std::rotate(caches.begin(), caches.end() - 1, caches.end());  // reconstruct reads the most
  for (const char* policy : {"streaming", "tova", "random", "scissorhands", "subgen",
                             "subgen-kcenter", "pyramidkv", "co2"})
    caches.push_back(Cache(policy, 34));
  caches.push_back(Cache("h2o", 34, {{"group_reduce", "max"}}));
  caches.push_back(Cache("h2o", 34, {{"rolling", "true"}}));
  caches.push_back(Cache("co2", 34, {{"self_tuning", "true"}, {"budget_scope", "layer"}}));
  for (const char* policy : {"ada-h2o", "auto"}) {
    caches.push_back(Cache(policy, 30));
    caches.back().min_retained_mass = 0.8;
  }
  caches.push_back(CacheSpec());  // full
  const auto engine = OracleEngine(94, 2, GetParam(), static_cast<int>(caches.size()));
  std::vector<CachePlan> plans;
  plans.reserve(caches.size());
  for (const CacheSpec& cache : caches) plans.push_back(*PlanCache(cache, {kPrompt, 2, 2}));
  const int vocab = engine->config().vocab_size;
  const auto go_on = [&](EngineDriver* driver, const std::vector<int>& slots) {
    std::vector<Decided> decided;
    decided.reserve(slots.size());
    for (const int slot : slots) decided.push_back(Decide(engine.get(), driver, slot, 2));
    for (int step = 0; step < kSteps; ++step) {
      for (const int slot : slots) driver->DecodeToken(slot, step * 7 % vocab, kPrompt + step);
      driver->Step();
    }
    for (size_t i = 0; i < slots.size(); ++i) decided[i].logits = driver->Logits(slots[i]);
    return decided;
  };
  const std::vector<TokenId> reading = PrefillTokens(plans[0], vocab, 94);
  std::vector<Decided> alone;
  for (const CachePlan& plan : plans) {
    EngineDriver driver(engine.get(), 1);
    const int slot = driver.Add(PrefillTokens(plan, vocab, 94), plan, kSteps);
    driver.PrefillAll(slot);
    driver.Step();
    alone.push_back(go_on(&driver, {slot})[0]);
  }
  for (const bool sliced : {false, true}) {
    EngineDriver driver(engine.get(), 2);
    std::vector<int> slots = {driver.Add(reading, plans[0], kSteps)};
    for (size_t i = 1; i < plans.size(); ++i)
      slots.push_back(driver.AddSharing(slots[0], plans[i], kSteps));
    const int n = static_cast<int>(reading.size());
    for (int layer = 0; sliced && layer < 2; ++layer) {
      for (int begin = 0; begin < n; begin += kQueryTile) {
        driver.PrefillPart(slots[0], layer, layer + 1, begin, std::min(n, begin + kQueryTile));
        driver.Step();
      }
    }
    if (!sliced) {
      driver.PrefillAll(slots[0]);
      driver.Step();
    }
    std::vector<Decided> together = go_on(&driver, slots);
    for (size_t i = 0; i < plans.size(); ++i) {
      for (auto* heads : {&together[i].heads, &alone[i].heads}) {
        for (auto& head : *heads) {  // scores that no rule reads may differ
          for (auto& [position, score] : head) score = plans[i].rule.scored ? score : 0.0f;
        }
      }
      SCOPED_TRACE(testing::Message()
                   << (sliced ? "sliced, " : "") << i << ": " << caches[i].policy);
      EXPECT_EQ(together[i].entries, alone[i].entries);
      EXPECT_EQ(together[i].retained_mass, alone[i].retained_mass);
      EXPECT_EQ(together[i].heads, alone[i].heads);
      EXPECT_EQ(together[i].logits, alone[i].logits);
    }
  }
}

// The slicing of a prompt changes no bit.
TEST_P(RaggedOracle, SlicingAPromptDecidesNothing) {
  constexpr int kPrompt = 100;
  std::vector<CacheSpec> caches = RaggedCaches(30);
  for (const char* policy : {"ada-h2o", "auto"}) {
    caches.push_back(Cache(policy, 30));
    caches.back().min_retained_mass = 0.8;
  }
  for (const CacheSpec& cache : caches) {
    SCOPED_TRACE(testing::Message() << cache.policy << (cache.params.empty() ? "" : ", shared"));
    const CachePlan plan = *PlanCache(cache, {kPrompt, 2, 2});
    std::vector<Decided> decided;
    for (const int slice : {100'000, kQueryTile, 0}) {
      const auto engine = OracleEngine(87, 2, GetParam());
      EngineDriver driver(engine.get(), 1);
      const std::vector<TokenId> reading = PrefillTokens(plan, engine->config().vocab_size, 87);
      const auto n = static_cast<int>(reading.size());
      const int slot = driver.Add(reading, plan, 1);
      if (slice == 0) {  // both layers at once
        driver.PrefillAll(slot);
        driver.Step();
      }
      for (int layer = 0; layer < (slice == 0 ? 0 : 2); ++layer) {
        for (int begin = 0; begin < n; begin += slice) {
          driver.PrefillPart(slot, layer, layer + 1, begin, std::min(n, begin + slice));
          driver.Step();
        }
      }
      decided.push_back(Decide(engine.get(), &driver, slot, 2));
      EXPECT_TRUE(decided.back() == decided.front()) << "slices of " << slice;
    }
    EXPECT_EQ(decided.front().entries.empty(), !IsReported(plan));
  }
}

// Retained mass of each head, against the double model's attention.
TEST_P(RaggedOracle, RetainedMassIsTheLastQueriesAttention) {
  const auto model = MakeRandomModel(SmallConfig(6, 2), 88);
  for (const int prompt : {20, 90}) {  // shorter and longer than the 32 queries
    for (const CacheSpec& cache : RaggedCaches(14)) {
      SCOPED_TRACE(testing::Message() << cache.policy << ", " << prompt << " tokens");
      const auto engine = OracleEngine(88, 2, GetParam());
      const CachePlan plan = *PlanCache(cache, {prompt, 2, 2});
      const std::vector<TokenId> reading = PrefillTokens(plan, engine->config().vocab_size, 88);
      EngineDriver driver(engine.get(), 1);
      const int slot = driver.Add(reading, plan, 1);
      driver.PrefillAll(slot);
      driver.Step();
      const DoubleModel truth(*model);
      CachePlan whole = plan;
      whole.budget = whole.cap = prompt;
      whole.layer_budgets.clear();
      DoubleModel::Sequence all(&truth, whole);
      all.Prefill(reading);
      ASSERT_EQ(driver.RetainedMass(slot).size(), 4u);
      for (int head = 0; head < 4; ++head) {
        const HeadState state = EngineProbe(*engine).ReadHead(slot, head / 2, head % 2);
        double mass = 0;
        for (const int32_t position : state.positions)
          mass += all.head(head / 2, head % 2).entries[position].late / plan.MassQueries();
        EXPECT_NEAR(driver.RetainedMass(slot)[head], mass, 2e-5) << "head " << head;
        EXPECT_EQ(mass < 0.99999, static_cast<int>(state.positions.size()) < prompt);
      }
    }
  }
  const auto engine = OracleEngine(88, 2, GetParam());
  EngineDriver driver(engine.get(), 1);
  const CachePlan plan = *PlanCache(Cache("ada-h2o", 40), {40, 2, 2});
  const int slot = driver.Add(PrefillTokens(plan, engine->config().vocab_size, 88), plan, 1);
  driver.PrefillAll(slot);
  driver.Step();
  EXPECT_TRUE(driver.RetainedMass(slot).empty()) << "nothing has left";
}

// The least number of entries that retains enough mass, best first by the double model's scores: at
// least `keep`, at most MaxForMass(), or else all n. margin: added to the required mass.
int LeastFor(const DoubleModel::Head& all, const CachePlan& plan, int keep, int n, double margin) {
  std::vector<std::tuple<bool, double, int>> order;  // the worst first
  for (const DoubleModel::Entry& entry : all.entries) {
    const bool guarded = entry.position < plan.rule.sinks || entry.position >= n - plan.rule.recent;
    order.emplace_back(guarded, entry.score, entry.position);
  }
  std::sort(order.rbegin(), order.rend());
  double mass = 0;
  for (int i = 0; i < n; ++i) {
    mass += all.entries[std::get<2>(order[i])].late / plan.MassQueries();
    if (i + 1 < keep || mass < MinRetainedMass(plan) + margin) continue;
    return i + 1 <= std::max(keep, MaxForMass(plan)) ? i + 1 : n;
  }
  return n;
}

TEST_P(RaggedOracle, HeadsKeepTheFewestEntriesForTheMass) {
  constexpr int kPrompt = 90;
  const auto model = MakeRandomModel(SmallConfig(6, 2), 89);
  int raised = 0, whole_heads = 0, unchanged = 0;
  for (const double least_mass : {0.1, 0.2, 0.5, 0.9}) {
    for (CacheSpec cache : RaggedCaches(60)) {
      SCOPED_TRACE(testing::Message() << cache.policy << ", mass " << least_mass);
      cache.cache_ratio = 0.15;  // 14 entries, and up to 60 for the mass
      cache.min_cache_tokens = 0;
      const CachePlan before = *PlanCache(cache, {kPrompt, 2, 2});
      cache.min_retained_mass = least_mass;
      const CachePlan plan = *PlanCache(cache, {kPrompt, 2, 2});
      ASSERT_EQ(plan.budget, 14);
      const auto engine = OracleEngine(89, 2, GetParam());
      const std::vector<TokenId> reading = PrefillTokens(plan, engine->config().vocab_size, 89);
      EngineDriver driver(engine.get(), 1);
      const int slot = driver.Add(reading, plan, 1);
      driver.PrefillAll(slot);
      driver.Step();
      const DoubleModel truth(*model);
      CachePlan keep_all = plan;
      keep_all.budget = keep_all.cap = kPrompt;
      keep_all.layer_budgets.clear();
      keep_all.retention = std::make_shared<CompactAtPrefill>();
      CachePlan plain = before;
      // All entries are candidates if retained mass is guaranteed.
      if (plain.share.scope == BudgetScope::kModel)
        plain.retention = std::make_shared<CandidateRetention>(kPrompt);
      DoubleModel::Sequence all(&truth, keep_all), uniform(&truth, plain);
      all.Prefill(reading);
      uniform.Prefill(reading);
      for (int head = 0; head < 4; ++head) {
        SCOPED_TRACE(testing::Message() << "head " << head);
        const auto held = static_cast<int>(
            EngineProbe(*engine).ReadHead(slot, head / 2, head % 2).positions.size());
        EXPECT_EQ(held, driver.Entries(slot)[head]);
        const auto keep = static_cast<int>(uniform.head(head / 2, head % 2).entries.size());
        const DoubleModel::Head& entries = all.head(head / 2, head % 2);
        const int least = LeastFor(entries, plan, keep, kPrompt, -1e-5);
        const int most = LeastFor(entries, plan, keep, kPrompt, 1e-5);
        EXPECT_TRUE(held == least || held == most) << held << ", not " << least << " or " << most;
        if (held < kPrompt) {
          EXPECT_GE(driver.RetainedMass(slot)[head], least_mass - 1e-6);
        }
        ++(held == kPrompt ? whole_heads : held > keep ? raised : unchanged);
      }
    }
  }
  EXPECT_GT(raised, 10);
  EXPECT_GT(whole_heads, 10);
  EXPECT_GT(unchanged, 10);
}

}  // namespace
}  // namespace hydrant
