// The engine against a double-precision model and against itself: logits, slicing, batching, page
// placement, weights, memory and options.
#include "engine/run/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "engine/model/dummy_source.h"
#include "engine/run/engine_probe.h"
#include "tests/device.h"
#include "tests/engine/run/double_model.h"
#include "tests/engine/run/random_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;

EngineOptions Options(const std::string& device) {
  EngineOptions options;
  options.device = device;
  options.num_threads = 2;
  options.batch_invariant = true;
  options.dtype = WeightDType::kFloat32;
  options.num_blocks_override = 4096;
  options.max_num_seqs = 16;
  options.prefill_arena_tokens = 4096;
  return options;
}

std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const ModelSource> model,
                                   const EngineOptions& options) {
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(std::move(model), options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<TokenId> RandomTokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng() % vocab);
  return tokens;
}

CachePlan Plan(const std::string& policy, int budget, int prompt_tokens) {
  CacheSpec spec;
  spec.policy = policy;
  if (policy != "full") spec.max_cache_tokens = budget;
  return *PlanCache(spec, {prompt_tokens});
}

void ExpectLogitsNear(const std::vector<float>& actual, const std::vector<double>& expected,
                      double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i)
    worst = std::max(worst, std::abs(actual[i] - expected[i]));
  EXPECT_LT(worst, tolerance);
}

struct Shape {
  const char* name;
  int heads;
  int kv_heads;
  const char* family = "llama";
};

class EngineTest : public ::testing::TestWithParam<std::tuple<std::string, Shape>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(device()); }
  std::string device() const { return std::get<0>(GetParam()); }
  ModelConfig config() const {
    const Shape& shape = std::get<1>(GetParam());
    return InFamily(SmallConfig(shape.heads, shape.kv_heads), shape.family);
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, EngineTest,
    ::testing::Combine(
        ::testing::Values("reference", "cpu", "cuda"),
        ::testing::Values(Shape{"MHA", 4, 4}, Shape{"GQA", 6, 2}, Shape{"MQA", 4, 1},
                          Shape{"OPT", 4, 4, "opt"}, Shape{"NeoX", 4, 4, "gpt_neox"},
                          Shape{"Qwen2", 6, 2, "qwen2"}, Shape{"Qwen3", 6, 2, "qwen3"},
                          Shape{"Granite", 6, 2, "granite"}, Shape{"SmolLM3", 6, 2, "smollm3"},
                          Shape{"Phi3", 6, 2, "phi3"}, Shape{"OLMo2", 6, 2, "olmo2"},
                          Shape{"Gemma", 6, 2, "gemma"}, Shape{"Gemma3", 6, 2, "gemma3_text"},
                          Shape{"Qwen3Moe", 6, 2, "qwen3_moe"},
                          Shape{"GraniteMoe", 6, 2, "granitemoeshared"})),
    [](const auto& info) { return std::get<0>(info.param) + std::get<1>(info.param).name; });

TEST_P(EngineTest, LogitsMatchTheDoubleModel) {
  for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
    ModelConfig shape = config();
    shape.rope_pairing = pairing;
    shape.tied_embeddings = pairing == RopePairing::kInterleaved;
    const auto model = MakeRandomModel(shape, 7);
    const auto engine = MakeEngine(model, Options(device()));
    const DoubleModel truth(*model);
    for (const int n : {1, 15, 16, 17, 33, 70}) {
      EngineDriver driver(engine.get(), n);
      const std::vector<TokenId> prompt = RandomTokens(n, shape.vocab_size, n);
      const int slot = driver.Add(prompt, Plan("full", 0, n), 20);
      DoubleModel::Sequence expected(&truth, Plan("full", 0, n));
      driver.PrefillAll(slot);
      driver.Step();
      ExpectLogitsNear(driver.Logits(slot), expected.Prefill(prompt), 2e-4);
      for (int step = 0; step < 20; ++step) {
        const TokenId token = driver.last_token(slot);
        driver.Decode(slot);
        driver.Step();
        ExpectLogitsNear(driver.Logits(slot), expected.Step(token, n + step), 2e-4);
      }
    }
  }
}

