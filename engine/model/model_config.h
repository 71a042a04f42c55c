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

// Which two elements of a head RoPE turns together.
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

// Frequency scaling of YaRN (arXiv 2309.00071, section 3.2): pairs that turn more than beta_fast
// times within the original context stay, those that turn less than beta_slow times are slowed by
// `factor`, those in between are blended.
struct YarnRopeScaling {
  bool enabled = false;
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int original_context = 4096;
  bool truncate = true;  // the ends of the blend are whole pairs
};

// Frequency factors of LongRoPE (arXiv 2402.13753, section 3): one set for sequences of up to the
// original context, one for all others. Transformers changes from one to the other when a sequence
// grows past it, and leaves the keys that it has turned; here a model whose sequences may grow past
// it has the long ones from the first token on.
struct LongRopeScaling {
  std::vector<float> short_factors, long_factors;  // [rotary_dim / 2]; empty: none
  int original_context = 0;
};

// How positions turn queries and keys.
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
  // Turned elements of queries and of keys are multiplied by it (YaRN's and LongRoPE's
  // temperature).
  double attention_factor = 1.0;
};

enum class NormKind : uint8_t {
  kRms,    // RMSNorm
  kLayer,  // LayerNorm, with a bias
};

// Where a layer normalises: what attention and feed-forward read, or what they write.
enum class NormPlacement : uint8_t { kBefore, kAfter, kBoth };

// What RMSNorm does to queries and keys before they turn.
enum class QkNorm : uint8_t {
  kNone,
  kHead,   // each head alone, with a weight that the heads of a layer share
  kWhole,  // all heads of a layer as one row
};

// What tells the layers of a model apart.
struct LayerKind {
  int window = 0;        // keys that a query sees, its own included; 0: all before it
  bool rotated = true;   // by RoPE, where the model has it
  bool sliding = false;  // by ModelConfig::sliding_rope, where the model has that
  bool dense = false;    // no experts, where the model has some
};

// A mixture of experts: feed-forwards of which each row takes a few, chosen by the product of a
// router (kernels/ops/experts.h).
struct Experts {
  int count = 0;
  int per_token = 0;
  int intermediate_size = 0;  // of each
  ExpertWeights weights = ExpertWeights::kOfChosen;
  bool shared = false;  // the layers that have experts have the dense feed-forward, too
  bool router_bias = false, biases = false;
};

// Which matrices of a layer have a bias. LayerNorm has one in any case.
struct Biases {
  bool qkv = false, attention_output = false, feed_forward = false;
};

// Defaults are what Llama does; the other families say where they differ.
struct ModelConfig {
  std::string architecture;  // the family, by the name that transformers gives it (model_type)
  std::string name;          // as the file calls itself, may be empty
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
  std::optional<Rope> sliding_rope = {};  // of the layers that say so; unset: `rope`
  RopePairing rope_pairing = RopePairing::kHalfSplit;
  std::optional<int> rotary_dim = {};  // elements of a head that RoPE turns; unset: all
  std::vector<LayerKind> layer_kinds;  // [num_layers], or empty: each is LayerKind()
  bool tied_embeddings = false;
  bool learned_positions = false;  // the embedding has a row for each position, too
  NormKind norm = NormKind::kRms;
  NormPlacement norm_placement = NormPlacement::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  Biases biases;
  // down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
  bool gated = true;
  Activation activation = Activation::kSilu;
  // In all layers but the dense ones; intermediate_size is of what has none, and of what is shared.
  std::optional<Experts> experts = {};
  // x + attention(norm(x)) + feed-forward(norm'(x)), where others give the feed-forward the sum.
  bool parallel_residual = false;
  std::optional<double> attention_scale = {};  // of q k^T; unset: 1 / sqrt(head_dim)
  // Logits of attention, and of the model, lie within +- these (Gemma 2, arXiv 2408.00118, section
  // 2); 0: they are as they are.
  double attention_softcap = 0.0;
  // Each query head has a logit that takes part in its softmax, of no key (GPT-OSS).
  bool sink_logits = false;
  double logit_softcap = 0.0;
  double embedding_scale = 1.0;  // of a token's row
  double residual_scale = 1.0;   // of what attention and feed-forward add
  double logit_scale = 1.0;

  int GroupSize() const { return num_heads / num_kv_heads; }
  int KvDim() const { return num_kv_heads * head_dim; }
  int QDim() const { return num_heads * head_dim; }
  int RotaryDim() const { return rotary_dim.value_or(head_dim); }
  // Elements of a head that RoPE turns in this layer.
  int RotaryDimOf(int layer) const { return KindOf(layer).rotated ? RotaryDim() : 0; }
  LayerKind KindOf(int layer) const {
    return layer_kinds.empty() ? LayerKind() : layer_kinds[layer];
  }
  bool HasExperts(int layer) const { return experts.has_value() && !KindOf(layer).dense; }
  bool HasDense(int layer) const { return !HasExperts(layer) || experts->shared; }
  bool HasDense() const;  // in some layer
  const Rope& RopeOf(int layer) const {
    return sliding_rope.has_value() && KindOf(layer).sliding ? *sliding_rope : rope;
  }
  // The window of the layers that have one; 0: none has.
  int Window() const;
  double AttentionScale() const;
};

// A window for every layer; 0: none.
void SetWindow(int window, ModelConfig* config);

// Checks every field against the others and against sane bounds; the message names the field and
// its limit.
absl::Status ValidateConfig(const ModelConfig& config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_
