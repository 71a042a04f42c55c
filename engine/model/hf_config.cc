#include "engine/model/hf_config.h"

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_file.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

using nlohmann::json;

// Null where the key is missing or its value is null: transformers treats both alike.
const json* FindField(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status WrongField(const char* key, const json& value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", Quoted(value.dump(-1, ' ', true, json::error_handler_t::replace)),
                   ", wanted ", wanted));
}

// A missing field leaves *out alone, unless it is required.
absl::Status ReadInt(const json& object, const char* key, bool required, int* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) {
    return required ? absl::NotFoundError(absl::StrCat(key, " is missing")) : absl::OkStatus();
  }
  constexpr int kMax = std::numeric_limits<int>::max();
  if (!value->is_number_unsigned() || value->get<uint64_t>() > uint64_t{kMax}) {
    return WrongField(key, *value, "an integer from 0 to 2147483647");
  }
  *out = static_cast<int>(value->get<uint64_t>());
  return absl::OkStatus();
}

absl::Status ReadReal(const json& object, const char* key, bool required, double* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) {
    return required ? absl::NotFoundError(absl::StrCat(key, " is missing")) : absl::OkStatus();
  }
  if (!value->is_number()) return WrongField(key, *value, "a number");
  *out = value->get<double>();
  return absl::OkStatus();
}

absl::Status ReadBool(const json& object, const char* key, bool* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongField(key, *value, "true or false");
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(const json& object, const char* key, std::string* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongField(key, *value, "a string");
  *out = value->get<std::string>();
  return absl::OkStatus();
}

// "LlamaForCausalLM" or "MistralForCausalLM", from architectures or else model_type.
absl::StatusOr<std::string> ReadArchitecture(const json& root) {
  std::string name;
  if (const json* list = FindField(root, "architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      return WrongField("architectures", *list, "an array of one string");
    }
    name = list->front().get<std::string>();
  } else {
    std::string type;
    if (absl::Status s = ReadString(root, "model_type", &type); !s.ok()) return s;
    if (type.empty()) return absl::NotFoundError("architectures is missing");
    if (type == "llama") name = "LlamaForCausalLM";
    if (type == "mistral") name = "MistralForCausalLM";
    if (name.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("model_type is ", Quoted(type), ", 'llama' and 'mistral' are supported"));
    }
  }
  if (name != "LlamaForCausalLM" && name != "MistralForCausalLM") {
    return absl::UnimplementedError(
        absl::StrCat("architectures is ", Quoted(name),
                     ", LlamaForCausalLM and MistralForCausalLM are supported"));
  }
  return name;
}

absl::Status CheckSameArithmetic(const json& root, bool is_mistral) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    bool bias = false;
    if (absl::Status s = ReadBool(root, key, &bias); !s.ok()) return s;
    if (bias)
      return absl::UnimplementedError(absl::StrCat(key, " is true; biases are not supported"));
  }
  std::string activation = "silu";
  if (absl::Status s = ReadString(root, "hidden_act", &activation); !s.ok()) return s;
  if (activation != "silu") {
    return absl::UnimplementedError(
        absl::StrCat("hidden_act is ", Quoted(activation), ", only 'silu' is supported"));
  }
  double rotated = 1.0;
  if (absl::Status s = ReadReal(root, "partial_rotary_factor", false, &rotated); !s.ok()) return s;
  if (rotated != 1.0) {
    return absl::UnimplementedError(
        absl::StrCat("partial_rotary_factor is ", rotated, ", only 1 is supported"));
  }
  // A Mistral file that does not mention the window has one of 4096.
  if (is_mistral && !root.contains("sliding_window")) {
    return absl::UnimplementedError(
        "sliding_window is missing, which means 4096 for Mistral; only null is supported");
  }
  if (const json* window = FindField(root, "sliding_window"); window != nullptr && *window != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "sliding_window is ", Quoted(window->dump(-1, ' ', true, json::error_handler_t::replace)),
        ", only null is supported"));
  }
  if (root.contains("quantization_config")) {
    return absl::UnimplementedError(
        "quantization_config is set; only F32, F16 and BF16 weights are supported");
  }
  return absl::OkStatus();
}

// Defaults of transformers' LlamaConfig where a field is optional there and models rely on it.
absl::Status ReadSizes(const json& root, bool is_mistral, ModelConfig* c) {
  c->max_context = 2048;
  c->norm_eps = 1e-6;
  const struct {
    const char* key;
    bool required;
    int* out;
  } fields[] = {{"num_hidden_layers", true, &c->num_layers},
                {"hidden_size", true, &c->hidden_size},
                {"intermediate_size", true, &c->intermediate_size},
                {"num_attention_heads", true, &c->num_heads},
                {"vocab_size", true, &c->vocab_size},
                {"max_position_embeddings", is_mistral, &c->max_context}};
  for (const auto& f : fields) {
    if (absl::Status s = ReadInt(root, f.key, f.required, f.out); !s.ok()) return s;
  }
  c->num_kv_heads = c->num_heads;
  if (absl::Status s = ReadInt(root, "num_key_value_heads", is_mistral, &c->num_kv_heads); !s.ok())
    return s;
  if (FindField(root, "head_dim") != nullptr) {
    if (absl::Status s = ReadInt(root, "head_dim", true, &c->head_dim); !s.ok()) return s;
  } else if (c->num_heads > 0 && c->hidden_size % c->num_heads == 0) {
    c->head_dim = c->hidden_size / c->num_heads;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("num_attention_heads is ", c->num_heads,
                                                   ", it must divide hidden_size, which is ",
                                                   c->hidden_size));
  }
  if (absl::Status s = ReadReal(root, "rms_norm_eps", false, &c->norm_eps); !s.ok()) return s;
  return ReadBool(root, "tie_word_embeddings", &c->tied_embeddings);
}