// Until the budget C is exceeded, every policy gives the logits of the full cache, bit for bit.
TEST_P(EngineTest, ABudgetAboveTheLengthChangesNoBit) {
  const auto engine = MakeEngine(MakeRandomModel(config(), 3), Options(device()));
  const std::vector<TokenId> prompt = RandomTokens(50, config().vocab_size, 5);
  std::vector<std::vector<float>> full_logits;
  for (const char* policy : {"full", "local", "streaming", "h2o", "snapkv", "co2"}) {
    EngineDriver driver(engine.get(), 11);
    const int slot = driver.Add(prompt, Plan(policy, 80, 50), 30);
    driver.PrefillAll(slot);
    driver.Step();
    for (int step = 0; step < 30; ++step) {
      driver.Decode(slot);
      driver.Step();
      if (full_logits.size() < 30) {
        full_logits.push_back(driver.Logits(slot));
      } else {
        ASSERT_EQ(driver.Logits(slot), full_logits[step]) << policy << " at step " << step;
      }
    }
  }
}

// Any slicing, batch order and placement of pages gives the same tokens and the same kept entries.
TEST_P(EngineTest, SlicingAndCompanyChangeNothing) {
  const auto engine = MakeEngine(MakeRandomModel(config(), 3), Options(device()));
  const int num_layers = config().num_layers;
  const std::vector<TokenId> prompt = RandomTokens(150, config().vocab_size, 5);
  const CachePlan plan = Plan("h2o", 40, 150);

  EngineDriver alone(engine.get(), 1);
  const std::vector<TokenId> expected = alone.Generate(alone.Add(prompt, plan, 60), 60);
  std::vector<HeadState> expected_heads;
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int head = 0; head < config().num_kv_heads; ++head)
      expected_heads.push_back(EngineProbe(*engine).ReadHead(0, layer, head));
  }

  EngineDriver crowd(engine.get(), 2);
  std::vector<int> others;
  for (const char* policy : {"full", "local", "streaming"}) {
    others.push_back(
        crowd.Add(RandomTokens(37, config().vocab_size, others.size()), Plan(policy, 24, 37), 90));
    crowd.PrefillAll(others.back());
  }
  const int slot = crowd.Add(prompt, plan, 60);
  for (int layer = 0; layer < num_layers; ++layer) {
    for (const auto& [begin, end] :
         std::vector<std::pair<int, int>>{{0, 32}, {32, 96}, {96, 150}}) {
      crowd.PrefillPart(slot, layer, layer + 1, begin, end);
      if (layer + begin > 0) {
        for (const int other : others) crowd.Decode(other);
      }
      crowd.Step();
    }
  }
  std::vector<TokenId> actual = {crowd.last_token(slot)};
  while (actual.size() < 60) {
    if (actual.size() % 3 == 0) crowd.Decode(others[1]);
    crowd.Decode(slot);
    if (actual.size() % 2 == 0) crowd.Decode(others[0]);
    crowd.Step();
    actual.push_back(crowd.last_token(slot));
  }
  EXPECT_EQ(actual, expected);
  size_t i = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int head = 0; head < config().num_kv_heads; ++head, ++i) {
      const HeadState state = EngineProbe(*engine).ReadHead(slot, layer, head);
      EXPECT_EQ(state.positions, expected_heads[i].positions);
      EXPECT_EQ(state.scores, expected_heads[i].scores);
      EXPECT_EQ(state.keys, expected_heads[i].keys);
    }
  }
}

