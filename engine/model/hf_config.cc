#include "engine/model/hf_config.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_file.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using nlohmann::json;

std::vector<HfFamily> Families() {
  std::vector<HfFamily> families;
  for (const std::span<const HfFamily> some :
       {HfLlamaFamilies(), HfMixtralFamily(), HfQwenFamilies(), HfGraniteFamilies(),
        HfSmolLm3Family(), HfPhi3Family(), HfOlmoFamilies(), HfGemmaFamilies(), HfOptFamily(),
        HfGptNeoxFamily(), HfGptOssFamily()}) {
    families.insert(families.end(), some.begin(), some.end());
  }
  return families;
}

absl::StatusOr<HfFamily> FindFamily(const char* key, const std::string& value,
                                    const char* HfFamily::*name) {
  std::string list;
  for (const HfFamily& family : Families()) {
    if (value == family.*name) return family;
    absl::StrAppend(&list, list.empty() ? "" : ", ", family.*name);
  }
  return absl::UnimplementedError(
      absl::StrCat(key, " is ", Quoted(value), "; supported are ", list));
}

// By architectures and model_type, or by the one that is present. As in transformers, model_type
// decides: granite, for one, is not a Llama, whatever its architectures field names.
absl::StatusOr<HfFamily> FindFamily(HfFields& root) {
  std::string type;
  HYDRANT_RETURN_IF_ERROR(ReadString(root, "model_type", &type));
  const bool has_type = root.Find("model_type") != nullptr;
  const json* list = root.Find("architectures");
  if (list == nullptr) {
    if (!has_type) return absl::NotFoundError("architectures is missing");
    return FindFamily("model_type", type, &HfFamily::model_type);
  }
  if (!list->is_array() || list->size() != 1 || !list->front().is_string())
    return WrongField("architectures", *list, "an array of one string");
  const absl::StatusOr<HfFamily> family =
      FindFamily("architectures", list->front().get<std::string>(), &HfFamily::architecture);
  if (!family.ok() || !has_type || type == family->model_type) return family;
  return absl::UnimplementedError(
      absl::StrCat("model_type is ", Quoted(type), ", but architectures is ",
                   Quoted(family->architecture), ", of model_type ", Quoted(family->model_type)));
}

absl::Status ReadWeightType(HfFields& root, HfConfig* config) {
  std::string type = "float32";
  HYDRANT_RETURN_IF_ERROR(ReadString(root, "torch_dtype", &type));
  HYDRANT_RETURN_IF_ERROR(ReadString(root, "dtype", &type));
  // Half precision becomes bfloat16 in dummy weights: it has the same size, and this field has no
  // other use.
  config->weight_dtype = type == "bfloat16" || type == "float16" ? DType::kBF16 : DType::kF32;
  for (const char* key : {"init_std", "initializer_range"}) {  // OPT's name, then the common one
    HYDRANT_RETURN_IF_ERROR(ReadReal(root, key, false, &config->initializer_range));
  }
  if (!(config->initializer_range > 0 && config->initializer_range <= 10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "initializer_range is ", config->initializer_range, ", the limit is above 0 to 10"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadHfSizes(HfFields& root, const char* intermediate_key, ModelConfig* c) {
  const std::pair<const char*, int*> fields[] = {{"num_hidden_layers", &c->num_layers},
                                                 {"hidden_size", &c->hidden_size},
                                                 {intermediate_key, &c->intermediate_size},
                                                 {"num_attention_heads", &c->num_heads},
                                                 {"vocab_size", &c->vocab_size}};
  for (const auto& [key, out] : fields) {
    HYDRANT_RETURN_IF_ERROR(ReadInt(root, key, true, out));
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

absl::Status ReadHfActivation(HfFields& root, const char* key, const char* otherwise,
                              ModelConfig* config) {
  std::string name = otherwise;
  HYDRANT_RETURN_IF_ERROR(ReadString(root, key, &name));
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"relu", Activation::kRelu},          {"gelu", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
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

const TensorNames& HuggingFaceNames(const ModelConfig& config) {
  for (const HfFamily& family : Families()) {
    if (config.architecture == family.model_type) return family.names();
  }
  return HfLlamaNames();
}

absl::StatusOr<HfConfig> ParseHfConfig(std::string_view json_text) {
  HYDRANT_ASSIGN_OR_RETURN(const json root, ParseJsonObject(json_text));
  HfFields fields(root);
  HYDRANT_ASSIGN_OR_RETURN(const HfFamily family, FindFamily(fields));
  HfConfig config;
  HYDRANT_RETURN_IF_ERROR(ReadHfQuantization(fields, &config.quantization));
  config.model.rope_pairing = RopePairing::kHalfSplit;
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "_name_or_path", &config.model.name));
  config.model.architecture = family.model_type;
  HYDRANT_RETURN_IF_ERROR(family.read(fields, &config.model));
  HYDRANT_RETURN_IF_ERROR(ReadWeightType(fields, &config));
  const std::span<const IdleField> idle[] = {IdleHfFields(), family.idle};
  HYDRANT_RETURN_IF_ERROR(fields.RefuseUnread(idle));
  HYDRANT_RETURN_IF_ERROR(ValidateConfig(config.model));
  return config;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const std::span<const uint8_t> bytes = file->bytes();
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
