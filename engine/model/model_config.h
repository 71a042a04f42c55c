// The shape of a decoder-only transformer, as read from config.json or GGUF metadata. Plain data.
#ifndef HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_
#define HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops/elementwise.h"

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

enum class NormKind : uint8_t {
  kRms,    // RMSNorm
  kLayer,  // LayerNorm, with a bias
};

// Defaults are what Llama does; the other families say where they differ.
struct ModelConfig {
  std::string architecture;  // "llama", "opt" or "gpt_neox"
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
  double rope_theta = 10000.0;
  double rope_linear_factor = 1.0;  // positions are divided by it; 1 = none
  Llama3RopeScaling llama3;
  std::vector<float>
      rope_freq_factors;  // GGUF rope_freqs.weight: frequencies are divided by these; empty = none
  RopePairing rope_pairing = RopePairing::kHalfSplit;
  bool tied_embeddings = false;
  NormKind norm = NormKind::kRms;
  std::optional<int> rotary_dim = {};         // elements of a head that RoPE turns; unset: all
  bool learned_positions = false;             // the embedding has a row for each position, too
  std::optional<Activation> activation = {};  // of a plain feed-forward; unset: SwiGLU, two inputs
  // x + attention(norm(x)) + feed-forward(norm'(x)), where others give the feed-forward the sum.
  bool parallel_residual = false;

  int GroupSize() const { return num_heads / num_kv_heads; }
  int KvDim() const { return num_kv_heads * head_dim; }
  int QDim() const { return num_heads * head_dim; }
  int RotaryDim() const { return rotary_dim.value_or(head_dim); }
};

// Checks every field against the others and against sane bounds; the message names the field and
// its limit.
absl::Status ValidateConfig(const ModelConfig& config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_CONFIG_H_
