// Fields common to the config.json files of Llama and of similar families.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status ReadSizes(HfFields& root, const HfDefaults& defaults, ModelConfig* c) {
  c->max_context = defaults.max_context;
  HYDRANT_RETURN_IF_ERROR(ReadHfSizes(root, defaults.intermediate_key, c));
  HYDRANT_RETURN_IF_ERROR(
      ReadInt(root, "max_position_embeddings", defaults.max_context == 0, &c->max_context));
  HYDRANT_RETURN_IF_ERROR(
      ReadInt(root, "num_key_value_heads", !defaults.kv_heads_as_heads, &c->num_kv_heads));
  if (root.Find("head_dim") != nullptr) return ReadInt(root, "head_dim", true, &c->head_dim);
  c->head_dim = defaults.head_dim;
  return defaults.head_dim == 0 ? SetHeadDim(c) : absl::OkStatus();
}

}  // namespace

absl::Status ReadHfDecoder(HfFields& root, const HfDefaults& defaults, ModelConfig* c,
                           double* rotated) {
  HYDRANT_RETURN_IF_ERROR(ReadSizes(root, defaults, c));
  c->norm_eps = defaults.norm_eps;
  c->tied_embeddings = defaults.tied_embeddings;
  c->rope.theta = defaults.rope_theta;
  *rotated = 1.0;
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rms_norm_eps", false, &c->norm_eps));
  HYDRANT_RETURN_IF_ERROR(ReadBool(root, "tie_word_embeddings", &c->tied_embeddings));
  HYDRANT_RETURN_IF_ERROR(ReadHfActivation(root, defaults.activation_key, defaults.activation, c));
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rope_theta", false, &c->rope.theta));
  return ReadReal(root, "partial_rotary_factor", false, rotated);
}

absl::Status ReadHfDecoder(HfFields& root, const HfDefaults& defaults, ModelConfig* c) {
  double rotated = 1.0;
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, defaults, c, &rotated));
  HYDRANT_RETURN_IF_ERROR(c->sliding_rope.has_value() ? ReadHfRopeOfKinds(root, c)
                                                      : ReadHfRope(root, {}, c, &rotated));
  if (rotated == 1.0) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("partial_rotary_factor is ", rotated, ", only 1 is supported"));
}

absl::Status ReadHfBiases(HfFields& root, bool has_mlp_bias, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadBool(root, "attention_bias", &c->biases.qkv));
  c->biases.attention_output = c->biases.qkv;
  return has_mlp_bias ? ReadBool(root, "mlp_bias", &c->biases.feed_forward) : absl::OkStatus();
}

absl::Status ReadHfWindow(HfFields& root, int absent, int* window) {
  *window = root.Contains("sliding_window") ? 0 : absent;
  if (root.Find("sliding_window") == nullptr) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "sliding_window", true, window));
  if (*window > 0) return absl::OkStatus();
  return absl::InvalidArgumentError("sliding_window is 0, wanted null or at least 1");
}

absl::Status ReadHfLayerTypes(HfFields& root, int window,
                              const std::function<bool(int layer)>& is_sliding, ModelConfig* c) {
  const nlohmann::json* types = root.Find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != size_t(c->num_layers)))
    return WrongField("layer_types", *types, "a string for each of num_hidden_layers");
  c->layer_kinds.resize(c->num_layers);
  for (int layer = 0; layer < c->num_layers; ++layer) {
    bool sliding = is_sliding(layer);
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[layer];
      sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention") {
        return WrongField(absl::StrCat("layer_types[", layer, "]").c_str(), type,
                          "full_attention or sliding_attention");
      }
    }
    if (sliding && window == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", layer, " is one of sliding_attention, but the file has no sliding_window"));
    }
    c->layer_kinds[layer].sliding = sliding;
    c->layer_kinds[layer].window = sliding && window < c->max_context ? window : 0;
  }
  return absl::OkStatus();
}

absl::Status ReadHfExperts(HfFields& root, const HfExpertKeys& keys, ModelConfig* c) {
  Experts& experts = c->experts.emplace();
  experts.count = keys.default_count;
  experts.per_token = keys.default_per_token;
  experts.intermediate_size = keys.default_intermediate_size;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, keys.count, false, &experts.count));
  if (keys.newer_count != nullptr) {
    int count = experts.count;
    const bool both = root.Find(keys.count) != nullptr;
    HYDRANT_RETURN_IF_ERROR(ReadInt(root, keys.newer_count, false, &count));
    if (both && count != experts.count) {
      return absl::InvalidArgumentError(absl::StrCat(keys.count, " is ", experts.count, ", but ",
                                                     keys.newer_count, " is ", count));
    }
    experts.count = count;
  }
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "num_experts_per_tok", false, &experts.per_token));
  return ReadInt(root, keys.intermediate_size, keys.default_intermediate_size == 0,
                 &experts.intermediate_size);
}

}  // namespace hydrant
