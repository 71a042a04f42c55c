// Llama, and Mistral without a sliding window, whose arithmetic is the same.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

absl::Status CheckSameArithmetic(HfFields& root, bool is_mistral) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (absl::Status s = WantValue(root, key, false, "biases are not supported"); !s.ok()) return s;
  }
  std::string activation = "silu";
  if (absl::Status s = ReadString(root, "hidden_act", &activation); !s.ok()) return s;
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
  if (absl::Status s = ReadHfSizes(root, "intermediate_size", c); !s.ok()) return s;
  if (absl::Status s = ReadInt(root, "max_position_embeddings", is_mistral, &c->max_context);
      !s.ok())
    return s;
  if (absl::Status s = ReadInt(root, "num_key_value_heads", is_mistral, &c->num_kv_heads); !s.ok())
    return s;
  if (root.Find("head_dim") != nullptr) {
    if (absl::Status s = ReadInt(root, "head_dim", true, &c->head_dim); !s.ok()) return s;
  } else if (absl::Status s = SetHeadDim(c); !s.ok()) {
    return s;
  }
  if (absl::Status s = ReadReal(root, "rms_norm_eps", false, &c->norm_eps); !s.ok()) return s;
  return ReadBool(root, "tie_word_embeddings", &c->tied_embeddings);
}

absl::Status ReadLlamaOrMistral(HfFields& root, bool is_mistral, ModelConfig* config) {
  config->architecture = "llama";
  if (absl::Status s = CheckSameArithmetic(root, is_mistral); !s.ok()) return s;
  if (absl::Status s = ReadSizes(root, is_mistral, config); !s.ok()) return s;
  double rotated = 1.0;
  if (absl::Status s = ReadReal(root, "rope_theta", false, &config->rope_theta); !s.ok()) return s;
  if (absl::Status s = ReadReal(root, "partial_rotary_factor", false, &rotated); !s.ok()) return s;
  if (absl::Status s = ReadHfRope(root, config, &rotated); !s.ok()) return s;
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
