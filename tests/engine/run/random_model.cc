#include "tests/engine/run/random_model.h"

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
    if (config.norm == NormKind::kLayer) final_norm_bias_ = Bias(config.hidden_size);
    if (config.learned_positions) positions_ = Matrix(config.max_context, config.hidden_size, 0.5);
    for (int i = 0; i < config.num_layers; ++i) {
      LayerTensors layer;
      AddNorms(&layer);
      layer.wq = Matrix(config.QDim(), config.hidden_size, 2.0 * std_in);
      layer.wk = Matrix(config.KvDim(), config.hidden_size, 2.0 * std_in);
      layer.wv = Matrix(config.KvDim(), config.hidden_size, std_in);
      layer.wo = Matrix(config.hidden_size, config.QDim(), 1.0 / std::sqrt(config.QDim()));
      if (config.HasDense(i)) AddDense(&layer);
      if (config.sink_logits) layer.sink_logits = Bias(config.num_heads, 2.0);
      if (config.HasExperts(i)) AddExperts(*config.experts, &layer);
      AddBiases(&layer);
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
  TensorView Norm() { return Norm(config_.hidden_size); }
  TensorView Norm(int size) {
    std::uniform_real_distribution<double> uniform(0.8, 1.2);
    return Keep({size}, [&] { return uniform(rng_); });
  }
  TensorView Bias(int size, double deviation = 0.2) {
    std::normal_distribution<double> normal(0.0, deviation);
    return Keep({size}, [&] { return normal(rng_); });
  }
  void AddNorms(LayerTensors* layer) {
    if (config_.norm_placement != NormPlacement::kAfter) {
      layer->attn_norm = Norm();
      layer->ffn_norm = Norm();
    }
    if (config_.norm_placement != NormPlacement::kBefore) {
      layer->attn_post_norm = Norm();
      layer->ffn_post_norm = Norm();
    }
    if (config_.qk_norm == QkNorm::kNone) return;
    const bool whole = config_.qk_norm == QkNorm::kWhole;
    layer->q_norm = Norm(whole ? config_.QDim() : config_.head_dim);
    layer->k_norm = Norm(whole ? config_.KvDim() : config_.head_dim);
  }
  void AddDense(LayerTensors* layer) {
    const int hidden = config_.hidden_size, inter = config_.intermediate_size;
    const double std_in = 1.0 / std::sqrt(hidden);
    if (config_.gated) layer->gate = Matrix(inter, hidden, std_in);
    layer->up = Matrix(inter, hidden, std_in);
    layer->down = Matrix(hidden, inter, 1.0 / std::sqrt(inter));
  }
  void AddExperts(const Experts& experts, LayerTensors* layer) {
    const int hidden = config_.hidden_size, inter = experts.intermediate_size;
    const double std_in = 1.0 / std::sqrt(hidden);
    layer->router = Matrix(experts.count, hidden, 2.0 * std_in);
    if (experts.router_bias) layer->router_bias = Bias(experts.count);
    for (int e = 0; e < experts.count; ++e) {
      ExpertTensors& expert = layer->experts.emplace_back();
      expert.gate = Matrix(inter, hidden, std_in);
      expert.up = Matrix(inter, hidden, std_in);
      expert.down = Matrix(hidden, inter, 1.0 / std::sqrt(inter));
      if (!experts.biases) continue;
      expert.gate_bias = Bias(inter);
      expert.up_bias = Bias(inter);
      expert.down_bias = Bias(hidden);
    }
  }
  void AddBiases(LayerTensors* layer) {
    if (config_.norm == NormKind::kLayer) {
      layer->attn_norm_bias = Bias(config_.hidden_size);
      layer->ffn_norm_bias = Bias(config_.hidden_size);
    }
    if (config_.biases.qkv) {
      layer->bq = Bias(config_.QDim());
      layer->bk = Bias(config_.KvDim());
      layer->bv = Bias(config_.KvDim());
    }
    if (config_.biases.attention_output) layer->bo = Bias(config_.hidden_size);
    if (!config_.biases.feed_forward) return;
    if (config_.gated) layer->gate_bias = Bias(config_.intermediate_size);
    layer->up_bias = Bias(config_.intermediate_size);
    layer->down_bias = Bias(config_.hidden_size);
  }
  // One random matrix serves as well as three.
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

namespace {

void MakeOpt(ModelConfig* c) {
  c->norm = NormKind::kLayer;
  c->biases = {true, true, true};
  c->gated = false;
  c->rotary_dim = 0;
  c->learned_positions = true;
  c->activation = Activation::kRelu;
}

void MakeNeox(ModelConfig* c) {
  c->norm = NormKind::kLayer;
  c->biases = {true, true, true};
  c->gated = false;
  c->rotary_dim = c->head_dim / 4;
  c->parallel_residual = true;
  c->activation = Activation::kGelu;
}

void MakeGranite(ModelConfig* c) {
  c->attention_scale = 0.2;
  c->embedding_scale = 3.0;
  c->residual_scale = 0.6;
  c->logit_scale = 0.5;
}

// Every fourth layer has no RoPE, starting with the second.
void MakeSmolLm3(ModelConfig* c) {
  c->biases = {true, true, true};
  c->layer_kinds.resize(c->num_layers);
  for (int layer = 1; layer < c->num_layers; layer += 4) c->layer_kinds[layer].rotated = false;
}

void MakePhi3(ModelConfig* c) {
  c->rotary_dim = c->head_dim * 3 / 4;
  c->rope.attention_factor = 1.2;
}

void MakeGemma(ModelConfig* c) {
  c->activation = Activation::kGeluTanh;
  c->embedding_scale = std::sqrt(c->hidden_size);
}

void MakeGemma2(ModelConfig* c) {
  MakeGemma(c);
  c->norm_placement = NormPlacement::kBoth;
  c->attention_scale = 0.3;
  c->attention_softcap = 4.0;
  c->logit_softcap = 2.0;
  c->layer_kinds.resize(c->num_layers);
  c->layer_kinds.front().window = 25;
}

// The first layer has a window.
void MakeGemma3(ModelConfig* c) {
  MakeGemma(c);
  c->norm_placement = NormPlacement::kBoth;
  c->qk_norm = QkNorm::kHead;
  c->attention_scale = 0.3;
  c->sliding_rope = Rope::WithTheta(300.0);
  c->layer_kinds.resize(c->num_layers);
  c->layer_kinds.front() = {.window = 40, .rotated = true, .sliding = true};
}

void MakeQwen3Moe(ModelConfig* c) {
  c->qk_norm = QkNorm::kHead;
  c->experts = {
      .count = 6, .per_token = 2, .intermediate_size = 32, .weights = ExpertWeights::kOfAll};
  c->layer_kinds.resize(c->num_layers);
  c->layer_kinds.front().dense = true;
}

void MakeGraniteMoe(ModelConfig* c) {
  MakeGranite(c);
  c->experts = {.count = 5,
                .per_token = 3,
                .intermediate_size = 48,
                .shared = true,
                .router_bias = true,
                .biases = true};
}

void MakeGptOss(ModelConfig* c) {
  c->biases = {true, true, false};
  c->sink_logits = true;
  c->activation = Activation::kClampedSwiglu;
  c->experts = {
      .count = 4, .per_token = 2, .intermediate_size = 40, .router_bias = true, .biases = true};
  c->layer_kinds.resize(c->num_layers);
  c->layer_kinds.front().window = 30;
}

void MakeOlmo2(ModelConfig* c) {
  c->norm_placement = NormPlacement::kAfter;
  c->qk_norm = QkNorm::kWhole;
}

}  // namespace

ModelConfig InFamily(ModelConfig config, const std::string& architecture) {
  config.architecture = architecture;
  if (architecture == "opt") MakeOpt(&config);
  if (architecture == "gpt_neox") MakeNeox(&config);
  if (architecture == "qwen2") config.biases.qkv = true;
  if (architecture == "qwen3") config.qk_norm = QkNorm::kHead;
  if (architecture == "qwen3_moe") MakeQwen3Moe(&config);
  if (architecture == "gpt_oss") MakeGptOss(&config);
  if (architecture == "granite") MakeGranite(&config);
  if (architecture == "granitemoeshared") MakeGraniteMoe(&config);
  if (architecture == "smollm3") MakeSmolLm3(&config);
  if (architecture == "phi3") MakePhi3(&config);
  if (architecture == "olmo2") MakeOlmo2(&config);
  if (architecture == "gemma") MakeGemma(&config);
  if (architecture == "gemma2") MakeGemma2(&config);
  if (architecture == "gemma3_text") MakeGemma3(&config);
  return config;
}

std::shared_ptr<const ModelSource> MakeRandomModel(const ModelConfig& config, uint64_t seed) {
  return std::make_shared<RandomModel>(config, seed);
}

std::shared_ptr<const ScorePredictor> MakeRandomPredictor(const ModelConfig& config) {
  auto predictor = std::make_shared<ScorePredictor>(ScorePredictor::ShapedLike(config));
  std::mt19937_64 rng(config.num_heads);
  std::normal_distribution<float> normal;
  for (float& weight : predictor->weights)
    weight = 2 * normal(rng) / std::sqrt(static_cast<float>(config.hidden_size));
  for (float& bias : predictor->biases) bias = normal(rng);
  return predictor;
}

}  // namespace hydrant
