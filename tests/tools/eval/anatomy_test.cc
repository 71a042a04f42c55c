// Compares the plain forward pass with the engine and the double-precision model, masks with the
// caches that they simulate, and every number of the pictures with its definition.
#include "tools/eval/anatomy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "engine/run/engine_probe.h"
#include "kernels/dequantize.h"
#include "tests/engine/run/double_model.h"
#include "tests/engine/run/random_model.h"
#include "tools/eval/attention_loss.h"
#include "tools/eval/clusters.h"
#include "tools/eval/engine_driver.h"
#include "tools/eval/entry_classes.h"
#include "tools/eval/laboratory.h"
#include "tools/eval/length_study.h"
#include "tools/eval/masks.h"
#include "tools/eval/pictures.h"
#include "tools/eval/sketch.h"

namespace hydrant::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTiny[] = "models/hydrant-tiny.gguf";

std::vector<TokenId> SomeTokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng() % vocab);
  return tokens;
}

std::shared_ptr<const ModelSource> OpenTiny(const std::string& path = kTiny) {
  auto source = OpenModel(path, LoadFormat::kAuto);
  EXPECT_TRUE(source.ok()) << source.status();
  return *std::move(source);
}

std::unique_ptr<PlainForward> Forward(const std::shared_ptr<const ModelSource>& source) {
  auto forward = PlainForward::Create(source, 2);
  EXPECT_TRUE(forward.ok()) << forward.status();
  return *std::move(forward);
}

template <typename A, typename B>
void ExpectNear(const A& a, const B& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max<double>(largest, std::abs(b[i]));
    worst = std::max<double>(worst, std::abs(a[i] - b[i]));
    ASSERT_TRUE(std::isfinite(a[i]));
  }
  EXPECT_LE(worst, relative * largest);
}

struct Shape {
  int heads, kv_heads;
  RopePairing pairing;
};

class PlainForwardTest : public testing::TestWithParam<Shape> {
 protected:
  ModelConfig Config() const {
    ModelConfig config = SmallConfig(GetParam().heads, GetParam().kv_heads);
    config.rope_pairing = GetParam().pairing;
    return config;
  }
};

TEST_P(PlainForwardTest, LogitsAreThoseOfTheDoubleModel) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  const auto source = MakeRandomModel(Config(), kSeed);
  const auto forward = Forward(source);
  const std::vector<TokenId> tokens = SomeTokens(45, Config().vocab_size, kSeed);
  const Activations activations = forward->Read(tokens);
  const DoubleModel model(*source);
  const auto plan = PlanCache(
      {}, {static_cast<int64_t>(tokens.size()), Config().num_layers, Config().num_kv_heads});
  ASSERT_TRUE(plan.ok());
  DoubleModel::Sequence sequence(&model, *plan);
  ExpectNear(forward->Logits(activations, 44), sequence.Prefill(tokens), 1e-4);
  // Keys are rotated, values are unchanged projections.
  const int d = Config().head_dim;
  for (int head = 0; head < Config().num_kv_heads; ++head) {
    const DoubleModel::Entry& entry = sequence.head(1, head).entries[17];
    const float* key = activations.Keys(1, head) + 17 * d;
    const float* value = activations.Values(1, head) + 17 * d;
    ExpectNear(std::vector<float>(key, key + d), entry.key, 1e-4);
    ExpectNear(std::vector<float>(value, value + d), entry.value, 1e-4);
  }
}

TEST_P(PlainForwardTest, NegativeLogLikelihoodsAreThoseOfTheLogits) {
  const auto forward = Forward(MakeRandomModel(Config(), 3));
  const std::vector<TokenId> tokens = SomeTokens(20, Config().vocab_size, 3);
  const Activations activations = forward->Read(tokens);
  const std::vector<double> nll = forward->NegativeLogLikelihoods(activations, tokens);
  ASSERT_EQ(nll.size(), 19u);
  const std::vector<float> logits = forward->Logits(activations, 12);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(nll[12], std::log(sum) - logits[tokens[13]], 1e-5);
}

TEST_P(PlainForwardTest, ContinuesFromItsState) {
  const auto forward = Forward(MakeRandomModel(Config(), 4));
  const std::vector<TokenId> tokens = SomeTokens(50, Config().vocab_size, 4);
  const Activations whole = forward->Read(tokens);
  const Activations rest = forward->Read(tokens, nullptr, &whole, 33);
  EXPECT_EQ(rest.Rows(), 17);
  for (const int token : {33, 40, 49})
    ExpectNear(forward->Logits(rest, token), forward->Logits(whole, token), 1e-5);
  const Activations shallow = forward->Read(tokens, nullptr, nullptr, 0, 1);
  EXPECT_EQ(shallow.keys,
            std::vector<float>(whole.keys.begin(), whole.keys.begin() + whole.keys.size() / 2));
}

