#include "engine/run/forward/key_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/run/engine.h"
#include "engine/run/forward/rope_table.h"
#include "kernels/dequantize.h"
#include "tests/engine/run/random_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;

constexpr uint64_t kSeed = 4711;

std::vector<float> Values(const TensorView& tensor) {
  std::vector<float> values(tensor.Exists() ? tensor.NumElements() : 0);
  if (!values.empty())
    DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data());
  return values;
}

// Another model's tensors, with biases of keys that make a few channels large.
class OutlierModel final : public ModelSource {
 public:
  OutlierModel(std::shared_ptr<const ModelSource> model, double size) : model_(std::move(model)) {
    std::mt19937_64 rng(kSeed);
    std::normal_distribution<double> normal(0.0, size);
    const int d = config().head_dim;
    for (int i = 0; i < config().num_layers; ++i) {
      const LayerTensors layer = *model_->Layer(i);
      fused_ = layer.wqkv.Exists();
      std::vector<float>& biases = biases_.emplace_back(Values(fused_ ? layer.bqkv : layer.bk));
      for (int head = 0; head < config().num_kv_heads; ++head) {
        // Slow ones of RoPE, as Qwen2.5's, and a fast one.
        for (const int c : {3, d / 2 - 2, d / 2 - 1, d - 2, d - 1})
          biases[(fused_ ? 3 * head + 1 : head) * d + c] =
              static_cast<float>(c == 3 ? normal(rng) / 8 : normal(rng));
      }
    }
  }
  const ModelConfig& config() const override { return model_->config(); }
  absl::StatusOr<TensorView> Embedding() const override { return model_->Embedding(); }
  absl::StatusOr<TensorView> Positions() const override { return model_->Positions(); }
  absl::StatusOr<TensorView> FinalNorm() const override { return model_->FinalNorm(); }
  absl::StatusOr<TensorView> FinalNormBias() const override { return model_->FinalNormBias(); }
  absl::StatusOr<TensorView> Output() const override { return model_->Output(); }
  absl::StatusOr<LayerTensors> Layer(int layer) const override {
    LayerTensors tensors = *model_->Layer(layer);
    TensorView& bias = fused_ ? tensors.bqkv : tensors.bk;
    bias.bytes = {reinterpret_cast<const uint8_t*>(biases_[layer].data()),
                  biases_[layer].size() * sizeof(float)};
    return tensors;
  }

 private:
  std::shared_ptr<const ModelSource> model_;
  std::vector<std::vector<float>> biases_;
  bool fused_ = false;
};

std::shared_ptr<const ModelSource> ModelOf(const std::string& family, double outliers) {
  const bool fused = family == "gpt_neox";
  ModelConfig config = SmallConfig(6, fused ? 6 : 2, 32);
  config.max_context = 2 * kCentrePositions;
  auto model = MakeRandomModel(InFamily(config, family), kSeed);
  if (outliers == 0.0) return model;
  return std::make_shared<OutlierModel>(std::move(model), outliers);
}

