#include "engine/model/gguf_llama.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/gguf_value.h"
#include "engine/model/model_tensors.h"
#include "engine/model/text.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr char kRopeFreqs[] = "rope_freqs.weight";

absl::Status ReadInt(const GgufFile& file, const std::string& key, int* out) {
  HYDRANT_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
  constexpr int kMax = std::numeric_limits<int>::max();
  if (value < 0 || value > kMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata key ", Quoted(key), " is ", value, ", the limit is 0 to ", kMax));
  }
  *out = static_cast<int>(value);
  return absl::OkStatus();
}

// Leaves *out alone where the key is missing.
absl::Status ReadOptionalInt(const GgufFile& file, const std::string& key, int* out) {
  return file.Has(key) ? ReadInt(file, key, out) : absl::OkStatus();
}

absl::Status ReadOptionalFloat(const GgufFile& file, const std::string& key, double* out) {
  if (!file.Has(key)) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(*out, file.GetFloat(key));
  return absl::OkStatus();
}

// Keys of the llama namespace that are read below, or change nothing in the forward pass.
constexpr std::string_view kKnownKeys[] = {"llama.block_count",
                                           "llama.embedding_length",
                                           "llama.feed_forward_length",
                                           "llama.context_length",
                                           "llama.attention.head_count",
                                           "llama.attention.head_count_kv",
                                           "llama.attention.key_length",
                                           "llama.attention.value_length",
                                           "llama.attention.layer_norm_rms_epsilon",
                                           "llama.rope.dimension_count",
                                           "llama.rope.freq_base",
                                           "llama.rope.scale_linear",
                                           "llama.rope.scaling.type",
                                           "llama.rope.scaling.factor",
                                           "llama.vocab_size",          // the embedding says it
                                           "llama.tensor_data_layout",  // of the file before
                                           "llama.rope.scaling.original_context_length",
                                           "llama.rope.scaling.finetuned"};

// Keys that change nothing where they have this value.
constexpr std::pair<std::string_view, double> kNeutralValues[] = {
    {"llama.attention.causal", 1},
    {"llama.attention.sliding_window", 0},
    {"llama.attention.scale", 0},
    {"llama.attention.clamp_kqv", 0},
    {"llama.attention.max_alibi_bias", 0},
    {"llama.logit_scale", 0},
    {"llama.embedding_scale", 0},
    {"llama.residual_scale", 0},
    {"llama.attn_logit_softcapping", 0},
    {"llama.final_logit_softcapping", 0},
    {"llama.expert_count", 0},
    {"llama.expert_used_count", 0},
    {"llama.pooling_type", 0},
    {"llama.use_parallel_residual", 0},
    {"llama.rope.scaling.attn_factor", 1}};

std::optional<double> NumberOf(const GgufValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  if (const int64_t* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const double* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

std::string ValueText(const GgufValue& value) {
  if (const std::optional<double> number = NumberOf(value)) return absl::StrCat(*number);
  if (const std::string* text = std::get_if<std::string>(&value)) return Quoted(*text);
  return absl::StrCat("an ", std::string(GgufTypeName(value)));
}

// An unknown key may change what the model computes: refused rather than ignored.
absl::Status CheckKeys(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with("llama.") || std::ranges::count(kKnownKeys, key) > 0) continue;
    const std::pair neutral(std::string_view(key), NumberOf(value).value_or(-1));
    if (std::ranges::count(kNeutralValues, neutral) > 0) continue;
    return absl::UnimplementedError(absl::StrCat("metadata key ", Quoted(key), " is ",
                                                 ValueText(value), "; this is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const GgufFile& file, ModelConfig* c) {
  const std::pair<const char*, int*> required[] = {
      {"llama.block_count", &c->num_layers},
      {"llama.embedding_length", &c->hidden_size},
      {"llama.feed_forward_length", &c->intermediate_size},
      {"llama.attention.head_count", &c->num_heads},
      {"llama.context_length", &c->max_context}};
  for (const auto& [key, field] : required) {
    HYDRANT_RETURN_IF_ERROR(ReadInt(file, key, field));
  }
  c->num_kv_heads = c->num_heads;
  HYDRANT_RETURN_IF_ERROR(ReadOptionalInt(file, "llama.attention.head_count_kv", &c->num_kv_heads));

  if (file.Has("llama.attention.key_length")) {
    HYDRANT_RETURN_IF_ERROR(ReadInt(file, "llama.attention.key_length", &c->head_dim));
  } else if (c->num_heads > 0 && c->hidden_size % c->num_heads == 0) {
    c->head_dim = c->hidden_size / c->num_heads;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("llama.attention.head_count is ", c->num_heads,
                     ", it must divide llama.embedding_length, which is ", c->hidden_size));
  }
  for (const char* key : {"llama.attention.value_length", "llama.rope.dimension_count"}) {
    int value = c->head_dim;
    HYDRANT_RETURN_IF_ERROR(ReadOptionalInt(file, key, &value));
    if (value != c->head_dim) {
      return absl::UnimplementedError(absl::StrCat(
          key, " is ", value, ", it must equal the head dimension, which is ", c->head_dim));
    }
  }
  HYDRANT_ASSIGN_OR_RETURN(c->norm_eps, file.GetFloat("llama.attention.layer_norm_rms_epsilon"));
  return absl::OkStatus();
}

// llama.cpp takes a factor without a type for a linear one.
absl::Status ReadRopeScaling(const GgufFile& file, ModelConfig* c) {
  std::string type = "linear";
  const bool has_type = file.Has("llama.rope.scaling.type");
  if (has_type) {
    HYDRANT_ASSIGN_OR_RETURN(type, file.GetString("llama.rope.scaling.type"));
  }
  if (type == "none") return absl::OkStatus();
  if (type != "linear") {
    return absl::UnimplementedError(absl::StrCat("llama.rope.scaling.type is ", Quoted(type),
                                                 ", 'none' and 'linear' are supported"));
  }
  constexpr char kFactor[] = "llama.rope.scaling.factor";
  constexpr char kOldFactor[] = "llama.rope.scale_linear";
  if (has_type && !file.Has(kFactor) && !file.Has(kOldFactor)) {
    return absl::NotFoundError(absl::StrCat("metadata key '", kFactor, "' is missing"));
  }
  return ReadOptionalFloat(file, file.Has(kFactor) ? kFactor : kOldFactor, &c->rope_linear_factor);
}

absl::Status ReadRope(const GgufFile& file, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadOptionalFloat(file, "llama.rope.freq_base", &c->rope_theta));
  HYDRANT_RETURN_IF_ERROR(ReadRopeScaling(file, c));
  const auto it = file.tensors().find(kRopeFreqs);
  if (it == file.tensors().end()) return absl::OkStatus();
  const TensorView& view = it->second;
  if (view.shape != std::vector<int64_t>{c->head_dim / 2}) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", kRopeFreqs, "' has shape ", ShapeText(view.shape),
                     ", half of the head dimension is ", c->head_dim / 2));
  }
  c->rope_freq_factors.resize(c->head_dim / 2);
  DequantizeRow(view.dtype, view.bytes.data(), view.NumElements(), c->rope_freq_factors.data());
  return absl::OkStatus();
}