TEST_P(PlainForwardTest, SeeingEverythingChangesNothing) {
  const auto forward = Forward(MakeRandomModel(Config(), 5));
  const std::vector<TokenId> tokens = SomeTokens(40, Config().vocab_size, 5);
  const Activations plain = forward->Read(tokens);
  const AttentionMask all = [](int, int, int, std::span<const double> weights, std::span<uint8_t>) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    EXPECT_NEAR(sum, std::round(sum), 1e-9) << "weights sum to one in every head";
  };
  ExpectNear(forward->Read(tokens, all).hidden, plain.hidden, 1e-6);
  for (const bool heavy : {false, true}) {
    for (const MaskPattern pattern :
         {MaskPattern::kTopK, MaskPattern::kLocal, MaskPattern::kStrided, MaskPattern::kFixed}) {
      const MaskRule rule = {
          .pattern = pattern, .heavy_hitters = heavy, .budget = 80, .tokens = 40};
      SCOPED_TRACE(NameOf(rule));
      const AttentionMask mask =
          MakeMask(rule, plain.layers, plain.kv_heads, plain.Group(), std::vector<double>());
      ExpectNear(forward->Read(tokens, mask).hidden, plain.hidden, 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PlainForwardTest,
                         testing::Values(Shape{4, 4, RopePairing::kHalfSplit},
                                         Shape{4, 2, RopePairing::kInterleaved},
                                         Shape{4, 1, RopePairing::kHalfSplit}));

TEST(PlainForward, LogitsAreTheEngines) {
  const auto source = OpenTiny();
  const auto forward = Forward(source);
  EngineOptions options;
  options.dtype = WeightDType::kFloat32;
  options.max_model_len = 128;
  options.max_shared_statistics = 6;
  options.num_blocks_override = 2048;
  auto engine = Engine::Create(source, options, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const ModelConfig& config = source->config();
  const std::vector<TokenId> tokens = SomeTokens(90, config.vocab_size, 6);
  const Activations activations = forward->Read(tokens);
  EngineDriver driver(engine->get(), 1);
  const std::vector<TokenId> prompt(tokens.begin(), tokens.begin() + 80);
  const auto full = PlanCache({}, {80, config.num_layers, config.num_kv_heads});
  CacheSpec spec;
  spec.policy = "h2o";
  spec.max_cache_tokens = 23;
  const auto h2o = PlanCache(spec, {80, config.num_layers, config.num_kv_heads});
  ASSERT_TRUE(full.ok() && h2o.ok());
  const int slot = driver.Add(prompt, *full, 10), compressed = driver.AddSharing(slot, *h2o, 10);
  driver.PrefillAll(slot);
  driver.Step();
  for (int position = 80; position < 90; ++position) {
    ExpectNear(forward->Logits(activations, position - 1), driver.Logits(slot), 2e-4);
    driver.DecodeToken(slot, tokens[position], position);
    driver.DecodeToken(compressed, tokens[position], position);
    driver.Step();
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int head = 0; head < config.num_kv_heads; ++head) {
      const auto held = EngineProbe(**engine).ReadPositions(compressed, layer, head);
      EXPECT_EQ(held.size(), 23u);
      EXPECT_EQ(held, EngineProbe(**engine).ReadHead(compressed, layer, head).positions);
    }
  }
}

TEST(PlainForward, AnotherFamilyIsRefused) {
  const auto refused = PlainForward::Create(OpenTiny("tests/data/engine/tiny_opt"), 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("what Llama computes alone"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("opt"));
}

// Masks

TEST(Masks, PatternsShowNoMoreThanTheirBudget) {
  for (const MaskPattern pattern :
       {MaskPattern::kLocal, MaskPattern::kStrided, MaskPattern::kFixed}) {
    for (const int b : {1, 2, 3, 10, 37, 200}) {
      const MaskRule rule = {
          .pattern = pattern, .heavy_hitters = false, .budget = b, .tokens = 200};
      SCOPED_TRACE(NameOf(rule) + " " + std::to_string(b));
      int most = 0;
      for (int i = 0; i < 200; ++i) {
        int shown = 0;
        for (int j = 0; j <= i; ++j) shown += PatternShows(rule, b, i, j) ? 1 : 0;
        EXPECT_LE(shown, b);
        EXPECT_TRUE(PatternShows(rule, b, i, i));
        most = std::max(most, shown);
      }
      EXPECT_GE(most, (b + 1) / 2) << "nor far less";
    }
  }
  const MaskRule strided = {.pattern = MaskPattern::kStrided, .budget = 8, .tokens = 40};
  std::vector<int> shown;
  for (int j = 0; j <= 35; ++j) {
    if (PatternShows(strided, 8, 35, j)) shown.push_back(j);
  }
  EXPECT_THAT(shown, ElementsAre(5, 15, 25, 32, 33, 34, 35));
  const MaskRule fixed = {.pattern = MaskPattern::kFixed, .budget = 8, .tokens = 40};
  shown.clear();
  for (int j = 0; j <= 34; ++j) {
    if (PatternShows(fixed, 8, 34, j)) shown.push_back(j);
  }
  EXPECT_THAT(shown, ElementsAre(9, 19, 29, 32, 33, 34));
}

// Random weights of a group, [group, query + 1], each row summing to 1.
std::vector<double> RandomWeights(int group, int count, std::mt19937_64* rng) {
  std::vector<double> weights;
  std::exponential_distribution<double> draw(1.0);
  for (int g = 0; g < group; ++g) {
    std::vector<double> row(count);
    for (double& weight : row) weight = std::pow(draw(*rng), 3);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (const double weight : row) weights.push_back(weight / sum);
  }
  return weights;
}

// H2O's algorithm 1, literally: a set that evicts one entry for each new one.
TEST(Masks, LocalWithHeavyHittersIsGreedyEviction) {
  constexpr uint64_t kSeed = 21;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 rng(kSeed);
  constexpr int kTokens = 90, kGroup = 3, kBudget = 11, kRecent = 5;
  const MaskRule rule = {
      .pattern = MaskPattern::kLocal, .heavy_hitters = true, .budget = kBudget, .tokens = kTokens};
  const AttentionMask mask = MakeMask(rule, 1, 1, kGroup, {});
  std::set<int> held;
  std::vector<double> score(kTokens, 0.0);
  for (int query = 0; query < kTokens; ++query) {
    if (static_cast<int>(held.size()) == kBudget) {
      int victim = -1;
      for (const int j : held) {
        if (j <= query - kRecent && (victim < 0 || score[j] < score[victim])) victim = j;
      }
      held.erase(victim);
    }
    held.insert(query);
    const std::vector<double> weights = RandomWeights(kGroup, query + 1, &rng);
    std::vector<uint8_t> visible(weights.size(), 1);
    mask(0, 0, query, weights, visible);
    for (int g = 0; g < kGroup; ++g) {
      std::set<int> seen;
      double sum = 0;
      for (int j = 0; j <= query; ++j) {
        if (visible[g * (query + 1) + j] != 0) seen.insert(j);
      }
      ASSERT_EQ(seen, held) << "query " << query << ", head " << g;
      for (const int j : held) sum += weights[g * (query + 1) + j];
      for (const int j : held) score[j] += weights[g * (query + 1) + j] / sum / kGroup;
    }
  }
}

// H2O, theorem 4.4: the set that greedy eviction reaches has f(S) >= (1 - 1/e) max f(S) over all sets
// of as many entries, as long as neither f nor its maximum changes much from token to token. f(S) is
// the attention that all queries so far have paid to S with the full cache, from a plain forward
// pass. The engine evicts, token by token, in every head of a trained model; on random tokens f does
// change in some heads.
TEST(H2O, GreedyEvictionIsWithinItsBoundOfTheBestSetInMostHeads) {
  constexpr int kTokens = 16, kBudget = 6;
  const auto source = OpenTiny();
  const auto forward = Forward(source);
  EngineOptions options;
  options.dtype = WeightDType::kFloat32;
  options.num_blocks_override = 256;
  const auto engine = Engine::Create(source, options, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const ModelConfig& config = (*engine)->config();
  std::vector<double> shares;
  for (const uint64_t seed : {41, 42, 43}) {
    const std::vector<TokenId> tokens = SomeTokens(kTokens, config.vocab_size, seed);
    CacheSpec spec;
    spec.policy = "h2o";
    spec.max_cache_tokens = kBudget;
    spec.protected_window_size = 1;
    EngineDriver driver(engine->get(), seed);
    const int slot = driver.Add({tokens.begin(), tokens.begin() + kBudget},
                                *PlanCache(spec, {kBudget}), kTokens);
    driver.PrefillAll(slot);
    driver.Step();
    for (int i = kBudget; i < kTokens; ++i) {
      driver.DecodeToken(slot, tokens[i], i);
      driver.Step();
    }
    const Activations activations = forward->Read(tokens);
    for (int head = 0; head < config.num_layers * config.num_kv_heads; ++head) {
      const int layer = head / config.num_kv_heads, kv_head = head % config.num_kv_heads;
      const GroupAttention keys(activations.Keys(layer, kv_head), kTokens, config.head_dim);
      std::vector<double> paid(kTokens, 0.0), weights(kTokens);
      for (int g = 0; g < activations.Group(); ++g) {
        for (int query = 0; query < kTokens; ++query) {
          const int of = kv_head * activations.Group() + g;
          keys.Weights(activations.Query(layer, of, query), query + 1, weights.data());
          for (int j = 0; j <= query; ++j) paid[j] += weights[j];
        }
      }
      double best = 0, reached = 0;
      for (uint32_t set = 0; set < 1u << kTokens; ++set) {
        if (std::popcount(set) != kBudget) continue;
        double sum = 0;
        for (int j = 0; j < kTokens; ++j) sum += (set >> j & 1) != 0 ? paid[j] : 0.0;
        best = std::max(best, sum);
      }
      const std::vector<int32_t> held = EngineProbe(**engine).ReadPositions(slot, layer, kv_head);
      ASSERT_EQ(held.size(), static_cast<size_t>(kBudget));
      for (const int32_t j : held) reached += paid[j];
      shares.push_back(reached / best);
    }
  }
  std::ranges::sort(shares);
  const auto within =
      std::ranges::count_if(shares, [](double share) { return share >= 1 - std::exp(-1.0); });
  std::string all;
  for (const double share : shares) all += std::to_string(share).substr(0, 5) + " ";
  RecordProperty("shares", all);
  EXPECT_GE(within, 0.9 * static_cast<double>(shares.size())) << all;
  EXPECT_GT(shares[shares.size() / 2], 0.8) << all;
  EXPECT_LT(shares[0], 1) << "greedy eviction is not always the best: " << all;
}

TEST(Masks, TopKShowsEachHeadItsLargest) {
  std::mt19937_64 rng(22);
  const MaskRule rule = {.pattern = MaskPattern::kTopK, .budget = 7, .tokens = 40};
  const std::vector<double> weights = RandomWeights(2, 40, &rng);
  std::vector<uint8_t> visible(weights.size(), 1);
  MakeMask(rule, 1, 1, 2, {})(0, 0, 39, weights, visible);
  for (int g = 0; g < 2; ++g) {
    std::vector<double> row(weights.begin() + g * 40, weights.begin() + (g + 1) * 40);
    double least = 1, most_hidden = 0;
    int shown = 0;
    for (int j = 0; j < 40; ++j) {
      if (visible[g * 40 + j] != 0) {
        ++shown;
        least = std::min(least, row[j]);
      } else {
        most_hidden = std::max(most_hidden, row[j]);
      }
    }
    EXPECT_EQ(shown, 7);
    EXPECT_GT(least, most_hidden);
  }
}

class TinyLaboratory : public testing::Test {
 protected:
  TinyLaboratory() {
    LaboratoryOptions options;
    options.engine.dtype = WeightDType::kFloat32;
    options.engine.num_threads = 2;
    options.engine.max_model_len = 400;
    options.engine.num_blocks_override = 8192;
    auto laboratory = Laboratory::Create(kTiny, options);
    EXPECT_TRUE(laboratory.ok()) << laboratory.status();
    laboratory_ = *std::move(laboratory);
    forward_ = Forward(OpenTiny());
    tokens_ = SomeTokens(kContext + 40, laboratory_->config().vocab_size, 8);
    trial_.context.assign(tokens_.begin(), tokens_.begin() + kContext);
    trial_.dialogues = {{{.foreseen = {tokens_.begin() + kContext, tokens_.end()}}}};
    trial_.traced = true;
  }

  static Arm Named(const std::string& policy, int budget) {
    Arm arm = {.name = policy, .cache = {}};
    arm.cache.policy = policy;
    arm.cache.max_cache_tokens = budget;
    return arm;
  }

  std::unique_ptr<Laboratory> laboratory_;
  static constexpr int kContext = 110;
  std::unique_ptr<PlainForward> forward_;
  std::vector<TokenId> tokens_;  // the context and its continuation
  Trial trial_;
};

// The engine's cache, with its kernels, pages and evictions, and a mask over plain attention must
// give the same predictions.
TEST_F(TinyLaboratory, LocalWithHeavyHittersForetellsAsTheEnginesH2oDoes) {
  const Activations plain = forward_->Read(tokens_);
  const auto collected = CollectedAttention(plain, kContext, &forward_->threads());
  const double given = static_cast<double>(tokens_.size()) - kContext;
  const double first = forward_->NegativeLogLikelihoods(plain, tokens_)[kContext - 1];
  for (const int budget : {12, 31}) {
    const std::vector<Outcome> outcomes = laboratory_->Run(trial_, {Named("h2o", budget)});
    const MaskRule rule = {.pattern = MaskPattern::kLocal,
                           .heavy_hitters = true,
                           .budget = budget,
                           .tokens = static_cast<int>(tokens_.size())};
    const AttentionMask mask =
        MakeMask(rule, plain.layers, plain.kv_heads, plain.Group(), collected);
    const Activations masked = forward_->Read(tokens_, mask, &plain, kContext);
    const std::vector<double> nlls = forward_->NegativeLogLikelihoods(masked, tokens_);
    const double nll = (first + std::accumulate(nlls.begin(), nlls.end(), 0.0)) / given;
    EXPECT_NEAR(nll, outcomes[1].first().nll, 1e-4);
    EXPECT_GT(std::abs(outcomes[0].first().nll - outcomes[1].first().nll), 1e-3)
        << "or nothing is compared";
  }
}

TEST_F(TinyLaboratory, ATraceListsTheEntriesOfEachStep) {
  const std::vector<Outcome> outcomes =
      laboratory_->Run(trial_, {Named("h2o", 20), Named("snapkv", 40), Named("subgen", 40)});
  std::vector<int32_t> all(110);
  std::iota(all.begin(), all.end(), 0);
  ASSERT_EQ(outcomes[0].held.size(), 1u) << "nothing leaves a full cache";
  EXPECT_THAT(outcomes[0].held[0], testing::Each(all));
  ASSERT_EQ(outcomes[1].held.size(), 41u);
  for (size_t moment = 0; moment < outcomes[1].held.size(); ++moment) {
    for (const std::vector<int32_t>& head : outcomes[1].held[moment]) {
      ASSERT_EQ(head.size(), 20u);
      EXPECT_EQ(head.back(), 109 + static_cast<int>(moment));
      EXPECT_TRUE(std::is_sorted(head.begin(), head.end()));
    }
  }
  EXPECT_EQ(outcomes[2].held.size(), 1u) << "snapkv appends";
  EXPECT_TRUE(outcomes[3].held.empty()) << "samples are no entries";
  trial_.append = true;
  EXPECT_EQ(laboratory_->Run(trial_, {Named("h2o", 20)})[1].held.size(), 1u);
  trial_.traced = false;
  EXPECT_TRUE(laboratory_->Run(trial_, {Named("h2o", 20)})[1].held.empty());
}

// Attention loss

double L1(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += std::abs(value);
  return sum;
}

// Equation 8 and theorem 3.1, computed directly for one query with the file's own W_O.
TEST(AttentionLoss, IsItsDefinitionAndWithinTheBound) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 rng(kSeed);
  const ModelConfig config = SmallConfig(6, 2);
  const auto source = MakeRandomModel(config, kSeed);
  const auto forward = Forward(source);
  const int n = 60, context = 59, d = config.head_dim, group = 3;
  const Activations activations = forward->Read(SomeTokens(n, config.vocab_size, kSeed));
  for (const double keep : {0.9, 0.3, 0.05}) {
    std::vector<std::vector<std::vector<int32_t>>> moments(2);
    for (auto& moment : moments) {
      for (int head = 0; head < config.num_layers * 2; ++head) {
        moment.emplace_back();
        for (int j = 0; j < n; ++j) {
          if (j == context || std::bernoulli_distribution(keep)(rng)) moment.back().push_back(j);
        }
      }
    }
    const HeldEntries held = {&moments, context};
    const auto losses = AttentionLosses(activations, context, {held}, forward.get());
    for (int layer = 0; layer < config.num_layers; ++layer) {
      const TensorView wo = source->Layer(layer)->wo;
      std::vector<float> w(wo.NumElements());
      DequantizeRow(wo.dtype, wo.bytes.data(), wo.NumElements(), w.data());
      const int hidden = config.hidden_size;
      std::vector<double> y(hidden, 0.0), cut(hidden, 0.0);
      double largest = 0, gone = 0;
      for (int head = 0; head < 6; ++head) {
        const float* keys = activations.Keys(layer, head / group);
        const float* values = activations.Values(layer, head / group);
        const float* query = activations.Query(layer, head, n - 1);
        std::vector<double> weights(n), kept(n, 0.0);
        for (int j = 0; j < n; ++j) {
          double logit = 0;
          for (int c = 0; c < d; ++c) logit += static_cast<double>(query[c]) * keys[j * d + c];
          weights[j] = std::exp(logit / std::sqrt(d));
        }
        const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (double& weight : weights) weight /= all;
        for (const int32_t j : moments[1][layer * 2 + head / group]) kept[j] = weights[j];
        const double stays = std::accumulate(kept.begin(), kept.end(), 0.0);
        gone += 1 - stays;
        for (int j = 0; j < n; ++j) {
          double norm = 0;
          for (int i = 0; i < hidden; ++i) {
            double product = 0;
            for (int c = 0; c < d; ++c)
              product += static_cast<double>(values[j * d + c]) * w[i * 6 * d + head * d + c];
            norm += std::abs(product);
            y[i] += weights[j] * product;
            cut[i] += kept[j] / stays * product;
          }
          largest = std::max(largest, norm);
        }
      }
      const double norm = L1(y);
      for (int i = 0; i < hidden; ++i) cut[i] -= y[i];
      const AttentionLoss& loss = losses[0][layer];
      EXPECT_NEAR(loss.loss, L1(cut), 1e-4 * norm);
      EXPECT_NEAR(loss.norm, norm, 1e-4 * norm);
      EXPECT_NEAR(loss.bound, 2 * largest * gone, 1e-4 * loss.bound);
      EXPECT_GT(loss.loss, 0);
      EXPECT_LE(loss.loss, loss.own_bound);
      EXPECT_LE(loss.own_bound, loss.bound);
      EXPECT_LE(loss.worst, 1);
    }
  }
}

TEST(AttentionLoss, OfAHeadOfRandomNumbers) {
  std::mt19937_64 rng(32);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    const int n = 1 + static_cast<int>(rng() % 30), d = 4;
    const std::vector<double> weights = RandomWeights(1, n, &rng);
    std::vector<float> values(n * d), attended(d, 0.0f), out(d);
    std::vector<uint8_t> held(n);
    double largest = 0;
    for (int j = 0; j < n; ++j) {
      double norm = 0;
      for (int c = 0; c < d; ++c) norm += std::abs(values[j * d + c] = normal(rng));
      for (int c = 0; c < d; ++c) attended[c] += static_cast<float>(weights[j]) * values[j * d + c];
      largest = std::max(largest, norm);
      held[j] = rng() % 2;
    }
    const double gone =
        EvictionDifference(weights, held, values.data(), attended.data(), d, out.data());
    double distance = 0;
    for (const float value : out) distance += std::abs(value);
    EXPECT_LE(distance, 2 * largest * gone + 1e-5);
    if (std::count(held.begin(), held.end(), 0) == 0) {
      EXPECT_EQ(distance, 0);
      EXPECT_EQ(gone, 0);
    }
  }
}

TEST_F(TinyLaboratory, EveryPolicysLossIsWithinTheBound) {
  const Activations activations = forward_->Read(tokens_);
  std::vector<Arm> arms;
  for (const PolicyInfo& info : ListPolicies()) {
    const std::set<std::string> left_out = {"full", "subgen", "learned"};  // no predictor here
    if (!left_out.contains(info.name)) arms.push_back(Named(info.name, 40));
  }
  for (const bool append : {false, true}) {
    trial_.append = append;
    const std::vector<Outcome> outcomes = laboratory_->Run(trial_, arms);
    std::vector<HeldEntries> held;
    held.reserve(outcomes.size());
    for (const Outcome& outcome : outcomes) held.push_back({&outcome.held, kContext});
    const auto losses = AttentionLosses(activations, kContext - 1, held, forward_.get());
    for (const AttentionLoss& layer : losses[0]) {
      EXPECT_EQ(layer.loss, 0) << "of the full cache";
      EXPECT_EQ(layer.bound, 0);
    }
    for (size_t arm = 0; arm < arms.size(); ++arm) {
      SCOPED_TRACE(arms[arm].name);
      for (const AttentionLoss& layer : losses[arm + 1]) {
        EXPECT_GT(layer.loss, 0);
        EXPECT_LE(layer.loss, layer.own_bound);
        EXPECT_LE(layer.own_bound, layer.bound);
        EXPECT_LE(layer.worst, 1) << "of any query";
      }
    }
  }
}

// Concentration

TEST(Concentration, OfWeightsThatAreKnown) {
  EXPECT_EQ(EntriesHolding(std::vector<double>(100, 0.01), 0.95), 95);
  EXPECT_EQ(EntriesHolding(std::vector<double>(1000, 0.3), 0.99), 990);
  EXPECT_EQ(EntriesHolding({0, 0, 7, 0}, 0.99), 1);
  EXPECT_EQ(EntriesHolding({0.04, 0.5, 0.06, 0.4}, 0.95), 3);
  EXPECT_EQ(EntriesHolding({0.05, 0.5, 0.05, 0.4}, 0.90), 2);
  EXPECT_EQ(EntriesHolding({}, 0.95), 0);
}

TEST(Sparsity, IsTheShareBelowAHundredthOfTheLargest) {
  EXPECT_EQ(SparsityOf(std::vector<double>{0.5, 0.0049, 0.005, 0.4, 0}), 0.4);
  EXPECT_EQ(SparsityOf(std::vector<double>{1}), 0);
}

TEST(RankCorrelationOf, OrdersThatAreKnown) {
  EXPECT_DOUBLE_EQ(RankCorrelation({1, 2, 3, 40}, {-5, 0, 0.1, 0.2}), 1);
  EXPECT_DOUBLE_EQ(RankCorrelation({1, 2, 3}, {3, 2, 1}), -1);
  EXPECT_DOUBLE_EQ(RankCorrelation({1, 2, 3, 4, 5}, {2, 1, 4, 3, 5}), 0.8);
  EXPECT_DOUBLE_EQ(RankCorrelation({1, 1, 2, 2}, {3, 3, 9, 9}), 1) << "shared ranks";
  EXPECT_DOUBLE_EQ(RankCorrelation({1, 1, 1}, {1, 2, 3}), 0);
}

// Cache contents over time

TEST(ReplacementIndex, OfSequencesMadeByHand) {
  // Four entries, two of them the newest, including the incoming one: three candidates.
  const std::vector<std::vector<int32_t>> newest = {{0, 1, 4, 5}, {0, 1, 5, 6}, {0, 1, 6, 7}};
  EXPECT_THAT(ReplacementIndices(newest, 2), ElementsAre(1.0, 1.0));
  const std::vector<std::vector<int32_t>> oldest = {{0, 1, 4, 5}, {1, 4, 5, 6}, {1, 5, 6, 7}};
  EXPECT_THAT(ReplacementIndices(oldest, 2), ElementsAre(0.0, 0.5));
  const std::vector<std::vector<int32_t>> whole = {{0, 1, 2}, {0, 1, 2, 3}, {3, 4}, {3, 4, 5}};
  EXPECT_TRUE(ReplacementIndices(whole, 0).empty()) << "nothing, or several, left";
}

TEST_F(TinyLaboratory, ClassesOfEntries) {
  const Activations activations = forward_->Read(tokens_);
  const std::vector<Outcome> outcomes = laboratory_->Run(trial_, {Named("h2o", 20)});
  const HeldEntries held = {&outcomes[1].held, kContext};
  const auto classify = [&](double gamma, std::vector<HeadClasses>* shown) {
    return ClassifyEntries(activations, held, gamma, &forward_->threads(), shown);
  };
  std::vector<HeadClasses> none;
  for (const EntryClasses& layer : classify(0.0, &none)) {
    EXPECT_NEAR(layer.activated_cached, 20, 1e-9) << "every weight exceeds 0";
    EXPECT_EQ(layer.inactive_cached, 0);
    EXPECT_NEAR(layer.activated_uncached, 130.5 - 20, 1e-9) << "of 111 to 150 entries";
  }
  for (const EntryClasses& layer : classify(1.0, &none)) {
    EXPECT_EQ(layer.activated_cached + layer.activated_uncached, 0) << "none its own maximum";
    EXPECT_NEAR(layer.inactive_cached, 20, 1e-9);
  }
  // By hand, for one head at one step.
  std::vector<HeadClasses> shown = {{1, 0, {}}};
  const EntryClasses classes = classify(0.05, &shown)[1];
  ASSERT_EQ(shown[0].steps.size(), 40u);
  const int query = kContext + 7, group = activations.Group();
  const GroupAttention keys(activations.Keys(1, 0), activations.tokens, activations.head_dim);
  std::vector<double> weights(query + 1), mean(query + 1, 0.0);
  for (int g = 0; g < group; ++g) {
    keys.Weights(activations.Query(1, g, query), query + 1, weights.data());
    for (int j = 0; j <= query; ++j) mean[j] += weights[j] / group;
  }
  const std::vector<int32_t>& now = outcomes[1].held[8][activations.kv_heads];
  const std::string& line = shown[0].steps[7];
  ASSERT_EQ(line.size(), mean.size());
  for (int j = 0; j <= query; ++j) {
    const bool cached = std::find(now.begin(), now.end(), j) != now.end();
    const bool active = mean[j] > classes.threshold;
    EXPECT_EQ(line[j], active ? (cached ? 'b' : 'o') : (cached ? 'g' : '.')) << j;
  }
}

// Clusters

std::vector<float> RandomPoints(int n, int d, std::mt19937_64* rng) {
  std::normal_distribution<float> normal;
  std::vector<float> points(n * d);
  for (float& value : points) value = normal(*rng);
  return points;
}

double CoveringRadius(const Points& points, const std::vector<int>& centres) {
  double radius = 0;
  for (int i = 0; i < points.n; ++i) {
    double nearest = INFINITY;
    for (const int centre : centres) {
      double sum = 0;
      for (int c = 0; c < points.d; ++c)
        sum += std::pow(
            static_cast<double>(points.rows[i * points.d + c]) - points.rows[centre * points.d + c],
            2);
      nearest = std::min(nearest, std::sqrt(sum));
    }
    radius = std::max(radius, nearest);
  }
  return radius;
}

// Gonzalez: at most twice the optimal cost.
TEST(Clusters, GreedyCentresBesideAllChoices) {
  constexpr uint64_t kSeed = 41;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 rng(kSeed);
  for (int round = 0; round < 20; ++round) {
    const int n = 9, d = 3, k = 3;
    const std::vector<float> rows = RandomPoints(n, d, &rng);
    const Points points = {rows.data(), n, d};
    double best = INFINITY;
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        for (int c = 0; c < n; ++c) best = std::min(best, CoveringRadius(points, {a, b, c}));
      }
    }
    const Centres centres = GreedyCentres(points, k);
    ASSERT_EQ(centres.points.size(), 3u);
    EXPECT_EQ(centres.points[0], 0);
    EXPECT_NEAR(centres.radius, CoveringRadius(points, centres.points), 1e-9);
    EXPECT_LE(centres.radius, 2 * best + 1e-9);
    EXPECT_GE(centres.radius, best - 1e-9);
    EXPECT_EQ(GreedyCentres(points, n).radius, 0);
  }
}

