#include "engine/model/hf_config.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/hf_fields.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_file.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

using nlohmann::json;

struct Family {
  const char* architecture;
  const char* model_type;
  absl::Status (*read)(const json& root, ModelConfig* config);
};
constexpr Family kFamilies[] = {{"LlamaForCausalLM", "llama", ReadHfLlama},
                                {"MistralForCausalLM", "mistral", ReadHfMistral},
                                {"OPTForCausalLM", "opt", ReadHfOpt},
                                {"GPTNeoXForCausalLM", "gpt_neox", ReadHfGptNeox}};

absl::Status UnknownFamily(const char* key, const std::string& value,
                           const char* Family::*supported) {
  std::string list;
  for (const Family& family : kFamilies)
    absl::StrAppend(&list, list.empty() ? "" : ", ", family.*supported);
  return absl::UnimplementedError(
      absl::StrCat(key, " is ", Quoted(value), "; supported are ", list));
}

// By architectures, or else by model_type.
absl::StatusOr<const Family*> FindFamily(const json& root) {
  if (const json* list = FindField(root, "architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      return WrongField("architectures", *list, "an array of one string");
    }
    const auto name = list->front().get<std::string>();
    for (const Family& family : kFamilies) {
      if (name == family.architecture) return &family;
    }
    return UnknownFamily("architectures", name, &Family::architecture);
  }
  std::string type;
  if (absl::Status s = ReadString(root, "model_type", &type); !s.ok()) return s;
  if (type.empty()) return absl::NotFoundError("architectures is missing");
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return &family;
  }
  return UnknownFamily("model_type", type, &Family::model_type);
}

absl::Status ReadWeightType(const json& root, HfConfig* config) {
  std::string type = "float32";
  if (absl::Status s = ReadString(root, "torch_dtype", &type); !s.ok()) return s;
  if (absl::Status s = ReadString(root, "dtype", &type); !s.ok()) return s;
  // Half precision is stored as bfloat16 in dummy weights: the same bytes, and nothing else uses
  // this field.
  config->weight_dtype = type == "bfloat16" || type == "float16" ? DType::kBF16 : DType::kF32;
  for (const char* key : {"init_std", "initializer_range"}) {  // OPT's name, and the others'
    if (absl::Status s = ReadReal(root, key, false, &config->initializer_range); !s.ok()) return s;
  }
  if (!(config->initializer_range > 0 && config->initializer_range <= 10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "initializer_range is ", config->initializer_range, ", the limit is above 0 to 10"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadHfSizes(const json& root, const char* intermediate_key, ModelConfig* c) {
  const std::pair<const char*, int*> fields[] = {{"num_hidden_layers", &c->num_layers},
                                                 {"hidden_size", &c->hidden_size},
                                                 {intermediate_key, &c->intermediate_size},
                                                 {"num_attention_heads", &c->num_heads},
                                                 {"vocab_size", &c->vocab_size}};
  for (const auto& [key, out] : fields) {
    if (absl::Status s = ReadInt(root, key, true, out); !s.ok()) return s;
  }
  c->num_kv_heads = c->num_heads;
  return absl::OkStatus();
}

absl::Status SetHeadDim(ModelConfig* c) {
  if (c->num_heads > 0 && c->hidden_size % c->num_heads == 0) {
    c->head_dim = c->hidden_size / c->num_heads;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("num_attention_heads is ", c->num_heads,
                                                 ", it must divide hidden_size, which is ",
                                                 c->hidden_size));
}

absl::Status ReadHfActivation(const json& root, const char* key, const char* otherwise,
                              ModelConfig* config) {
  std::string name = otherwise;
  if (absl::Status s = ReadString(root, key, &name); !s.ok()) return s;
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"relu", Activation::kRelu},          {"gelu", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
  };
  std::string list;
  for (const auto& [known, activation] : kNames) {
    if (name == known) {
      config->activation = activation;
      return absl::OkStatus();
    }
    absl::StrAppend(&list, list.empty() ? "" : ", ", known);
  }
  return absl::UnimplementedError(
      absl::StrCat(key, " is ", Quoted(name), "; supported are ", list));
}

absl::StatusOr<HfConfig> ParseHfConfig(std::string_view json_text) {
  const absl::StatusOr<json> root = ParseJsonObject(json_text);
  if (!root.ok()) return root.status();
  const absl::StatusOr<const Family*> family = FindFamily(*root);
  if (!family.ok()) return family.status();
  if (root->contains("quantization_config")) {
    return absl::UnimplementedError(
        "quantization_config is set; only F32, F16 and BF16 weights are supported");
  }
  HfConfig config;
  config.model.rope_pairing = RopePairing::kHalfSplit;
  if (absl::Status s = ReadString(*root, "_name_or_path", &config.model.name); !s.ok()) return s;
  if (absl::Status s = (*family)->read(*root, &config.model); !s.ok()) return s;
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
