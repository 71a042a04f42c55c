// Llama, and Mistral without a sliding window, whose arithmetic is the same.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status CheckSameArithmetic(HfFields& root, bool is_mistral) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    HYDRANT_RETURN_IF_ERROR(WantValue(root, key, false, "biases are not supported"));
  }
  std::string activation = "silu";
  HYDRANT_RETURN_IF_ERROR(ReadString(root, "hidden_act", &activation));
  if (activation != "silu") {
    return absl::UnimplementedError(
        absl::StrCat("hidden_act is ", Quoted(activation), ", only 'silu' is supported"));
  }
  // A Mistral file that does not mention the window has one of 4096.
  if (is_mistral && !root.Contains("sliding_window")) {
    return absl::UnimplementedError(
        "sliding_window is missing, which means 4096 for Mistral; only null is supported");
  }
  const nlohmann::json* window = root.Find("sliding_window");
  return window == nullptr ? absl::OkStatus() : WrongField("sliding_window", *window, "null");
}

// Defaults of transformers' LlamaConfig where a field is optional there and models rely on it.
absl::Status ReadSizes(HfFields& root, bool is_mistral, ModelConfig* c) {
  c->max_context = 2048;
  c->norm_eps = 1e-6;
  HYDRANT_RETURN_IF_ERROR(ReadHfSizes(root, "intermediate_size", c));
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "max_position_embeddings", is_mistral, &c->max_context));
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "num_key_value_heads", is_mistral, &c->num_kv_heads));
  if (root.Find("head_dim") != nullptr) {
    HYDRANT_RETURN_IF_ERROR(ReadInt(root, "head_dim", true, &c->head_dim));
  } else {
    HYDRANT_RETURN_IF_ERROR(SetHeadDim(c));
  }
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rms_norm_eps", false, &c->norm_eps));
  return ReadBool(root, "tie_word_embeddings", &c->tied_embeddings);
}

absl::Status ReadLlamaOrMistral(HfFields& root, bool is_mistral, ModelConfig* config) {
  config->architecture = "llama";
  HYDRANT_RETURN_IF_ERROR(CheckSameArithmetic(root, is_mistral));
  HYDRANT_RETURN_IF_ERROR(ReadSizes(root, is_mistral, config));
  double rotated = 1.0;
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rope_theta", false, &config->rope_theta));
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "partial_rotary_factor", false, &rotated));
  HYDRANT_RETURN_IF_ERROR(ReadHfRope(root, config, &rotated));
  if (rotated == 1.0) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("partial_rotary_factor is ", rotated, ", only 1 is supported"));
}

}  // namespace

absl::Status ReadHfLlama(HfFields& root, ModelConfig* config) {
  return ReadLlamaOrMistral(root, false, config);
}

absl::Status ReadHfMistral(HfFields& root, ModelConfig* config) {
  return ReadLlamaOrMistral(root, true, config);
}

}  // namespace hydrant