// Policies mixed in one batch do not change each other's tokens.
TEST_P(EngineTest, MixedBatchEqualsEachAlone) {
  const auto engine = MakeEngine(MakeRandomModel(config(), 9), Options(device()));
  const std::vector<std::string> policies = {"full", "local", "streaming", "h2o"};
  const auto prompt_of = [&](int i) {
    return RandomTokens(30 + 17 * i, config().vocab_size, 100 + i);
  };
  const auto plan_of = [&](int i) { return Plan(policies[i % 4], 16 + i, 30 + 17 * i); };
  std::vector<std::vector<TokenId>> alone;
  for (int i = 0; i < 8; ++i) {
    EngineDriver driver(engine.get(), i);
    alone.push_back(driver.Generate(driver.Add(prompt_of(i), plan_of(i), 40), 40));
  }
  EngineDriver driver(engine.get(), 99);
  for (int i = 0; i < 8; ++i) driver.PrefillAll(driver.Add(prompt_of(i), plan_of(i), 40));
  driver.Step();
  std::vector<std::vector<TokenId>> together(8);
  for (int step = 0; step < 40; ++step) {
    for (int i = 0; i < 8; ++i) together[i].push_back(driver.last_token(i));
    for (int i = 7; i >= 0; --i) driver.Decode(i);
    driver.Step();
  }
  for (int i = 0; i < 8; ++i) EXPECT_EQ(together[i], alone[i]) << i;
}

// RoPE is relative: shifting all positions leaves the logits unchanged, up to rounding.
TEST_P(EngineTest, ShiftingAllPositionsChangesNothing) {
  if (config().learned_positions) GTEST_SKIP() << "learned positions are not relative";
  const auto engine = MakeEngine(MakeRandomModel(config(), 4), Options(device()));
  const std::vector<TokenId> tokens = RandomTokens(40, config().vocab_size, 6);
  std::vector<std::vector<float>> logits;
  for (const int shift : {0, 1, 100}) {
    EngineDriver driver(engine.get(), 1);
    const int slot = driver.Add({}, Plan("h2o", 64, 0), 40);
    for (int i = 0; i < 40; ++i) {
      driver.DecodeToken(slot, tokens[i], i + shift);
      driver.Step();
    }
    logits.push_back(driver.Logits(slot));
  }
  for (size_t i = 0; i < logits[0].size(); ++i) {
    EXPECT_NEAR(logits[1][i], logits[0][i], 2e-4);
    EXPECT_NEAR(logits[2][i], logits[0][i], 2e-4);
  }
}

TEST(EngineOptionsTest, WeightsThatTheDeviceCannotHoldAreRefusedBeforeTheyAreRead) {
  HfConfig config = *ParseHfConfig(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":65536,"intermediate_size":1048576,
      "num_hidden_layers":1024,"num_attention_heads":512,"vocab_size":1000})");
  EngineOptions options = Options("cpu");
  options.num_blocks_override = 1024 * 512;
  options.max_model_len = 64;
  const absl::Status status =
      Engine::Create(MakeDummySource(config, "", 1), options, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("the weights need"), std::string::npos) << status;
}

EngineOptions WithoutRequestedPool(const std::string& device) {
  EngineOptions options = Options(device);
  options.num_blocks_override.reset();
  return options;
}

