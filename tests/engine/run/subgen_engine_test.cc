// The policies subgen and subgen-kcenter in the engine: equal to full until their budget is
// exceeded. Then every step's logits equal the double-precision model's, which attends to the
// engine's entries and weights. Other rows of the batch are unaffected.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "engine/run/engine.h"
#include "engine/run/engine_probe.h"
#include "tests/device.h"
#include "tests/engine/run/double_model.h"
#include "tests/engine/run/random_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;

struct Case {
  const char* name;
  int heads, kv_heads;
  int budget;
  int prompt;
  DType kv_dtype = DType::kF32;
  std::map<std::string, std::string> params = {};
  int sinks = 0;
};

CacheSpec Spec(std::string policy, int budget) {
  CacheSpec spec;
  spec.policy = std::move(policy);
  if (budget > 0) spec.max_cache_tokens = budget;
  return spec;
}

std::unique_ptr<Engine> MakeEngine(const std::string& device,
                                   const std::shared_ptr<const ModelSource>& model,
                                   DType kv_dtype = DType::kF32) {
  EngineOptions options;
  options.device = device;
  options.num_threads = 2;
  options.dtype = WeightDType::kFloat32;
  options.kv_cache_dtype = kv_dtype;
  options.batch_invariant = true;
  options.num_blocks_override = 1024;
  options.max_num_seqs = 4;
  auto engine = Engine::Create(model, options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<TokenId> RandomPrompt(int length, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt) token = static_cast<TokenId>(rng() % vocab);
  return prompt;
}

class SubGenEngineTest : public ::testing::TestWithParam<std::tuple<std::string, Case>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(std::get<0>(GetParam())); }
};

// A head after `seen` tokens must hold the sinks and the last `recent` tokens exactly, and count
// all others in its clusters.
void CheckState(const HeadState& head, const SubGenRule& rule, int seen) {
  ASSERT_EQ(static_cast<int>(head.positions.size()), rule.Capacity());
  for (int p = seen - rule.recent; p < seen; ++p) {
    const int entry = rule.sinks + p % rule.recent;
    ASSERT_EQ(head.positions[entry], p);
    ASSERT_EQ(head.log_weights[2 * entry], 0.0f);
    ASSERT_EQ(head.log_weights[2 * entry + 1], 0.0f);
  }
  float counted = 0.0f;
  for (int i = 0; i < rule.max_clusters; ++i) counted += head.scores[rule.ClusterEntry(i)];
  ASSERT_EQ(counted, seen - rule.recent - rule.sinks);
  for (int p = 0; p < rule.sinks; ++p) ASSERT_EQ(head.positions[p], p);
  for (int entry = rule.sinks + rule.recent; entry < rule.Capacity(); ++entry)
    ASSERT_LT(head.positions[entry], seen - rule.recent) << "a sample of a token that is exact";
}

// The engine's head without the newest token, which the model's step adds.
DoubleModel::Head Adopt(const HeadState& from, int head_dim, int newest) {
  DoubleModel::Head head;
  for (size_t e = 0; e < from.positions.size(); ++e) {
    if (from.positions[e] == newest) continue;
    const auto row = [&](const std::vector<float>& rows) {
      const auto begin = rows.begin() + static_cast<int64_t>(e) * head_dim;
      return DoubleModel::Vector(begin, begin + head_dim);
    };
    DoubleModel::Entry entry;
    entry.position = static_cast<int>(e);  // attention does not depend on it
    entry.key = row(from.keys);
    entry.value = row(from.values);
    entry.numerator = from.log_weights[2 * e];
    entry.denominator = from.log_weights[2 * e + 1];
    head.entries.push_back(entry);
  }
  return head;
}

TEST_P(SubGenEngineTest, LogitsAreTheEstimatorsAtEveryStep) {
  const auto& [device, c] = GetParam();
  const uint64_t seed = 5150 + c.budget;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const int head_dim = std::max(16, BlockElements(c.kv_dtype));
  const ModelConfig config = SmallConfig(c.heads, c.kv_heads, head_dim);
  const auto model = MakeRandomModel(config, seed);
  const auto engine = MakeEngine(device, model, c.kv_dtype);
  CacheSpec spec = Spec("subgen", c.budget);
  spec.params = c.params;
  if (c.sinks > 0) spec.sink_tokens = c.sinks;
  const CachePlan plan = *PlanCache(spec, {c.prompt});
  const DoubleModel truth(*model);
  DoubleModel::Sequence expected(&truth, plan);
  EngineDriver driver(engine.get(), seed);
  constexpr int kSteps = 60;
  const int slot = driver.Add(RandomPrompt(c.prompt, config.vocab_size, seed), plan, kSteps);
  driver.PrefillAll(slot);
  driver.Step();
  std::mt19937_64 rng(seed);
  // The engine rounds the newest token's entry, the model does not.
  const double tolerance = c.kv_dtype == DType::kF32    ? 3e-4
                           : c.kv_dtype == DType::kQ8_0 ? 0.4
                           : c.kv_dtype == DType::kE4M3 ? 1.0
                           : c.kv_dtype == DType::kQ4_0 ? 1.5
                                                        : 0.1;
  int streamed_steps = 0;
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const auto token = static_cast<TokenId>(rng() % config.vocab_size);
    const int position = c.prompt + step;
    driver.DecodeToken(slot, token, position);
    driver.Step();
    for (int layer = 0; layer < config.num_layers; ++layer) {
      for (int head = 0; head < config.num_kv_heads; ++head) {
        const HeadState state = EngineProbe(*engine).ReadHead(slot, layer, head);
        if (position >= c.budget) {
          ASSERT_NO_FATAL_FAILURE(CheckState(state, *plan.retention->Samples(), position + 1));
        }
        expected.head(layer, head) = Adopt(state, config.head_dim, position);
      }
    }
    streamed_steps += position >= c.budget ? 1 : 0;
    const std::vector<double> logits = expected.Step(token, position);
    const std::vector<float> actual = driver.Logits(slot);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(actual[i], logits[i], tolerance) << i;
  }
  EXPECT_GE(streamed_steps, 20);
}