TEST(Clusters, PointsOnALineLieOnALine) {
  std::mt19937_64 rng(42);
  std::vector<float> rows;
  std::vector<double> along;
  for (int i = 0; i < 50; ++i) {
    along.push_back(std::normal_distribution<double>(0, 3)(rng));
    for (const double direction : {0.6, 0.0, -0.8})
      rows.push_back(static_cast<float>(5 + along.back() * direction));
  }
  const Plane plane = PrincipalPlane({rows.data(), 50, 3});
  EXPECT_NEAR(plane.share, 1, 1e-9);
  for (int i = 1; i < 50; ++i) {
    EXPECT_NEAR(std::abs(plane.x[i] - plane.x[0]), std::abs(along[i] - along[0]), 1e-4);
    EXPECT_NEAR(plane.y[i], 0, 1e-4);
  }
  const std::vector<float> same(30, 2.0f);
  EXPECT_THAT(PrincipalPlane({same.data(), 10, 3}).x, testing::Each(0.0)) << "a point is a point";
}

// Axes of a rotated ellipsoid: finds the two longest, in order.
TEST(Clusters, ThePlaneHoldsTheLargestVariance) {
  std::mt19937_64 rng(43);
  std::normal_distribution<double> normal;
  const int n = 4000;
  std::vector<float> rows(n * 3);
  const double s = std::sqrt(0.5);
  for (int i = 0; i < n; ++i) {
    const double a = 5 * normal(rng), b = 3 * normal(rng), c = normal(rng);
    rows[3 * i] = static_cast<float>(s * (a + c));
    rows[3 * i + 1] = static_cast<float>(b);
    rows[3 * i + 2] = static_cast<float>(s * (a - c));
  }
  const Points points = {rows.data(), n, 3};
  const Plane plane = PrincipalPlane(points);
  const auto deviation = [](const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) /
                     static_cast<double>(x.size()));
  };
  EXPECT_NEAR(deviation(plane.x), 5, 0.25);
  EXPECT_NEAR(deviation(plane.y), 3, 0.15);
  EXPECT_NEAR(plane.share, 34.0 / 35, 0.01);
  EXPECT_NEAR(Spread(points), std::sqrt(35.0), 0.25);
}