// Rotated queries or keys of a head for normalised inputs drawn from a normal distribution, at
// drawn positions of the first kCentrePositions: [draws, head_dim].
std::vector<std::vector<double>> DrawRows(const ModelSource& model, int layer, bool keys, int head,
                                          int draws) {
  const ModelConfig& config = model.config();
  const LayerTensors tensors = *model.Layer(layer);
  const int d = config.head_dim, hidden = config.hidden_size;
  const int rotary = config.RotaryDimOf(layer), half = rotary / 2;
  const bool fused = tensors.wqkv.Exists();
  const std::vector<float> weights = Values(fused ? tensors.wqkv : keys ? tensors.wk : tensors.wq);
  const std::vector<float> bias = Values(fused ? tensors.bqkv : keys ? tensors.bk : tensors.bq);
  const std::vector<float> gain = Values(tensors.attn_norm), shift = Values(tensors.attn_norm_bias);
  const std::vector<float> norm = Values(keys ? tensors.k_norm : tensors.q_norm);
  const int first = (fused ? 3 * head + (keys ? 1 : 0) : head) * d;
  const std::vector<double> turns = RopeFrequencies(config.RopeOf(layer), rotary, 1);
  std::mt19937_64 rng(kSeed + head);
  std::normal_distribution<double> normal(0.0, 1.0);
  std::vector<std::vector<double>> rows;
  for (int draw = 0; draw < draws; ++draw) {
    std::vector<double> x(hidden), k(d);
    for (int i = 0; i < hidden; ++i) {
      x[i] = normal(rng) * (gain.empty() ? 1.0 : gain[i]) + (shift.empty() ? 0.0 : shift[i]);
    }
    double squares = 0.0;
    for (int c = 0; c < d; ++c) {
      k[c] = bias.empty() ? 0.0 : bias[first + c];
      for (int i = 0; i < hidden; ++i) k[c] += weights[(first + c) * hidden + i] * x[i];
      squares += k[c] * k[c];
    }
    for (int c = 0; c < d && !norm.empty(); ++c)
      k[c] *= norm[(head * d + c) % norm.size()] / std::sqrt(squares / d);
    const double position = static_cast<double>(rng() % kCentrePositions);
    for (int i = 0; i < half; ++i) {
      const double cos = std::cos(position * turns[i]), sin = std::sin(position * turns[i]);
      const double a = k[i], b = k[i + half];
      k[i] = a * cos - b * sin;
      k[i + half] = b * cos + a * sin;
    }
    rows.push_back(std::move(k));
  }
  return rows;
}

// Mean and mean square of each channel, times its factor, less its offset.
struct Moments {
  std::vector<double> mean, square;
};
Moments MomentsOf(const std::vector<std::vector<double>>& rows, const float* factors,
                  const float* offsets) {
  const size_t d = rows.front().size();
  const auto count = static_cast<double>(rows.size());
  Moments moments = {std::vector<double>(d), std::vector<double>(d)};
  for (const std::vector<double>& row : rows) {
    for (size_t c = 0; c < d; ++c) {
      const double x = row[c] * factors[c] - (offsets == nullptr ? 0.0 : offsets[c]);
      moments.mean[c] += x / count;
      moments.square[c] += x * x / count;
    }
  }
  return moments;
}

class KeyScalingOfFamily : public ::testing::TestWithParam<std::string> {};

