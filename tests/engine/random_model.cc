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
      layers_.push_back(layer);
    }
  }

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TensorView> Embedding() const override { return embedding_; }
  absl::StatusOr<TensorView> FinalNorm() const override { return final_norm_; }
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
  TensorView embedding_, final_norm_, output_;
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

std::shared_ptr<const ModelSource> MakeRandomModel(const ModelConfig& config, uint64_t seed) {
  return std::make_shared<RandomModel>(config, seed);
}

}  // namespace hydrant
