// Masks, biases and penalties on the logits of single rows, and logprobs of sampled tokens and
// prompts, against a double-precision model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/device.h"
#include "tests/engine/run/double_model.h"
#include "tests/engine/run/random_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;

constexpr int kMaxSeqs = 40;  // more rows than the engine scores at once

std::vector<TokenId> RandomTokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng() % vocab);
  return tokens;
}

CachePlan Streaming(int prompt_tokens, int sinks, int entries) {
  CacheSpec spec;
  spec.policy = "streaming";
  spec.max_cache_tokens = entries;
  spec.sink_tokens = sinks;
  return *PlanCache(spec, {prompt_tokens});
}

// All heads hold the first `sinks` tokens and the newest ones, `entries` together.
KeptEntries SinksAndNewest(const ModelConfig& config, int tokens, int sinks, int entries) {
  KeptEntries kept(config.num_layers, config.num_kv_heads, tokens);
  std::vector<int32_t> positions;
  for (int token = 0; token < tokens; ++token) {
    if (token < sinks || token >= tokens - (entries - sinks)) positions.push_back(token);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int head = 0; head < config.num_kv_heads; ++head) kept.Add(layer, head, positions);
  }
  return kept;
}

CachePlan Full(int prompt_tokens) { return *PlanCache({}, {prompt_tokens}); }

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - highest);
  std::vector<double> logprobs;
  logprobs.reserve(logits.size());
  for (const double logit : logits) logprobs.push_back(logit - highest - std::log(sum));
  return logprobs;
}

void ExpectLogprobs(const TokenLogprobs& got, TokenId token, const std::vector<double>& logits) {
  constexpr double kTolerance = 5e-4;
  const std::vector<double> expected = LogSoftmax(logits);
  EXPECT_EQ(got.token, token);
  EXPECT_NEAR(got.logprob, expected[token], kTolerance);
  // Logits within the engine's rounding error may have either order.
  const auto above = [&](double margin) {
    return std::ranges::count_if(expected,
                                 [&](double other) { return other > expected[token] + margin; });
  };
  EXPECT_GT(got.rank, above(kTolerance));
  EXPECT_LE(got.rank, above(-kTolerance));
  std::vector<double> sorted = expected;
  std::ranges::sort(sorted, std::greater());
  for (int i = 0; i < kTopLogprobs; ++i) {
    EXPECT_NEAR(got.top_logprobs[i], sorted[i], kTolerance) << i;
    EXPECT_NEAR(expected.at(got.top_tokens[i]), sorted[i], kTolerance) << i;
  }
}

class SampledRowsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(GetParam()); }
  std::unique_ptr<Engine> MakeEngine() const {
    EngineOptions options;
    options.device = GetParam();
    options.num_threads = 2;
    options.batch_invariant = true;
    options.dtype = WeightDType::kFloat32;
    options.num_blocks_override = 4096;
    options.max_num_seqs = kMaxSeqs;
    options.prefill_arena_tokens = 4096;
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(model_, options, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  const ModelConfig config_ = SmallConfig(6, 2);
  const std::shared_ptr<const ModelSource> model_ = MakeRandomModel(config_, 31);
  const DoubleModel truth_{*model_};
};

INSTANTIATE_TEST_SUITE_P(All, SampledRowsTest, testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SampledRowsTest, PromptsAreScored) {
  const auto engine = MakeEngine();
  for (const int n : {1, 2, 31, 32, 33, 34, 70}) {
    SCOPED_TRACE(testing::Message() << n << " tokens");
    const std::vector<TokenId> prompt = RandomTokens(n, config_.vocab_size, n);
    std::vector<TokenLogprobs> got;
    EngineDriver driver(engine.get(), n);
    const int slot = driver.Add(prompt, Full(n), 1, EngineDriver::Greedy(), true);
    // All layers but the last whole, the last one in slices.
    const auto run = [&](int layer_begin, int layer_end, int begin, int end) {
      driver.PrefillPart(slot, layer_begin, layer_end, begin, end);
      driver.Step();
      got.insert(got.end(), driver.prompt_logprobs().begin(), driver.prompt_logprobs().end());
    };
    const int last = config_.num_layers - 1;
    run(0, last, 0, n);
    EXPECT_TRUE(got.empty());
    for (int begin = 0; begin < n; begin += kQueryTile)
      run(last, last + 1, begin, std::min(begin + kQueryTile, n));
    ASSERT_EQ(std::ssize(got), n - 1);
    for (int i = 0; i + 1 < n; ++i) {
      SCOPED_TRACE(testing::Message() << "behind token " << i);
      DoubleModel::Sequence expected(&truth_, Full(i + 1));
      ExpectLogprobs(got[i], prompt[i + 1],
                     expected.Prefill({prompt.begin(), prompt.begin() + i + 1}));
    }
    EXPECT_TRUE(driver.logprobs().empty());
  }
}

// Beside each other: a row that reports its entries after its prompt and after each token, one that
// does not, and one whose prompt ends a step later.
TEST_P(SampledRowsTest, EntriesOfRowsAreReported) {
  constexpr int kPrompt = 70, kSinks = 3, kEntries = 20;
  const auto engine = MakeEngine();
  EngineDriver driver(engine.get(), 1);
  SampledRow reports = EngineDriver::Greedy();
  reports.kept_entries = true;
  const std::vector<TokenId> prompt = RandomTokens(kPrompt, config_.vocab_size, 1);
  const CachePlan plan = Streaming(kPrompt, kSinks, kEntries);
  const int first = driver.Add(prompt, plan, 4, reports);
  const int silent = driver.Add(prompt, plan, 4);
  const int later = driver.Add(prompt, Full(kPrompt), 4, reports);
  const auto of_first = [&](int tokens) {
    return SinksAndNewest(config_, tokens, kSinks, kEntries);
  };
  driver.PrefillAll(first);
  driver.PrefillAll(silent);
  driver.Step();
  EXPECT_EQ(driver.kept_entries(), std::vector({of_first(kPrompt)}));
  // A decoded token's entry is in the cache when the next one is sampled.
  for (const int slot : {first, silent}) driver.Decode(slot);
  driver.PrefillAll(later);
  driver.Step();
  EXPECT_EQ(
      driver.kept_entries(),
      std::vector({of_first(kPrompt + 1), SinksAndNewest(config_, kPrompt, kSinks, kPrompt)}));
  driver.Decode(silent);
  driver.Step();
  EXPECT_TRUE(driver.kept_entries().empty());
}

// Many rows in one step, each with its own mix of logprobs, mask, biases and penalty.
TEST_P(SampledRowsTest, RowsAreEditedAndScoredEachByItself) {
  const auto engine = MakeEngine();
  const int vocab = config_.vocab_size;
  constexpr int kPrompt = 9, kSteps = 3;
  std::mt19937 random(5);
  std::vector<uint32_t> mask(MaskWords(vocab));
  for (uint32_t& word : mask) word = random();
  const auto is_allowed = [&](int token) { return (mask[token / 32] >> token % 32 & 1) != 0; };
  std::vector<TokenBias> biases;
  for (int token = 0; token < vocab; token += 7)
    biases.push_back({static_cast<uint32_t>(token), 0.125f * static_cast<float>(token % 30)});

  EngineDriver driver(engine.get(), 3);
  std::vector<DoubleModel::Sequence> truth;
  std::vector<std::vector<double>> logits(kMaxSeqs);
  for (int slot = 0; slot < kMaxSeqs; ++slot) {
    SampledRow row = EngineDriver::Greedy();
    row.logprobs = slot % 8 != 7;
    if (slot % 3 != 0) row.mask = mask;
    if (slot % 2 != 0) row.biases = biases;
    if (slot % 5 == 0) row.penalties.repetition = 1.5f;
    const std::vector<TokenId> prompt = RandomTokens(kPrompt, vocab, slot);
    ASSERT_EQ(driver.Add(prompt, Full(kPrompt), kSteps, row), slot);
    driver.PrefillAll(slot);
    logits[slot] = truth.emplace_back(&truth_, Full(kPrompt)).Prefill(prompt);
  }
  for (int step = 0; step < kSteps; ++step) {
    driver.Step();
    size_t scored = 0;
    for (int slot = 0; slot < kMaxSeqs; ++slot) {
      SCOPED_TRACE(testing::Message() << "step " << step << " row " << slot);
      const TokenId token = driver.last_token(slot);
      if (slot % 8 != 7) ExpectLogprobs(driver.logprobs().at(scored++), token, logits[slot]);
      if (slot % 5 != 0) {
        std::vector<double> edited = logits[slot];
        if (slot % 2 != 0) {
          for (const TokenBias& bias : biases) edited[bias.token] += bias.bias;
        }
        for (int id = 0; id < vocab; ++id) {
          if (slot % 3 != 0 && !is_allowed(id)) edited[id] = -INFINITY;
        }
        EXPECT_NEAR(edited[token], *std::ranges::max_element(edited), 5e-4);
      } else if (slot % 3 != 0) {
        EXPECT_TRUE(is_allowed(static_cast<int>(token)));
      }
    }
    EXPECT_EQ(scored, driver.logprobs().size());
    if (step + 1 == kSteps) break;
    for (int slot = 0; slot < kMaxSeqs; ++slot) {
      logits[slot] = truth[slot].Step(driver.last_token(slot), kPrompt + step);
      driver.Decode(slot);
    }
  }
}

}  // namespace
}  // namespace hydrant
