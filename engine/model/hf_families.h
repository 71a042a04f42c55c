// Reads config.json family by family: each family reads its fields into a ModelConfig, with
// transformers' defaults if models rely on them, and refuses, by name, anything that would change
// the arithmetic in a way not implemented. A field is read, or listed as idle, or refused.
// ParseHfConfig() validates the result.
#ifndef HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
#define HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_

#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "engine/model/hf_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"

namespace hydrant {

struct HfFamily {
  const char* architecture;  // value of `architectures`
  const char* model_type;
  absl::Status (*read)(HfFields& root, ModelConfig* config);
  const TensorNames& (*names)();
  std::span<const IdleField> idle;  // in addition to IdleHfFields()
};

// Each in its own file: hf_gpt_neox.cc, hf_granite.cc, ...
std::span<const HfFamily> HfGemmaFamilies();
std::span<const HfFamily> HfGptNeoxFamily();
std::span<const HfFamily> HfGptOssFamily();
std::span<const HfFamily> HfGraniteFamilies();
std::span<const HfFamily> HfLlamaFamilies();  // and Mistral
std::span<const HfFamily> HfMixtralFamily();
std::span<const HfFamily> HfOlmoFamilies();
std::span<const HfFamily> HfOptFamily();
std::span<const HfFamily> HfPhi3Family();
std::span<const HfFamily> HfQwenFamilies();
std::span<const HfFamily> HfSmolLm3Family();

// Fields that change nothing in transformers' forward pass, for every family.
std::span<const IdleField> IdleHfFields();

// Readers shared by families.

// Values of fields that the file omits: those of the family's configuration class in transformers.
struct HfDefaults {
  int max_context = 0;            // 0: the file must give it
  bool kv_heads_as_heads = true;  // false: the file must give num_key_value_heads
  int head_dim = 0;               // 0: hidden_size / num_attention_heads
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tied_embeddings = false;
  const char* activation = "silu";
  const char* activation_key = "hidden_act";
  const char* intermediate_key = "intermediate_size";
};

// A decoder with RMSNorm, RoPE and a gated feed-forward: its sizes, norm_eps, activation, tied
// embeddings, and the fields of RoPE outside its own object. *rotated: the fraction of a head that
// RoPE rotates.
absl::Status ReadHfDecoder(HfFields& root, const HfDefaults& defaults, ModelConfig* config,
                           double* rotated);
// The same including RoPE, for a family that rotates whole heads. If config->sliding_rope is set,
// it is read too (ReadHfRopeOfKinds).
absl::Status ReadHfDecoder(HfFields& root, const HfDefaults& defaults, ModelConfig* config);
// attention_bias covers queries, keys, values and attention's output; mlp_bias the feed-forward.
absl::Status ReadHfBiases(HfFields& root, bool has_mlp_bias, ModelConfig* config);
// sliding_window, or `absent` if the file omits it; null gives 0, no window.
absl::Status ReadHfWindow(HfFields& root, int absent, int* window);
// layer_types, or `is_sliding` of each layer if the file omits it. `window`: keys visible to a
// query of a sliding layer; 0: no window, and no layer may be sliding.
absl::Status ReadHfLayerTypes(HfFields& root, int window,
                              const std::function<bool(int layer)>& is_sliding,
                              ModelConfig* config);

// A mixture of experts: the keys of the number of experts, of experts per token and of their width.
// Defaults are transformers'.
struct HfExpertKeys {
  const char* count = "num_local_experts";
  const char* newer_count = nullptr;  // its name in files of newer versions of transformers
  int default_count = 8, default_per_token = 2;
  const char* intermediate_size = "intermediate_size";
  int default_intermediate_size = 0;  // 0: the file must give it
};
absl::Status ReadHfExperts(HfFields& root, const HfExpertKeys& keys, ModelConfig* config);

// The required fields: layers, widths (the feed-forward's under the given key), heads and
// vocabulary. KV heads default to the number of heads.
absl::Status ReadHfSizes(HfFields& root, const char* intermediate_key, ModelConfig* config);
// Reads rope_scaling or rope_parameters, which take precedence over the family's own fields outside
// them. *rotated is the fraction of a head that RoPE rotates, if given there.
struct HfRopeRules {
  std::optional<int> original_context = {};  // if the family has a field for it outside
  bool only_longrope = false;                // accept no other scaling; older type names too
};
absl::Status ReadHfRope(HfFields& root, const HfRopeRules& rules, ModelConfig* config,
                        double* rotated);
// For models with a separate RoPE in layers with a window. Both hold the family's defaults; the
// file overrides them in rope_parameters, by kind of layer, or in rope_scaling, which applies to
// layers without a window. REQUIRES: config->sliding_rope is set.
absl::Status ReadHfRopeOfKinds(HfFields& root, ModelConfig* config);
// For families with head_dim = hidden_size / num_attention_heads.
absl::Status SetHeadDim(ModelConfig* config);
// The feed-forward's activation, under the given key.
absl::Status ReadHfActivation(HfFields& root, const char* key, const char* otherwise,
                              ModelConfig* config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