// Against drawn rows: scaled queries and keys are equally large in each pair of channels, and the
// means of centred ones are 0.
TEST_P(KeyScalingOfFamily, QueriesAndKeysBecomeEquallyLarge) {
  constexpr int kDraws = 4000;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const bool biased = GetParam() == "qwen2" || GetParam() == "gpt_neox" || GetParam() == "opt";
  const auto model = ModelOf(GetParam(), biased ? 40.0 : 0.0);
  const ModelConfig& config = model->config();
  const size_t d = config.head_dim, heads = config.num_heads, group = heads / config.num_kv_heads;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const bool centre : {false, true}) {
      const KeyScaling scaling = *KeyScalingOf(*model->Layer(layer), config, layer, centre);
      EXPECT_EQ(scaling.offsets.empty(), !centre || !biased);
      for (size_t head = 0; head < static_cast<size_t>(config.num_kv_heads); ++head) {
        const float* const factors = &scaling.factors[(heads + head) * d];
        const Moments keys =
            MomentsOf(DrawRows(*model, layer, true, static_cast<int>(head), kDraws), factors,
                      scaling.offsets.empty() ? nullptr : &scaling.offsets[head * d]);
        std::vector<double> queries(d);
        for (size_t query = head * group; query < (head + 1) * group; ++query) {
          const float* const of_query = &scaling.factors[query * d];
          const Moments moments = MomentsOf(
              DrawRows(*model, layer, false, static_cast<int>(query), kDraws), of_query, nullptr);
          for (size_t c = 0; c < d; ++c) {
            queries[c] += moments.square[c] / static_cast<double>(group);
            EXPECT_EQ(of_query[c] * factors[c], 1.0f);
          }
        }
        const size_t rotary = config.RotaryDimOf(layer), half = rotary / 2;
        for (size_t c = 0; c < d; ++c) {
          SCOPED_TRACE(testing::Message() << "head " << head << ", channel " << c);
          const size_t partner = c >= rotary ? c : c < half ? c + half : c - half;
          EXPECT_EQ(factors[c], factors[partner]);
          const double of_keys = keys.square[c] + keys.square[partner];
          // Half a power of two either way in both, squared, and the draws.
          EXPECT_NEAR(std::log2((queries[c] + queries[partner]) / of_keys), 0.0, 2.3);
          if (!scaling.offsets.empty()) {
            EXPECT_NEAR(keys.mean[c] / std::sqrt(of_keys / 2), 0.0, 0.12);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, KeyScalingOfFamily,
                         ::testing::Values("llama", "qwen2", "qwen3", "gemma3_text", "gpt_neox",
                                           "opt"),
                         [](const auto& info) { return info.param; });

std::vector<float> LogitsOf(const std::shared_ptr<const ModelSource>& model,
                            const std::string& device, DType kv_dtype,
                            WeightDType weight_dtype = WeightDType::kFloat32) {
  EngineOptions options;
  options.device = device;
  options.dtype = weight_dtype;
  options.kv_cache_dtype = kv_dtype;
  options.num_blocks_override = 64;
  options.max_model_len = 128;
  options.num_threads = 1;
  const auto engine = *Engine::Create(model, options, nullptr);
  EngineDriver driver(engine.get(), kSeed);
  const CachePlan plan = *PlanCache({}, engine->limits().ShapeOf(60));
  std::vector<TokenId> prompt(60);
  std::mt19937_64 rng(kSeed);
  for (TokenId& token : prompt) token = static_cast<TokenId>(rng() % model->config().vocab_size);
  const int slot = driver.Add(prompt, plan, 12);
  driver.PrefillAll(slot);
  driver.Step();
  std::vector<float> logits;
  for (int i = 0; i < 10; ++i) {
    driver.DecodeToken(slot, static_cast<TokenId>(rng() % model->config().vocab_size),
                       driver.position(slot));
    driver.Step();
    const std::vector<float> row = driver.Logits(slot);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// The error of pages beside that of the same model without outliers. Unscaled keys have 7.7 times as
// much in int8 and 2.6 times in int4; scaled ones 2.8 times, and, as they are centred, 1.5 times.
TEST(KeyScaling, OutliersDoNotSetTheScaleOfOthers) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const std::string device : {"reference", "cpu"}) {
    for (const auto& [dtype, limit] : {std::pair(DType::kQ8_0, 4.0), {DType::kQ4_0, 1.9}}) {
      SCOPED_TRACE(testing::Message() << device << ", " << DTypeName(dtype));
      const auto error_of = [&, dtype = dtype](double outliers) {
        const auto model = ModelOf("qwen2", outliers);
        return Distance(LogitsOf(model, device, dtype), LogitsOf(model, device, DType::kF32));
      };
      EXPECT_LT(error_of(40.0), limit * error_of(0.0));
    }
  }
}

// The same for prompts that attend in 8 bits beside 16-bit pages. Unscaled rows have 3.2 times as much,
// scaled ones 1.8 times.
TEST(KeyScaling, OutliersDoNotSetTheScaleOfPromptsInEightBits) {
  const auto backend = *CreateBackend("cpu", {});
  if (backend->AttentionDType(DType::kF16, DType::kQ8_0) != DType::kQ8_0)
    GTEST_SKIP() << "the backend attends with more bits";
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const auto error_of = [&](double outliers) {
    const auto model = ModelOf("qwen2", outliers);
    constexpr WeightDType kBlocks = WeightDType::kQ8_0;
    return Distance(LogitsOf(model, "cpu", DType::kF16, kBlocks),
                    LogitsOf(model, "cpu", DType::kF32, kBlocks));
  };
  EXPECT_LT(error_of(40.0), 2.4 * error_of(0.0));
}

TEST(KeyScaling, CentresNoKeysBesideOthers) {
  for (const std::string family : {"gemma2", "gpt_oss"}) {
    const auto model = ModelOf(family, 0.0);
    EXPECT_FALSE(MayCentreKeys(model->config(), *model->Layer(0))) << family;
  }
  const auto model = ModelOf("qwen2", 0.0);
  EXPECT_TRUE(MayCentreKeys(model->config(), *model->Layer(0)));
}

}  // namespace
}  // namespace hydrant
