// What a config.json says, family by family: each reads its fields into a ModelConfig, with
// transformers' defaults where models rely on them, and refuses by its name what would change the
// arithmetic in a way that is not implemented. A field is read, or stands in a table of those that
// change nothing, or is refused. ParseHfConfig() validates the result.
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
  const char* architecture;  // what `architectures` says
  const char* model_type;
  absl::Status (*read)(HfFields& root, ModelConfig* config);
  const TensorNames& (*names)();
  std::span<const IdleField> idle;  // besides those of any family
};

// In the file of each: hf_gpt_neox.cc, hf_granite.cc, ...
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

// Fields that change nothing in transformers' forward pass, whatever the family.
std::span<const IdleField> IdleHfFields();

// What families share.

// Where a file is silent: what transformers' configuration class of the family has.
struct HfDefaults {
  int max_context = 0;            // 0: the file has to say it
  bool kv_heads_as_heads = true;  // false: the file has to say them
  int head_dim = 0;               // 0: hidden_size / num_attention_heads
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tied_embeddings = false;
  const char* activation = "silu";
  const char* activation_key = "hidden_act";
  const char* intermediate_key = "intermediate_size";
};

// A decoder with RMSNorm, RoPE and a gated feed-forward: its sizes, norm_eps, activation, tied
// embeddings, and of RoPE what stands outside its object. *rotated: the share of a head that turns.
absl::Status ReadHfDecoder(HfFields& root, const HfDefaults& defaults, ModelConfig* config,
                           double* rotated);
// The same, with its RoPE, of a family whose whole heads turn. Where config->sliding_rope is set,
// it is read too (ReadHfRopeOfKinds).
absl::Status ReadHfDecoder(HfFields& root, const HfDefaults& defaults, ModelConfig* config);
// attention_bias: of queries, keys, values and attention's output. mlp_bias: of the feed-forward.
absl::Status ReadHfBiases(HfFields& root, bool has_mlp_bias, ModelConfig* config);
// sliding_window, or `absent` where the file does not mention it; 0: null, which means none.
absl::Status ReadHfWindow(HfFields& root, int absent, int* window);
// layer_types, or what `is_sliding` says of each layer where the file has none. `window`: keys that
// a query of a sliding layer sees; 0: there is no window, and no layer may be sliding.
absl::Status ReadHfLayerTypes(HfFields& root, int window,
                              const std::function<bool(int layer)>& is_sliding,
                              ModelConfig* config);

// A mixture of experts: how many, under the file's key, how many a token has, and their width,
// under the file's key. Where a file is silent: what transformers has.
struct HfExpertKeys {
  const char* count = "num_local_experts";
  int default_count = 8, default_per_token = 2;
  const char* intermediate_size = "intermediate_size";
  int default_intermediate_size = 0;  // 0: the file has to say it
};
absl::Status ReadHfExperts(HfFields& root, const HfExpertKeys& keys, ModelConfig* config);

// What every file has to say: layers, widths (the feed-forward's under the file's key), heads and
// vocabulary. A KV head for each head, until the family says otherwise.
absl::Status ReadHfSizes(HfFields& root, const char* intermediate_key, ModelConfig* config);
// rope_scaling or rope_parameters, over what stands outside them under the family's own names.
// *rotated is the share of a head that turns, where the file says it there.
struct HfRopeRules {
  std::optional<int> original_context = {};  // where the family says it outside
  bool only_longrope = false;                // of all scalings, under older names, too
};
absl::Status ReadHfRope(HfFields& root, const HfRopeRules& rules, ModelConfig* config,
                        double* rotated);
// Where layers with a window have a RoPE of their own: both are set, but for what the file says in
// rope_parameters, by kind of layer, or in rope_scaling, which is of the layers without one.
// REQUIRES: config->sliding_rope is set.
absl::Status ReadHfRopeOfKinds(HfFields& root, ModelConfig* config);
// Where a head is hidden_size / num_attention_heads wide.
absl::Status SetHeadDim(ModelConfig* config);
// Of the feed-forward, under the file's key.
absl::Status ReadHfActivation(HfFields& root, const char* key, const char* otherwise,
                              ModelConfig* config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