absl::Status ReadLlama3(const json& scaling, Llama3RopeScaling* out) {
  out->enabled = true;
  if (absl::Status s = ReadReal(scaling, "factor", true, &out->factor); !s.ok()) return s;
  if (absl::Status s = ReadReal(scaling, "low_freq_factor", true, &out->low_freq_factor); !s.ok())
    return s;
  if (absl::Status s = ReadReal(scaling, "high_freq_factor", true, &out->high_freq_factor); !s.ok())
    return s;
  return ReadInt(scaling, "original_max_position_embeddings", true, &out->original_context);
}

absl::Status ReadScaling(const json& scaling, ModelConfig* c) {
  std::string type = "default";
  if (absl::Status s = ReadString(scaling, "type", &type); !s.ok()) return s;  // the older name
  if (absl::Status s = ReadString(scaling, "rope_type", &type); !s.ok()) return s;
  if (type == "default") return absl::OkStatus();
  if (type == "linear") return ReadReal(scaling, "factor", true, &c->rope_linear_factor);
  if (type == "llama3") return ReadLlama3(scaling, &c->llama3);
  return absl::UnimplementedError(
      absl::StrCat("rope_type is ", Quoted(type), "; default, linear and llama3 are supported"));
}

// transformers 5 keeps everything in rope_parameters; before, rope_theta stood alone beside
// rope_scaling.
absl::Status ReadRope(const json& root, ModelConfig* c) {
  if (absl::Status s = ReadReal(root, "rope_theta", false, &c->rope_theta); !s.ok()) return s;
  const char* key =
      FindField(root, "rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* scaling = FindField(root, key);
  if (scaling == nullptr) return absl::OkStatus();
  if (!scaling->is_object()) return WrongField(key, *scaling, "an object or null");
  for (const auto& [name, value] : scaling->items()) {
    if (value.is_object()) {
      return absl::UnimplementedError(absl::StrCat(key, " differs by kind of layer (", Quoted(name),
                                                   "); this is not supported"));
    }
  }
  double rotated = 1.0;
  absl::Status status = ReadReal(*scaling, "rope_theta", false, &c->rope_theta);
  if (status.ok()) status = ReadReal(*scaling, "partial_rotary_factor", false, &rotated);
  if (status.ok() && rotated != 1.0) {
    status = absl::UnimplementedError(
        absl::StrCat("partial_rotary_factor is ", rotated, ", only 1 is supported"));
  }
  if (status.ok()) status = ReadScaling(*scaling, c);
  return WithContext(status, key);
}

absl::Status ReadWeightType(const json& root, HfConfig* config) {
  std::string type = "float32";
  if (absl::Status s = ReadString(root, "torch_dtype", &type); !s.ok()) return s;
  if (absl::Status s = ReadString(root, "dtype", &type); !s.ok()) return s;
  // Half precision is stored as bfloat16 in dummy weights: the same bytes, and nothing else uses
  // this field.
  config->weight_dtype = type == "bfloat16" || type == "float16" ? DType::kBF16 : DType::kF32;
  if (absl::Status s = ReadReal(root, "initializer_range", false, &config->initializer_range);
      !s.ok())
    return s;
  if (!(config->initializer_range > 0 && config->initializer_range <= 10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "initializer_range is ", config->initializer_range, ", the limit is above 0 to 10"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(std::string_view json_text) {
  const absl::StatusOr<json> root = ParseJsonObject(json_text);
  if (!root.ok()) return root.status();
  const absl::StatusOr<std::string> architecture = ReadArchitecture(*root);
  if (!architecture.ok()) return architecture.status();
  const bool is_mistral = *architecture == "MistralForCausalLM";
  HfConfig config;
  config.model.architecture = "llama";
  config.model.rope_pairing = RopePairing::kHalfSplit;
  if (absl::Status s = ReadString(*root, "_name_or_path", &config.model.name); !s.ok()) return s;
  if (absl::Status s = CheckSameArithmetic(*root, is_mistral); !s.ok()) return s;
  if (absl::Status s = ReadSizes(*root, is_mistral, &config.model); !s.ok()) return s;
  if (absl::Status s = ReadRope(*root, &config.model); !s.ok()) return s;
  if (absl::Status s = ReadWeightType(*root, &config); !s.ok()) return s;
  if (absl::Status s = ValidateConfig(config.model); !s.ok()) return s;
  return config;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const std::span<const uint8_t> bytes = (*file)->bytes();
  constexpr size_t kMaxBytes = size_t{1} << 20;  // real ones are about a kilobyte
  if (bytes.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(path), " has ", bytes.size(), " bytes, the limit is ", kMaxBytes));
  }
  absl::StatusOr<HfConfig> config =
      ParseHfConfig(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!config.ok()) return WithContext(config.status(), Quoted(path));
  return config;
}

}  // namespace hydrant
