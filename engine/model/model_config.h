// The shape of a decoder-only transformer, as read from config.json or GGUF metadata. Plain data.
#ifndef HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_
#define HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/experts.h"

namespace hydrant {

// The two elements of a head that RoPE rotates together.
enum class RopePairing : uint8_t {
  kHalfSplit,    // (i, i + d/2): Hugging Face
  kInterleaved,  // (2i, 2i + 1): llama2.c, GGUF files of the llama architecture
};

// Frequency scaling of Llama 3.1 (Hugging Face rope_type "llama3").
struct Llama3RopeScaling {
  bool enabled = false;
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int original_context = 8192;
};

// Frequency scaling of YaRN (arXiv 2309.00071, section 3.2): pairs with more than beta_fast
// rotations within the original context keep their frequency, pairs with fewer than beta_slow are
// slowed by `factor`, pairs in between are blended.
struct YarnRopeScaling {
  bool enabled = false;
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int original_context = 4096;
  bool truncate = true;  // round the ends of the blend to whole pairs
};

// Frequency factors of LongRoPE (arXiv 2402.13753, section 3): one set for sequences of up to the
// original context, one for longer ones. Transformers switches sets when a sequence grows past it,
// without rotating cached keys again; here, if sequences may grow past it, the long factors apply
// from the first token on.
struct LongRopeScaling {
  std::vector<float> short_factors, long_factors;  // [rotary_dim / 2]; empty: none
  int original_context = 0;
};

// Rotary position embedding of queries and keys.
struct Rope {
  static Rope WithTheta(double theta) {
    Rope rope;
    rope.theta = theta;
    return rope;
  }

  double theta = 10000.0;
  double linear_factor = 1.0;  // positions are divided by it; 1 = none
  Llama3RopeScaling llama3;
  YarnRopeScaling yarn;
  LongRopeScaling long_rope;
  std::vector<float>
      freq_factors;  // GGUF rope_freqs.weight: frequencies are divided by these; empty = none
  // Factor of the rotated elements of queries and keys (temperature of YaRN and LongRoPE).
  double attention_factor = 1.0;
};

enum class NormKind : uint8_t {
  kRms,    // RMSNorm
  kLayer,  // LayerNorm, with a bias
};

// Position of the norms: on the input of attention and feed-forward, on their output, or both.
enum class NormPlacement : uint8_t { kBefore, kAfter, kBoth };

// RMSNorm of queries and keys before RoPE.
enum class QkNorm : uint8_t {
  kNone,
  kHead,   // per head, with a weight that the heads of a layer share
  kWhole,  // over all heads of a layer as one row
};

// Per-layer differences within a model.
struct LayerKind {
  int window = 0;        // keys visible to a query, its own included; 0: all before it
  bool rotated = true;   // whether RoPE applies, if the model has it
  bool sliding = false;  // uses ModelConfig::sliding_rope, if set
  bool dense = false;    // no experts, in a model with experts
};

// A mixture of experts: a router selects a few feed-forwards for each row (kernels/ops/experts.h).
struct Experts {
  int count = 0;
  int per_token = 0;
  int intermediate_size = 0;  // of each expert
  ExpertWeights weights = ExpertWeights::kOfChosen;
  bool shared = false;  // layers with experts also have the dense feed-forward
  bool router_bias = false, biases = false;
};

// The matrices of a layer that have a bias. LayerNorm always has one.
struct Biases {
  bool qkv = false, attention_output = false, feed_forward = false;
};

// Defaults are Llama's; other families set their differences.
struct ModelConfig {
  std::string architecture;  // the family, by transformers' name (model_type)
  std::string name;          // the name in the file; may be empty
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_context = 0;  // positions the model was trained for
  double norm_eps = 1e-5;
  Rope rope;
  std::optional<Rope> sliding_rope = {};  // of layers with `sliding`; unset: `rope`
  RopePairing rope_pairing = RopePairing::kHalfSplit;
  std::optional<int> rotary_dim = {};  // elements of a head that RoPE rotates; unset: all
  std::vector<LayerKind> layer_kinds;  // [num_layers], or empty: each is LayerKind()
  bool tied_embeddings = false;
  bool learned_positions = false;  // a position embedding is added to the token's
  NormKind norm = NormKind::kRms;
  NormPlacement norm_placement = NormPlacement::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  Biases biases;
  // down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
  bool gated = true;
  Activation activation = Activation::kSilu;
  // In all layers but the dense ones; intermediate_size then applies to dense layers and to the
  // shared feed-forward.
  std::optional<Experts> experts = {};
  // x + attention(norm(x)) + feed-forward(norm'(x)) instead of feeding the sum to the feed-forward.
  bool parallel_residual = false;
  std::optional<double> attention_scale = {};  // of q k^T; unset: 1 / sqrt(head_dim)
  // Bound of attention's logits, and of the model's (Gemma 2, arXiv 2408.00118, section 2); 0:
  // none.
  double attention_softcap = 0.0;
  // Each query head has an additional logit in its softmax that belongs to no key (GPT-OSS).
  bool sink_logits = false;
  double logit_softcap = 0.0;
  double embedding_scale = 1.0;  // factor of a token's embedding
  double residual_scale = 1.0;   // factor of the outputs of attention and feed-forward
  double logit_scale = 1.0;

  int GroupSize() const { return num_heads / num_kv_heads; }
  int KvDim() const { return num_kv_heads * head_dim; }
  int QDim() const { return num_heads * head_dim; }
  int RotaryDim() const { return rotary_dim.value_or(head_dim); }
  // Elements of a head that RoPE rotates in this layer.
  int RotaryDimOf(int layer) const { return KindOf(layer).rotated ? RotaryDim() : 0; }
  LayerKind KindOf(int layer) const {
    return layer_kinds.empty() ? LayerKind() : layer_kinds[layer];
  }
  bool HasExperts(int layer) const { return experts.has_value() && !KindOf(layer).dense; }
  bool HasDense(int layer) const { return !HasExperts(layer) || experts->shared; }
  bool HasDense() const;  // in any layer
  const Rope& RopeOf(int layer) const {
    return sliding_rope.has_value() && KindOf(layer).sliding ? *sliding_rope : rope;
  }
  // The window of the layers with one; 0: no layer has one.
  int Window() const;
  double AttentionScale() const;
};

// Sets a window in every layer; 0: none.
void SetWindow(int window, ModelConfig* config);

// Checks every field against the others and against sane bounds; the message names the field and
// its limit.
absl::Status ValidateConfig(const ModelConfig& config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_