const Case kCases[] = {
    {"Gqa", 6, 2, 32, 80},
    {"MhaOneMore", 4, 4, 33, 34, DType::kF32, {{"delta", "1.5"}}},
    {"MqaAtItsBudget", 4, 1, 40, 40, DType::kF32, {{"cluster_samples", "1"}}},
    {"GrowsIntoItsBudget", 6, 2, 48, 20, DType::kF32, {{"max_clusters", "2"}}},
    {"Least", 6, 2, 4, 30},
    {"Sinks", 6, 2, 36, 50, DType::kF32, {{"delta_growth", "1.2"}}, 4},
    {"F16", 6, 2, 64, 50, DType::kF16, {{"value_samples", "24"}}},
    {"BF16", 4, 4, 50, 90, DType::kBF16, {{"sample_seed", "77"}}},
    {"Fp8", 6, 2, 48, 60, DType::kE4M3},
    {"Int8", 6, 2, 48, 60, DType::kQ8_0},
    {"Int4", 4, 4, 50, 70, DType::kQ4_0},
};

INSTANTIATE_TEST_SUITE_P(All, SubGenEngineTest,
                         ::testing::Combine(::testing::Values("reference", "cpu", "cuda"),
                                            ::testing::ValuesIn(kCases)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::get<1>(info.param).name;
                         });

class SubGenOracle : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    HYDRANT_SKIP_WITHOUT_DEVICE(GetParam());
    engine_ = MakeEngine(GetParam(), MakeRandomModel(SmallConfig(6, 2), 3));
    prompt_ = RandomPrompt(70, engine_->config().vocab_size, 4);
  }
  // Logits of the prompt and of kSteps greedy tokens for each cache, all in one batch:
  // [caches][steps][vocabulary].
  std::vector<std::vector<std::vector<float>>> Run(const std::vector<CacheSpec>& caches) {
    EngineDriver driver(engine_.get(), 1);
    std::vector<int> slots;
    for (const CacheSpec& cache : caches) {
      const auto n = static_cast<int64_t>(prompt_.size());
      slots.push_back(driver.Add(prompt_, *PlanCache(cache, {n}), kSteps));
      driver.PrefillAll(slots.back());
    }
    std::vector<std::vector<std::vector<float>>> logits(caches.size());
    for (int step = 0; step <= kSteps; ++step) {
      driver.Step();
      for (size_t i = 0; i < slots.size(); ++i) logits[i].push_back(driver.Logits(slots[i]));
      for (const int slot : slots) driver.Decode(slot);
    }
    return logits;
  }

  static constexpr int kSteps = 30;
  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> prompt_;
};

INSTANTIATE_TEST_SUITE_P(Devices, SubGenOracle, ::testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return info.param; });

// A budget that is never exceeded changes no bit.
TEST_P(SubGenOracle, BudgetOfTheLengthIsFull) {
  const auto logits = Run({Spec("full", 0), Spec("subgen", 100), Spec("subgen-kcenter", 70)});
  EXPECT_EQ(logits[1], logits[0]);
  EXPECT_EQ(logits[2], logits[0]);
}

// With one entry less the last step differs: the test above checks the exact limit.
TEST_P(SubGenOracle, BudgetBelowTheLengthIsNot) {
  const auto logits = Run({Spec("full", 0), Spec("subgen", 99), Spec("subgen-kcenter", 69)});
  for (int step = 0; step < kSteps; ++step) ASSERT_EQ(logits[1][step], logits[0][step]) << step;
  EXPECT_NE(logits[1][kSteps], logits[0][kSteps]);
  EXPECT_EQ(logits[2][0], logits[0][0]) << "the prompt itself is read whole";
  EXPECT_NE(logits[2][1], logits[0][1]);
}

// Rows with log weights beside rows without: each gives the same bits as alone.
TEST_P(SubGenOracle, CompanyChangesNoBit) {
  const std::vector<CacheSpec> caches = {Spec("h2o", 24), Spec("subgen", 32), Spec("full", 0),
                                         Spec("subgen", 80)};
  const auto together = Run(caches);
  for (size_t i = 0; i < caches.size(); ++i) EXPECT_EQ(Run({caches[i]})[0], together[i]) << i;
}

TEST_P(SubGenOracle, SeedsDrawDifferentSamples) {
  CacheSpec one = Spec("subgen", 32), other = one;
  other.params["sample_seed"] = "1";
  const auto logits = Run({one, one, other});
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_NE(logits[0], logits[2]);
}

}  // namespace
}  // namespace hydrant
