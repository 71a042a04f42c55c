#include "tests/engine/random_model.h"

#include <cmath>
#include <deque>
#include <random>
#include <vector>

namespace hydrant {
namespace {

class RandomModel final : public ModelSource {
 public:
  RandomModel(const ModelConfig& config, uint64_t seed) : config_(config), rng_(seed) {
    const double std_in = 1.0 / std::sqrt(config.hidden_size);
    embedding_ = Matrix(config.vocab_size, config.hidden_size, 1.0);
    output_ = config.tied_embeddings ? embedding_
                                     : Matrix(config.vocab_size, config.hidden_size, 3.0 * std_in);
    final_norm_ = Norm();
    const bool biased = config.norm == NormKind::kLayer;
    if (biased) final_norm_bias_ = Bias(config.hidden_size);
    if (config.learned_positions) positions_ = Matrix(config.max_context, config.hidden_size, 0.5);
    for (int i = 0; i < config.num_layers; ++i) {
      LayerTensors layer;
      layer.attn_norm = Norm();
      layer.wq = Matrix(config.QDim(), config.hidden_size, 2.0 * std_in);
      layer.wk = Matrix(config.KvDim(), config.hidden_size, 2.0 * std_in);
      layer.wv = Matrix(config.KvDim(), config.hidden_size, std_in);
      layer.wo = Matrix(config.hidden_size, config.QDim(), 1.0 / std::sqrt(config.QDim()));
      layer.ffn_norm = Norm();
      layer.gate = Matrix(config.intermediate_size, config.hidden_size, std_in);
      layer.up = Matrix(config.intermediate_size, config.hidden_size, std_in);
      layer.down = Matrix(config.hidden_size, config.intermediate_size,
                          1.0 / std::sqrt(config.intermediate_size));
      if (config.activation.has_value()) layer.gate = {};
      if (biased) AddBiases(&layer);
      if (config.architecture == "gpt_neox") FuseQkv(&layer);
      layers_.push_back(layer);
    }
  }

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TensorView> Embedding() const override { return embedding_; }
  absl::StatusOr<TensorView> Positions() const override { return positions_; }
  absl::StatusOr<TensorView> FinalNorm() const override { return final_norm_; }
  absl::StatusOr<TensorView> FinalNormBias() const override { return final_norm_bias_; }
  absl::StatusOr<TensorView> Output() const override { return output_; }
  absl::StatusOr<LayerTensors> Layer(int layer) const override { return layers_[layer]; }

 private:
  TensorView Matrix(int rows, int cols, double deviation) {
    std::normal_distribution<double> normal(0.0, deviation);
    return Keep({rows, cols}, [&] { return normal(rng_); });
  }
  TensorView Norm() {
    std::uniform_real_distribution<double> uniform(0.8, 1.2);
    return Keep({config_.hidden_size}, [&] { return uniform(rng_); });
  }
  TensorView Bias(int size) {
    std::normal_distribution<double> normal(0.0, 0.2);
    return Keep({size}, [&] { return normal(rng_); });
  }
  void AddBiases(LayerTensors* layer) {
    layer->attn_norm_bias = Bias(config_.hidden_size);
    for (TensorView* bias : {&layer->bq, &layer->bk, &layer->bv}) *bias = Bias(config_.QDim());
    layer->bo = Bias(config_.hidden_size);
    layer->ffn_norm_bias = Bias(config_.hidden_size);
    layer->up_bias = Bias(config_.intermediate_size);
    layer->down_bias = Bias(config_.hidden_size);
  }
  // One random matrix as good as three.
  void FuseQkv(LayerTensors* layer) {
    layer->wq = layer->wk = layer->wv = layer->bq = layer->bk = layer->bv = {};
    layer->wqkv =
        Matrix(3 * config_.QDim(), config_.hidden_size, 2.0 / std::sqrt(config_.hidden_size));
    layer->bqkv = Bias(3 * config_.QDim());
  }
  template <typename Draw>
  TensorView Keep(std::vector<int64_t> shape, Draw draw) {
    TensorView view;
    view.shape = std::move(shape);
    std::vector<float>& values = storage_.emplace_back(view.NumElements());
    for (float& value : values) value = static_cast<float>(draw());
    view.bytes =
        std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
    return view;
  }

  ModelConfig config_;
  std::mt19937_64 rng_;
  std::deque<std::vector<float>> storage_;
  TensorView embedding_, positions_, final_norm_, final_norm_bias_, output_;
  std::vector<LayerTensors> layers_;
};

}  // namespace

ModelConfig SmallConfig(int num_heads, int num_kv_heads, int head_dim, int num_layers) {
  ModelConfig config;
  config.architecture = "llama";
  config.name = "random";
  config.num_layers = num_layers;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  config.vocab_size = 160;
  config.max_context = 512;
  return config;
}

ModelConfig InFamily(ModelConfig config, const std::string& architecture) {
  config.architecture = architecture;
  if (architecture == "llama") return config;
  config.norm = NormKind::kLayer;
  if (architecture == "opt") {
    config.rotary_dim = 0;
    config.learned_positions = true;
    config.activation = Activation::kRelu;
  } else {
    config.rotary_dim = config.head_dim / 4;
    config.parallel_residual = true;
    config.activation = Activation::kGelu;
  }
  return config;
}

std::shared_ptr<const ModelSource> MakeRandomModel(const ModelConfig& config, uint64_t seed) {
  return std::make_shared<RandomModel>(config, seed);
}

}  // namespace hydrant
