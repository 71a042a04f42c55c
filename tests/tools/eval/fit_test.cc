// Fitting score predictors: the regression against its own conditions, the pages and what is read of
// them, and a whole fit of a tiny model.
#include "tools/eval/fit/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/cache/prompt_scorer.h"
#include "engine/model/model_source.h"
#include "engine/run/engine_probe.h"
#include "tools/eval/engine_driver.h"
#include "tools/eval/fit/pages.h"
#include "tools/eval/fit/ridge.h"

namespace hydrant::eval {
namespace {

using ::testing::HasSubstr;

// At the minimum the gradient of the loss is 0, whatever the blocks that the samples came in.
TEST(Ridge, TheGradientVanishes) {
  constexpr int kWidth = 7, kTargets = 3, kRows = 90;
  constexpr double kPenalty = 0.2;
  std::mt19937_64 rng(3);
  std::normal_distribution<float> normal(0.5f, 2.0f);
  std::vector<float> x(kRows * kWidth);
  for (float& number : x) number = normal(rng);
  std::vector<std::vector<float>> y(kTargets, std::vector<float>(kRows));
  for (auto& target : y) {
    for (float& number : target) number = normal(rng) - 20;
  }
  Ridge ridge(kWidth, kTargets);
  for (const auto& [begin, end] : {std::pair(0, 40), std::pair(40, 41), std::pair(41, kRows)}) {
    std::vector<std::vector<float>> part;
    part.reserve(y.size());
    for (const auto& target : y) part.emplace_back(target.begin() + begin, target.begin() + end);
    ridge.Add(x.data() + begin * kWidth, end - begin, part);
  }
  std::vector<float> weights(kTargets * kWidth), biases(kTargets);
  ridge.Solve(kPenalty, weights.data(), biases.data());

  double variance = 0;
  for (int i = 0; i < kWidth; ++i) {
    double sum = 0, squares = 0;
    for (int row = 0; row < kRows; ++row) {
      sum += x[row * kWidth + i];
      squares += double{x[row * kWidth + i]} * x[row * kWidth + i];
    }
    variance += (squares / kRows - sum * sum / kRows / kRows) / kWidth;
  }
  for (int target = 0; target < kTargets; ++target) {
    std::vector<double> gradient(kWidth);
    double of_bias = 0;
    for (int row = 0; row < kRows; ++row) {
      double error = biases[target] - y[target][row];
      for (int i = 0; i < kWidth; ++i)
        error += double{weights[target * kWidth + i]} * x[row * kWidth + i];
      of_bias += error / kRows;
      for (int i = 0; i < kWidth; ++i) gradient[i] += error * x[row * kWidth + i] / kRows;
    }
    EXPECT_NEAR(of_bias, 0, 1e-4);
    for (int i = 0; i < kWidth; ++i)
      EXPECT_NEAR(gradient[i] + kPenalty * variance * weights[target * kWidth + i], 0, 1e-3) << i;
  }
}

struct TinyModel {
  TinyModel() {
    source = *OpenModel("models/hydrant-tiny.gguf", LoadFormat::kAuto);
    tokenizer = *TokenizerFromGguf(*source->gguf());
    EngineOptions options;
    options.num_threads = 2;
    options.dtype = WeightDType::kFloat32;
    options.kv_cache_dtype = DType::kF32;
    options.batch_invariant = true;
    options.max_num_seqs = kPageCaches;
    options.max_shared_statistics = kMaxColumnStatistics * kPageCaches;
    engine = *Engine::Create(source, options, nullptr);
    text = std::string(kText);
    while (text.size() < 60000)
      text += " " + std::to_string(text.size()) + " " + std::string(kText);
  }
  std::vector<TokenId> Encode(std::string_view words) const {
    return *tokenizer->Encode(words, {.add_special_tokens = false, .parse_special_tokens = false});
  }