// Sketches

TEST(Sketch, ASubsetOfAllIsAll) {
  std::mt19937_64 rng(51);
  const std::vector<float> keys = RandomPoints(30, 8, &rng), values = RandomPoints(30, 8, &rng);
  const std::vector<float> query = RandomPoints(1, 8, &rng);
  const Head head = {keys.data(), values.data(), 30, 8};
  std::vector<double> weights(30), expected(8, 0.0);
  GroupAttention(keys.data(), 30, 8).Weights(query.data(), 30, weights.data());
  for (int j = 0; j < 30; ++j) {
    for (int c = 0; c < 8; ++c) expected[c] += weights[j] * values[j * 8 + c];
  }
  ExpectNear(AttendToAll(head, query.data()), expected, 1e-12);
  const SketchRule all = {.recent = 30, .value_samples = 1, .cluster_samples = 1, .clusters = 1};
  ExpectNear(SubGenSketch(head, all, 1).Attend(query.data()), expected, 1e-12);
  EXPECT_EQ(RelativeError(expected, expected), 0);
}

TEST(Sketch, ClustersCoverAndStandApart) {
  std::mt19937_64 rng(52);
  const std::vector<float> keys = RandomPoints(200, 4, &rng);
  const Head head = {keys.data(), keys.data(), 200, 4};
  for (const int most : {1, 7, 40}) {
    const Clusters clusters = ClusterInto(head, 200, most);
    ASSERT_LE(static_cast<int>(clusters.members.size()), most);
    std::set<int> all;
    for (const std::vector<int>& members : clusters.members) {
      for (const int j : members) {
        EXPECT_TRUE(all.insert(j).second);
        EXPECT_LE(std::sqrt(DistanceSquared(&keys[j * 4], &keys[members[0] * 4], 4)),
                  clusters.radius + 1e-9);
      }
      for (const std::vector<int>& others : clusters.members) {
        if (&others == &members) continue;
        EXPECT_GT(std::sqrt(DistanceSquared(&keys[others[0] * 4], &keys[members[0] * 4], 4)),
                  clusters.radius);
      }
    }
    EXPECT_EQ(all.size(), 200u);
    EXPECT_GT(ClusterKeys(head, 200, clusters.radius * 0.9).members.size(),
              static_cast<size_t>(most))
        << "no much smaller radius would do";
  }
}