// The vocabulary is as long as the embedding: files pad it, and llama.vocab_size is often missing.
absl::Status ReadVocabulary(const GgufFile& file, ModelConfig* c) {
  const TensorNames& names = GgufLlamaNames();
  const auto it = file.tensors().find(names.embedding);
  if (it == file.tensors().end()) {
    return absl::NotFoundError(absl::StrCat("tensor ", Quoted(names.embedding), " is missing"));
  }
  const std::vector<int64_t>& shape = it->second.shape;
  if (shape.size() != 2 || shape[0] > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(names.embedding),
                                                   " has shape ", ShapeText(shape),
                                                   ", wanted [vocabulary, ", c->hidden_size, "]"));
  }
  c->vocab_size = static_cast<int>(shape[0]);
  c->tied_embeddings = !file.tensors().contains(names.output);
  return absl::OkStatus();
}

class GgufLlamaSource final : public ModelSource {
 public:
  GgufLlamaSource(std::unique_ptr<GgufFile> file, ModelConfig config, ModelTensors tensors)
      : file_(std::move(file)), config_(std::move(config)), tensors_(std::move(tensors)) {}

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TensorView> Embedding() const override { return tensors_.outer.embedding; }
  absl::StatusOr<TensorView> FinalNorm() const override { return tensors_.outer.final_norm; }
  absl::StatusOr<TensorView> Output() const override { return tensors_.outer.output; }
  absl::StatusOr<LayerTensors> Layer(int layer) const override { return tensors_.Layer(layer); }
  absl::Status CheckUnchanged() const override { return file_->CheckUnchanged(); }
  const GgufFile* gguf() const override { return file_.get(); }

 private:
  const std::unique_ptr<GgufFile> file_;
  const ModelConfig config_;
  const ModelTensors tensors_;  // views into file_
};

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufLlamaConfig(const GgufFile& file) {
  ModelConfig config;
  HYDRANT_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  if (architecture != "llama") {
    return absl::UnimplementedError(absl::StrCat("general.architecture is ", Quoted(architecture),
                                                 ", only 'llama' is supported"));
  }
  config.architecture = architecture;
  config.name = file.GetString("general.name").value_or("");
  config.rope_pairing = RopePairing::kInterleaved;
  HYDRANT_RETURN_IF_ERROR(CheckKeys(file));
  HYDRANT_RETURN_IF_ERROR(ReadSizes(file, &config));
  HYDRANT_RETURN_IF_ERROR(ReadVocabulary(file, &config));
  HYDRANT_RETURN_IF_ERROR(ReadRope(file, &config));
  HYDRANT_RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

absl::StatusOr<std::unique_ptr<ModelSource>> MakeGgufLlamaSource(std::unique_ptr<GgufFile> file) {
  HYDRANT_ASSIGN_OR_RETURN(ModelConfig config, ReadGgufLlamaConfig(*file));
  std::vector<std::string> present;
  for (const auto& [name, view] : file->tensors()) present.push_back(name);
  const auto ignored = [](const std::string& name) {
    // attn_rot_embd: rotation tables in old files, which are computed here.
    return name == kRopeFreqs || name.ends_with(".attn_rot_embd");
  };
  HYDRANT_RETURN_IF_ERROR(CheckNoUnknownTensors(config, GgufLlamaNames(), present, ignored));
  const auto find = [&file](const std::string& name) -> absl::StatusOr<TensorView> {
    const auto it = file->tensors().find(name);
    if (it == file->tensors().end())
      return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " is missing"));
    return it->second;
  };
  HYDRANT_ASSIGN_OR_RETURN(ModelTensors tensors, GatherTensors(config, GgufLlamaNames(), find));
  return std::make_unique<GgufLlamaSource>(std::move(file), std::move(config), std::move(tensors));
}

}  // namespace hydrant