  static constexpr std::string_view kText =
      "The lantern swung over the water. Nobody in the village knew that Mara had kept the letter, "
      "and the river carried the boats past the mill as if nothing had been said. ";
  std::shared_ptr<const ModelSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  std::string text;
};

TEST(CutPages, PagesAreDistinctAndTextsTakeTurns) {
  const TinyModel model;
  const std::string other = "Numbers: " + model.text.substr(200);
  FitOptions options{.pages = 9, .page_tokens = 64, .progress = {}, .interrupted = {}};
  const auto pages = CutPages({model.text, other}, options, *model.tokenizer);
  ASSERT_TRUE(pages.ok()) << pages.status();
  EXPECT_EQ(std::set(pages->begin(), pages->end()).size(), 9u);
  for (const auto& page : *pages) EXPECT_EQ(page.size(), 64u);
  const std::vector<TokenId> whole = model.Encode(model.text);
  EXPECT_TRUE(std::equal((*pages)[0].begin(), (*pages)[0].end(), whole.begin()));
  const std::vector<TokenId> second = model.Encode(other);
  EXPECT_TRUE(std::equal((*pages)[1].begin(), (*pages)[1].end(), second.begin()));

  const auto refused = CutPages({model.text, "short"}, options, *model.tokenizer);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--text: text 2 has"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("4 pages of 64"));
}

// The attention on a page is that by which `reconstruct` and `echo` score.
TEST(ReadPage, GivesTheStatisticsOfThePolicies) {
  const TinyModel model;
  const std::vector<TokenId> page = [&] {
    std::vector<TokenId> ids = model.Encode(model.text);
    ids.resize(100);
    return ids;
  }();
  const std::vector<TokenId> instruction = model.Encode(kProbeInstruction);
  const std::vector<PageLayer> layers = ReadPage(model.engine.get(), page, instruction);
  ASSERT_EQ(std::ssize(layers), model.engine->config().num_layers);
  for (const bool echo : {false, true}) {
    CacheSpec spec;
    spec.policy = echo ? "echo" : "reconstruct";
    spec.max_cache_tokens = 99;
    spec.params = {{"budget_scope", "head"}, {"sum_weight", "1"}, {"max_weight", "3"}};
    const EngineLimits& limits = model.engine->limits();
    const CachePlan plan = *PlanCache(spec, limits.ShapeOf(100));
    EngineDriver driver(model.engine.get(), 5);
    std::vector<TokenId> reading = page;
    if (!echo) {
      reading.insert(reading.end(), instruction.begin(), instruction.end());
      reading.insert(reading.end(), page.begin(), page.end());
    }
    const int slot = driver.Add(reading, plan, 0);
    driver.PrefillAll(slot);
    driver.Step();
    for (int layer = 0; layer < limits.num_layers; ++layer) {
      for (int head = 0; head < limits.num_kv_heads; ++head) {
        const HeadState state = EngineProbe(*model.engine).ReadHead(slot, layer, head);
        const HeadAttention& of_page =
            echo ? layers[layer].echo[head] : layers[layer].repetition[head];
        int known = 0;
        for (size_t i = 0; i < state.positions.size(); ++i) {
          const int position = state.positions[i];
          if (of_page.sum[position] < 0 || of_page.max[position] < 0) continue;
          ++known;
          ASSERT_NEAR(state.scores[i], of_page.sum[position] + 3 * of_page.max[position],
                      1e-4 * (1 + state.scores[i]))
              << "layer " << layer << " head " << head << " position " << position;
        }
        EXPECT_GE(known, 97);
      }
    }
  }
}

// A predictor fitted to a few pages ranks entries of others better than chance, and the file that a
// command writes is the one that the engine reads.
TEST(FitPredictor, RanksPagesThatItHasNotSeen) {
  const TinyModel model;
  int reported = 0;
  FitOptions options{.pages = 16,
                     .page_tokens = 96,
                     .progress = [&](int done) { EXPECT_EQ(done, ++reported); },
                     .interrupted = {}};
  const auto pages = CutPages({model.text}, options, *model.tokenizer);
  ASSERT_TRUE(pages.ok()) << pages.status();
  const std::vector<TokenId> instruction = model.Encode(kProbeInstruction);
  const auto fit = FitPredictor(*pages, instruction, options, model.engine.get());
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(reported, 16);
  ASSERT_EQ(fit->check.learned.size(), fit->check.shares.size());
  for (size_t i = 0; i < fit->check.shares.size(); ++i) {
    EXPECT_GT(fit->check.learned[i], 1.5 * fit->check.shares[i]) << fit->check.shares[i];
    EXPECT_LE(fit->check.learned[i], 1.0);
    EXPECT_GT(fit->check.echo[i], fit->check.shares[i]);
  }
  for (const float weight : fit->predictor.weights) ASSERT_TRUE(std::isfinite(weight));

  options.interrupted = [] { return true; };
  EXPECT_EQ(FitPredictor(*pages, instruction, options, model.engine.get()).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace hydrant::eval