// Lemmas 1 and 2: with many samples the estimate converges to the exact value.
TEST(Sketch, ManySamplesTellTheTruth) {
  std::mt19937_64 rng(53);
  const std::vector<float> keys = RandomPoints(120, 8, &rng), values = RandomPoints(120, 8, &rng);
  const std::vector<float> query = RandomPoints(1, 8, &rng);
  const Head head = {keys.data(), values.data(), 120, 8};
  const std::vector<double> exact = AttendToAll(head, query.data());
  const auto error = [&](int samples, int clusters) {
    double sum = 0;
    for (int seed = 0; seed < 10; ++seed) {
      const SketchRule rule = {.recent = 20,
                               .value_samples = samples,
                               .cluster_samples = std::max(1, samples / clusters),
                               .clusters = clusters};
      sum += RelativeError(SubGenSketch(head, rule, seed).Attend(query.data()), exact) / 10;
    }
    return sum;
  };
  EXPECT_LT(error(40000, 10), 0.05);
  EXPECT_LT(error(40000, 1), 0.05);
  EXPECT_GT(error(20, 10), 0.1) << "few do not";
}

TEST(LengthStudy, ReportsTheCostOfEachLength) {
  ModelConfig config = SmallConfig(4, 2);
  config.max_context = 1024;
  const auto forward = Forward(MakeRandomModel(config, 54));
  const std::vector<TokenId> tokens = SomeTokens(600, config.vocab_size, 54);
  const auto silent = [](const std::string&) {};
  EXPECT_TRUE(StudyLengths(std::span(tokens).subspan(0, 265), forward.get(), silent).is_null());
  const auto study = StudyLengths(tokens, forward.get(), silent);
  ASSERT_EQ(study["of_share"].size(), 2u) << "250 and 500 tokens, and 16 behind them";
  EXPECT_EQ(study["of_share"][1]["memory"], 100);
  EXPECT_EQ(study["of_memory"][1]["memory"], 128);
  for (const char* rows : {"of_share", "of_memory"}) {
    for (const auto& row : study[rows]) {
      EXPECT_GT(row["best"], 0);
      for (const char* other : {"heavy", "centres", "sinks", "subgen"})
        EXPECT_GT(row[other], row["best"]) << other;
    }
  }
  EXPECT_LE(study["clusters"][0]["mean"], 32);
  EXPECT_GT(study["clusters"][1]["mean"], study["clusters"][0]["mean"]);
}