// Recorded steps and eager steps give the same tokens and logits, bit for bit, while the batch and
// its policies change and prompts are prefilled in between.
TEST(EngineRecordTest, RecordedStepsAreTheSameSteps_cudaGQA) {
  HYDRANT_SKIP_WITHOUT_DEVICE("cuda");
  const auto model = MakeRandomModel(SmallConfig(4, 2), 3);
  std::vector<float> logits[2];
  std::vector<TokenId> tokens[2];
  for (const bool eager : {false, true}) {
    EngineOptions options = Options("cuda");
    options.batch_invariant = false;
    options.enforce_eager = eager;
    const auto engine = MakeEngine(model, options);
    EngineDriver driver(engine.get(), 5);
    std::vector<int> slots;
    for (int round = 0; round < 5; ++round) {
      const std::vector<TokenId> prompt = RandomTokens(40 + 60 * round, 50, round);
      const CachePlan plan = Plan(round % 2 == 0 ? "h2o" : "full", 24, 40 + 60 * round);
      slots.push_back(driver.Add(prompt, plan, 40));
      driver.PrefillAll(slots.back());
      driver.Step();
      for (int step = 0; step < 7; ++step) {
        for (const int slot : slots) driver.Decode(slot);
        driver.Step();
        for (const int slot : slots) {
          tokens[eager].push_back(driver.last_token(slot));
          const std::vector<float> row = driver.Logits(slot);
          logits[eager].insert(logits[eager].end(), row.begin(), row.end());
        }
      }
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(logits[0], logits[1]);
}

// Logits with penalties equal the formulas applied to the logits of an engine without penalties and
// with the same tokens. The counts of a second sequence in the same slot start at zero.
TEST_P(EngineTest, PenaltiesApplyToPromptAndOutput) {
  const auto model = MakeRandomModel(config(), 21);
  const auto penalized = MakeEngine(model, Options(device()));
  const auto plain = MakeEngine(model, Options(device()));
  SamplingRow sampling = EngineDriver::Greedy();
  sampling.penalties = {.repetition = 1.4f, .presence = 0.3f, .frequency = 0.2f};
  for (const uint64_t seed : {1, 2}) {
    EngineDriver a(penalized.get(), seed), b(plain.get(), seed);
    const std::vector<TokenId> prompt = RandomTokens(20, config().vocab_size, seed);
    const CachePlan plan = Plan("h2o", 16, 20);
    const int slot = a.Add(prompt, plan, 30, sampling);
    ASSERT_EQ(b.Add(prompt, plan, 30), slot);
    // The first prompt is prefilled whole, the second layer by layer.
    const int last_layer = seed == 1 ? 0 : config().num_layers - 1;
    for (int layer = 0; layer < last_layer; ++layer) {
      a.PrefillPart(slot, layer, layer + 1, 0, 20);
      a.Step();
    }
    a.PrefillPart(slot, last_layer, config().num_layers, 0, 20);
    b.PrefillAll(slot);
    std::map<TokenId, int> output;
    for (int step = 0; step < 30; ++step) {
      a.Step();
      b.Step();
      const std::vector<float> got = a.Logits(slot), from = b.Logits(slot);
      for (TokenId token = 0; token < from.size(); ++token) {
        const bool in_output = output.contains(token);
        const bool in_prompt = std::find(prompt.begin(), prompt.end(), token) != prompt.end();
        double expected = from[token];
        if (in_output || in_prompt) expected = expected > 0 ? expected / 1.4 : expected * 1.4;
        if (in_output) expected -= 0.3 + 0.2 * output[token];
        ASSERT_NEAR(got[token], expected, 1e-5) << "step " << step << " token " << token;
      }
      ++output[a.last_token(slot)];
      a.Decode(slot);
      b.DecodeToken(slot, a.last_token(slot), 20 + step);
    }
  }
}

// Logits of all ids stay as they are; only sampling is restricted.
TEST_P(EngineTest, IdsPastTheSampledVocabularyAreNeverDrawn) {
  EngineOptions options = Options(device());
  options.sampled_vocab = 10;
  const auto model = MakeRandomModel(config(), 23);
  const auto narrow = MakeEngine(model, options), whole = MakeEngine(model, Options(device()));
  EngineDriver a(narrow.get(), 1), b(whole.get(), 1);
  for (const float temperature : {0.0f, 5.0f}) {
    const std::vector<TokenId> prompt = RandomTokens(12, config().vocab_size, 5);
    const CachePlan plan = Plan("full", 0, 12);
    const int slot = a.Add(prompt, plan, 20, SamplingRow{.temperature = temperature});
    ASSERT_EQ(b.Add(prompt, plan, 20), slot);
    a.PrefillAll(slot);
    b.PrefillAll(slot);
    for (int step = 0; step < 20; ++step) {
      a.Step();
      b.Step();
      const std::vector<float> logits = a.Logits(slot);
      EXPECT_EQ(logits, b.Logits(slot));
      ASSERT_LT(a.last_token(slot), 10u);
      if (temperature == 0.0f) {
        EXPECT_EQ(a.last_token(slot),
                  std::max_element(logits.begin(), logits.begin() + 10) - logits.begin());
      }
      a.Decode(slot);
      b.DecodeToken(slot, a.last_token(slot), 12 + step);
    }
  }
}

TEST(EnginePoolTest, HoldsAtMostAllFullSequences) {
  const auto model = MakeRandomModel(SmallConfig(4, 2), 1);
  const auto engine = MakeEngine(model, WithoutRequestedPool("cpu"));
  const EngineLimits& limits = engine->limits();
  const int blocks = limits.max_model_len / limits.block_size * limits.num_layers *
                     limits.num_kv_heads * limits.max_num_seqs;
  // A page's keys hold head_dim lines of state, its values as many; a page needs at most three.
  const int states_a_slab = 2 * (model->config().head_dim / 3);
  EXPECT_EQ(limits.num_blocks, static_cast<int>(1.1 * blocks * (1.0 + 1.0 / states_a_slab)));
}

// Costs of additional pages and arena tokens, from their own shapes.
TEST(EngineMemoryTest, CountsPoolAndWorkspaceApart) {
  const auto model = MakeRandomModel(SmallConfig(4, 4), 7);
  const ModelConfig& config = model->config();
  const auto memory = [&](int pages, int arena_tokens) {
    EngineOptions options = Options("cpu");
    options.num_blocks_override = pages;
    options.prefill_arena_tokens = arena_tokens;
    return MakeEngine(model, options)->memory();
  };
  const EngineMemory small = memory(4096, 4096), more_pages = memory(8192, 4096),
                     more_prompt = memory(4096, 8192);
  const int64_t entry = int64_t{2} * config.head_dim * sizeof(float);
  EXPECT_GE(more_pages.kv_pool - small.kv_pool, int64_t{4096} * 16 * entry);
  // With the position of each entry, 4 bytes.
  EXPECT_LE(more_pages.kv_pool - small.kv_pool, int64_t{4096} * 16 * (entry + 4));
  // Block tables alone: eight entries per page, two ids each.
  EXPECT_EQ(more_pages.workspace - small.workspace, int64_t{4096} * 8 * 8);
  EXPECT_EQ(more_prompt.kv_pool, small.kv_pool);
  EXPECT_GE(more_prompt.workspace - small.workspace,
            int64_t{4096} * config.hidden_size * static_cast<int64_t>(sizeof(float)));
  EXPECT_EQ(more_prompt.weights, small.weights);

  EngineOptions options = Options("cpu");
  options.prefix_cache_memory_bytes = 3 << 20;
  options.context_memory_bytes = 5 << 20;
  const EngineMemory of_host = MakeEngine(model, options)->memory();
  EXPECT_NEAR(static_cast<double>(of_host.prefix_cache), 3 << 20, 1 << 17);
  EXPECT_NEAR(static_cast<double>(of_host.offloaded_caches), 5 << 20, 1 << 17);
}

TEST(EnginePoolTest, AHostsPoolKeepsItsLimit) {
  const auto model = MakeRandomModel(SmallConfig(4, 2), 1);
  EngineOptions options = WithoutRequestedPool("cpu");
  options.kv_cache_memory_limit = 100'000;
  const auto engine = MakeEngine(model, options);
  EXPECT_EQ(engine->limits().num_blocks, 100'000 / engine->kv_layout().PageBytes());
}

// The pool is allocated last and fills device memory up to gpu_memory_utilization.
TEST(EnginePoolTest, AGpusPoolTakesWhatTheUtilizationLeaves_cudaGQA) {
  HYDRANT_SKIP_WITHOUT_DEVICE("cuda");
  constexpr double kSlack = 64e6;  // devices allocate in units of 2 MiB
  const auto backend = *CreateBackend("cuda", {});
  const DeviceMemory before = *backend->Memory();
  EngineOptions options = WithoutRequestedPool("cuda");
  options.max_num_seqs = 4096;  // could use 1.2 GB
  const auto total = static_cast<double>(before.total_bytes);
  const double used = total - static_cast<double>(before.free_bytes) + 600e6;
  options.gpu_memory_utilization = used / total;
  const auto model = MakeRandomModel(SmallConfig(4, 2), 1);
  const auto engine = MakeEngine(model, options);
  const DeviceMemory after = *backend->Memory();
  EXPECT_NEAR(total - static_cast<double>(after.free_bytes), used, kSlack);
}

TEST(EnginePoolTest, AGpuWithoutRoomSaysSo_cudaGQA) {
  HYDRANT_SKIP_WITHOUT_DEVICE("cuda");
  EngineOptions options = WithoutRequestedPool("cuda");
  options.gpu_memory_utilization = 1e-6;
  const auto model = MakeRandomModel(SmallConfig(4, 2), 1);
  const absl::Status status = Engine::Create(model, options, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("gpu_memory_utilization: 1e-06"), std::string::npos) << status;
}

// bf16 weights; on a GPU also bf16 rows between operations. All backends round the rows of matrix
// products alike, so results differ only if sums fall on different sides of a rounding boundary.
TEST_P(EngineTest, BFloat16WeightsMatchTheReference) {
  constexpr int kPrompt = 37, kSteps = 4;
  const auto model = MakeRandomModel(config(), 21);
  EngineOptions options = Options("reference");
  options.dtype = WeightDType::kBFloat16;
  options.kv_cache_dtype = DType::kF32;
  const auto reference = MakeEngine(model, options);
  options.device = device();
  const auto engine = MakeEngine(model, options);
  const std::vector<TokenId> prompt = RandomTokens(kPrompt, config().vocab_size, 4);
  EngineDriver expected(reference.get(), 1), actual(engine.get(), 2);
  const int slot = expected.Add(prompt, Plan("full", 0, kPrompt), kSteps);
  ASSERT_EQ(actual.Add(prompt, Plan("full", 0, kPrompt), kSteps), slot);
  expected.PrefillAll(slot);
  actual.PrefillAll(slot);
  for (int step = 0; step <= kSteps; ++step) {
    expected.Step();
    actual.Step();
    const std::vector<float> logits = expected.Logits(slot);
    double largest = 0;
    for (const float logit : logits) largest = std::max<double>(largest, std::abs(logit));
    // A different rounding changes one number among many by 2^-8: about 0.4 % of the largest logit,
    // with AVX2 up to 1.2 %.
    ExpectLogitsNear(actual.Logits(slot), {logits.begin(), logits.end()}, 0.02 * largest);
    const TokenId token = expected.last_token(slot);
    expected.DecodeToken(slot, token, kPrompt + step);
    actual.DecodeToken(slot, token, kPrompt + step);
  }
}

// With a row that requests logprobs, sampling runs outside the recorded step: the bits must be the
// same. Halfway a prompt joins the batch, and its row is sampled with the others.
TEST(RecordedDrawsTest, EqualSeparateDraws) {
  constexpr int kPrompt = 20, kSteps = 8;
  ModelConfig config = SmallConfig(4, 2);
  config.vocab_size = 192;
  const auto model = MakeRandomModel(config, 31);
  const std::vector<SamplingRow> rows = {
      {.temperature = 0.0f},
      {.temperature = 0.9f, .top_p = 0.9f, .seed = 5, .position = kPrompt},
      {.temperature = 1.1f, .top_k = 30, .seed = 6, .position = kPrompt}};
  for (const std::string device : {"cpu", "cuda"}) {
    if (!NoDeviceReason(device).empty()) continue;
    for (const size_t sampled : {size_t{1}, rows.size()}) {
      SCOPED_TRACE(testing::Message() << device << ", " << sampled << " rows");
      EngineOptions options = Options(device);
      options.dtype = WeightDType::kBFloat16;
      const auto first = MakeEngine(model, options), second = MakeEngine(model, options);
      EngineDriver recorded(first.get(), 1), apart(second.get(), 1);
      int slots = 0;
      const auto add = [&](const SamplingRow& row) {
        const std::vector<TokenId> prompt = RandomTokens(kPrompt, config.vocab_size, slots);
        SampledRow scored = row;
        scored.logprobs = slots == 0;
        recorded.Add(prompt, Plan("full", 0, kPrompt), kSteps + 1, row);
        recorded.PrefillAll(slots);
        apart.Add(prompt, Plan("full", 0, kPrompt), kSteps + 1, scored);
        apart.PrefillAll(slots++);
      };
      for (size_t i = 0; i < sampled; ++i) add(rows[i]);
      for (int step = 0; step < kSteps; ++step) {
        recorded.Step();
        apart.Step();
        for (int slot = 0; slot < slots; ++slot) {
          ASSERT_EQ(recorded.Logits(slot), apart.Logits(slot)) << "step " << step;
          ASSERT_EQ(recorded.last_token(slot), apart.last_token(slot)) << "step " << step;
        }
        for (int slot = 0; slot < slots; ++slot) {
          recorded.Decode(slot);
          apart.Decode(slot);
        }
        if (step == kSteps / 2) add({.temperature = 0.0f});
      }
    }
  }
}

TEST(EngineOptionsTest, TheDeviceChoosesDefaults) {
  const auto model = MakeRandomModel(SmallConfig(4, 2), 1);
  for (const std::string device : {"reference", "cpu", "cuda"}) {
    if (!NoDeviceReason(device).empty()) continue;
    EngineOptions options = Options(device);
    options.dtype.reset();
    const auto engine = MakeEngine(model, options);
    const bool is_gpu = device == "cuda";
    const std::string expected = is_gpu ? "weights bfloat16 (batch-invariant), KV cache bf16"
                                        : "weights stored (batch-invariant), KV cache f16";
    EXPECT_NE(engine->Description().find(expected), std::string::npos) << engine->Description();
    EXPECT_EQ(engine->limits().max_steps_in_flight, is_gpu ? 2 : 1);
  }
}

// Load tests need no trained weights, and no row order in a fused projection.
TEST(EngineDummyTest, EveryFamilyRunsOnDrawnWeights) {
  for (const char* folder : {"tiny_mha", "tiny_opt", "tiny_neox"}) {
    auto source =
        OpenModel("tests/data/engine/" + std::string(folder) + "/config.json", LoadFormat::kDummy);
    ASSERT_TRUE(source.ok()) << source.status();
    EngineOptions options = Options("cpu");
    options.max_model_len = 64;
    const auto engine = MakeEngine(std::shared_ptr<const ModelSource>(*std::move(source)), options);
    EngineDriver driver(engine.get(), 1);
    driver.Generate(driver.Add(RandomTokens(20, 300, 1), Plan("h2o", 16, 20), 8), 8);
    for (const float logit : driver.Logits(0)) ASSERT_TRUE(std::isfinite(logit)) << folder;
  }
}

TEST(EngineOptionsTest, RefusalsNameTheField) {
  const auto model = MakeRandomModel(SmallConfig(4, 2), 1);
  const auto error_of = [&](auto change) {
    EngineOptions options = Options("cpu");
    change(options);
    return std::string(Engine::Create(model, options, nullptr).status().message());
  };
  EXPECT_NE(error_of([](EngineOptions& o) { o.num_blocks_override = 3; }).find("at least 4"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.max_model_len = 513; }).find("max_model_len: 513"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.max_num_seqs = 0; }).find("max_num_seqs: 0"),
            std::string::npos);
  for (const int held : {-1, 1'000'000}) {
    const std::string field = "max_held_tokens: " + std::to_string(held) + " is outside [0, ";
    EXPECT_NE(error_of([&](EngineOptions& o) { o.max_held_tokens = held; }).find(field),
              std::string::npos);
  }
  EXPECT_NE(error_of([](EngineOptions& o) { o.block_size = 0; }).find("block_size: 0"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) {
              o.gpu_memory_utilization = 1.5;
            }).find("gpu_memory_utilization: 1.5"),
            std::string::npos);
  EXPECT_EQ(error_of([](EngineOptions& o) { o.prefix_cache_memory_bytes = -1; }),
            "prefix_cache_memory_bytes: -1 is negative");
  EXPECT_EQ(
      error_of([](EngineOptions& o) {
        o.host_memory_bytes = 1 << 30;
        o.context_memory_bytes = int64_t{2} << 30;
      }),
      "context_memory_bytes: 2.0 GiB is more than the 1.0 GiB of the host's memory that are free");
  EXPECT_NE(error_of([](EngineOptions& o) { o.device = "tpu"; }).find("tpu"), std::string::npos);
  EXPECT_NE(
      error_of([](EngineOptions& o) { o.kv_cache_dtype = DType::kQ8_0; }).find("kv_cache_dtype"),
      std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) {
              o.kv_cache_dtype = DType::kF8_E4M3;
            }).find("multiple of 16 dimensions, e4m3 (fp8)"),
            std::string::npos);
}

}  // namespace
}  // namespace hydrant