// The whole report

TEST_F(TinyLaboratory, APageOfPictures) {
  std::string text;
  std::mt19937_64 rng(61);
  for (int i = 0; i < 3000; ++i)
    text += std::string(1 + rng() % 6, static_cast<char>('a' + rng() % 26)) +
            (i % 15 == 14 ? "\n" : " ");
  AnatomyOptions options;
  options.arms = {Named("h2o", 0), Named("subgen", 0)};
  for (Arm& arm : options.arms) {
    arm.cache.max_cache_tokens.reset();
    arm.cache.min_cache_tokens = 0;
  }
  options.budgets = {0.2, 0.5};
  options.length = 100;
  options.given = 20;
  const auto drawn = DrawAnatomy("noise", text, options, laboratory_.get(), forward_.get());
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  const auto& loss = (*drawn)["loss"];
  ASSERT_EQ(loss["budgets"].size(), 2u);
  EXPECT_EQ(loss["left_out"], nlohmann::json::array({"subgen"}));
  EXPECT_GT(loss["budgets"][0]["rows"][0]["loss"], loss["budgets"][1]["rows"][0]["loss"]);
  EXPECT_EQ((*drawn)["concentration"]["share95"].size(),
            static_cast<size_t>(forward_->config().num_layers * forward_->config().num_heads));
  EXPECT_EQ((*drawn)["concentration"]["sparsity"].size(),
            static_cast<size_t>(forward_->config().num_layers));
  EXPECT_EQ((*drawn)["courses"]["policies"].size(), 2u);
  EXPECT_EQ((*drawn)["masks"]["rows"].size(), 8u);
  for (const auto& row : (*drawn)["masks"]["rows"]) EXPECT_EQ(row["lost"].size(), 4u);
  EXPECT_FALSE((*drawn)["clusters"]["shown"].empty());
  const auto refused =
      DrawAnatomy("haiku", "an old silent pond", options, laboratory_.get(), forward_.get());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("haiku has"));
}

}  // namespace
}  // namespace hydrant::eval
