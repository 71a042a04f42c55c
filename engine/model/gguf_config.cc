#include "engine/model/gguf_config.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/gguf_fields.h"
#include "engine/model/text.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr char kRopeFreqs[] = "rope_freqs.weight";
constexpr char kLongFactors[] = "rope_factors_long.weight";
constexpr char kShortFactors[] = "rope_factors_short.weight";
constexpr char kRotationTable[] = ".attn_rot_embd";  // written by old converters; computed here

// Keys that do not change the arithmetic, or not with this value.
constexpr IdleKey kIdle[] = {
    {"vocab_size", {}},                            // taken from the embedding's shape
    {"tensor_data_layout", {}},                    // of the predecessor format
    {"rope.scaling.original_context_length", {}},  // read only by scalings that need it
    {"rope.scaling.factor", {}},
    {"rope.scaling.finetuned", {}},
    {"attention.causal", 1},
    {"attention.sliding_window", 0},
    {"attention.scale", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"logit_scale", 0},
    {"embedding_scale", 0},
    {"residual_scale", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_gating_func", 1},   // softmax
    {"expert_weights_norm", 1},  // weights of the chosen experts sum to 1
    {"expert_weights_scale", 1},
    {"pooling_type", 0},
    {"use_parallel_residual", 0},
    {"rope.scaling.attn_factor", 1},
    {"rope.scaling.yarn_ext_factor", 1},
    {"rope.scaling.yarn_attn_factor", 1}};

// --- Sizes

absl::Status ReadHeadDim(GgufFields& fields, ModelConfig* c) {
  if (fields.Has("attention.key_length")) {
    HYDRANT_RETURN_IF_ERROR(fields.ReadInt("attention.key_length", true, &c->head_dim));
  } else if (c->num_heads > 0 && c->hidden_size % c->num_heads == 0) {
    c->head_dim = c->hidden_size / c->num_heads;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.Name("attention.head_count"), " is ", c->num_heads, ", it must divide ",
                     fields.Name("embedding_length"), ", which is ", c->hidden_size));
  }
  int value_length = c->head_dim;
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("attention.value_length", false, &value_length));
  if (value_length == c->head_dim) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(fields.Name("attention.value_length"), " is ", value_length,
                   ", it must equal the head dimension, which is ", c->head_dim));
}

absl::Status ReadSizes(GgufFields& fields, ModelConfig* c) {
  const std::pair<const char*, int*> required[] = {{"block_count", &c->num_layers},
                                                   {"embedding_length", &c->hidden_size},
                                                   {"feed_forward_length", &c->intermediate_size},
                                                   {"attention.head_count", &c->num_heads},
                                                   {"context_length", &c->max_context}};
  for (const auto& [key, field] : required) {
    HYDRANT_RETURN_IF_ERROR(fields.ReadInt(key, true, field));
  }
  c->num_kv_heads = c->num_heads;
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("attention.head_count_kv", false, &c->num_kv_heads));
  HYDRANT_RETURN_IF_ERROR(ReadHeadDim(fields, c));
  return fields.ReadFloat("attention.layer_norm_rms_epsilon", true, &c->norm_eps);
}

// The vocabulary size is the embedding's: files pad it, and vocab_size is often missing.
absl::Status ReadVocabulary(const GgufFile& file, ModelConfig* c) {
  const TensorNames& names = GgufNames();
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

// A matrix has a bias if the file contains its tensor.
void FindBiases(const GgufFile& file, ModelConfig* c) {
  const auto has = [&](const char* bias) {
    return file.tensors().contains(absl::StrCat("blk.0.", bias, ".bias"));
  };
  c->biases.qkv = has("attn_q") || has("attn_qkv");
  c->biases.attention_output = has("attn_output");
  c->biases.feed_forward = has("ffn_down");
}

// --- RoPE

// Reads frequency factors; *out stays empty if the file has no such tensor.
absl::Status ReadFactors(const GgufFile& file, const char* name, int rotary_dim,
                         std::vector<float>* out) {
  const auto it = file.tensors().find(name);
  if (it == file.tensors().end()) return absl::OkStatus();
  const TensorView& view = it->second;
  if (view.shape != std::vector<int64_t>{rotary_dim / 2}) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " has shape ",
                                                   ShapeText(view.shape), ", half of ", rotary_dim,
                                                   " rotated elements is ", rotary_dim / 2));
  }
  out->resize(rotary_dim / 2);
  DequantizeRow(view.dtype, view.bytes.data(), view.NumElements(), out->data());
  return absl::OkStatus();
}

absl::Status ReadLinear(GgufFields& fields, bool has_type, ModelConfig* c) {
  constexpr char kFactor[] = "rope.scaling.factor", kOldFactor[] = "rope.scale_linear";
  const bool has_factor = fields.Has(kFactor), has_old_factor = fields.Has(kOldFactor);
  const bool required = has_type && !has_old_factor;
  return fields.ReadFloat(has_factor || !has_old_factor ? kFactor : kOldFactor, required,
                          &c->rope.linear_factor);
}

// The temperature is the paper's (arXiv 2309.00071, section 3.4), times attn_factor.
absl::Status ReadYarn(GgufFields& fields, ModelConfig* c) {
  YarnRopeScaling& yarn = c->rope.yarn;
  yarn.enabled = true;
  yarn.original_context = c->max_context;
  double attention_factor = 1.0;
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("rope.scaling.factor", true, &yarn.factor));
  HYDRANT_RETURN_IF_ERROR(
      fields.ReadInt("rope.scaling.original_context_length", false, &yarn.original_context));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("rope.scaling.yarn_beta_fast", false, &yarn.beta_fast));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("rope.scaling.yarn_beta_slow", false, &yarn.beta_slow));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("rope.scaling.attn_factor", false, &attention_factor));
  c->rope.attention_factor =
      attention_factor * (yarn.factor > 1 ? 0.1 * std::log(yarn.factor) + 1 : 1);
  return absl::OkStatus();
}

// Two tensors of factors; the file then gives the temperature itself.
absl::Status ReadLongRope(GgufFields& fields, bool required, ModelConfig* c) {
  LongRopeScaling& scaling = c->rope.long_rope;
  HYDRANT_RETURN_IF_ERROR(
      ReadFactors(fields.file(), kLongFactors, c->RotaryDim(), &scaling.long_factors));
  HYDRANT_RETURN_IF_ERROR(
      ReadFactors(fields.file(), kShortFactors, c->RotaryDim(), &scaling.short_factors));
  if (scaling.long_factors.empty() && scaling.short_factors.empty()) {
    return required
               ? absl::NotFoundError(absl::StrCat("tensor ", Quoted(kLongFactors), " is missing"))
               : absl::OkStatus();
  }
  HYDRANT_RETURN_IF_ERROR(
      fields.ReadInt("rope.scaling.original_context_length", true, &scaling.original_context));
  return fields.ReadFloat("rope.scaling.attn_factor", false, &c->rope.attention_factor);
}

// As in llama.cpp, a factor without a type is linear. Files with LongRoPE often have no type.
absl::Status ReadScaling(GgufFields& fields, ModelConfig* c) {
  std::string type = "linear";
  const bool has_type = fields.Has("rope.scaling.type");
  HYDRANT_RETURN_IF_ERROR(fields.ReadString("rope.scaling.type", &type));
  if (type == "yarn") return ReadYarn(fields, c);
  if (type == "longrope") return ReadLongRope(fields, true, c);
  HYDRANT_RETURN_IF_ERROR(ReadLongRope(fields, false, c));
  if (type == "linear") return ReadLinear(fields, has_type, c);
  if (type == "none") return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(fields.Name("rope.scaling.type"), " is ", Quoted(type),
                   ", 'none', 'linear', 'yarn' and 'longrope' are supported"));
}

absl::Status ReadRotaryDim(GgufFields& fields, bool may_be_partial, ModelConfig* c) {
  constexpr char kKey[] = "rope.dimension_count";
  int rotary_dim = c->head_dim;
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt(kKey, false, &rotary_dim));
  if (rotary_dim == c->head_dim) return absl::OkStatus();
  c->rotary_dim = rotary_dim;
  if (may_be_partial) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(fields.Name(kKey), " is ", rotary_dim,
                                               ", it must equal the head dimension, which is ",
                                               c->head_dim));
}

absl::Status ReadRope(GgufFields& fields, bool may_be_partial, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadRotaryDim(fields, may_be_partial, c));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("rope.freq_base", false, &c->rope.theta));
  HYDRANT_RETURN_IF_ERROR(ReadScaling(fields, c));
  return ReadFactors(fields.file(), kRopeFreqs, c->RotaryDim(), &c->rope.freq_factors);
}

// --- Architectures: additions to the above

absl::Status ReadQwen2(GgufFields&, GgufConfig*) { return absl::OkStatus(); }

// A window in every layer.
absl::Status ReadWindow(GgufFields& fields, ModelConfig* c) {
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("attention.sliding_window", false, &window));
  SetWindow(window, c);
  return absl::OkStatus();
}

// Experts, if the file has some; their width defaults to the feed-forward's. Every layer then has
// experts; there may also be a shared feed-forward.
absl::Status ReadExperts(GgufFields& fields, GgufConfig* config) {
  ModelConfig& c = config->model;
  Experts experts = {.intermediate_size = c.intermediate_size};
  int shared = 0;
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("expert_count", false, &experts.count));
  if (experts.count == 0) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("expert_used_count", true, &experts.per_token));
  HYDRANT_RETURN_IF_ERROR(
      fields.ReadInt("expert_feed_forward_length", false, &experts.intermediate_size));
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("expert_shared_feed_forward_length", false, &shared));
  if (shared > 0) {
    experts.shared = true;
    c.intermediate_size = shared;
    config->names.gate = "ffn_gate_shexp.weight";
    config->names.up = "ffn_up_shexp.weight";
    config->names.down = "ffn_down_shexp.weight";
  }
  c.experts = experts;
  return absl::OkStatus();
}

// Mixtral's files use this architecture too.
absl::Status ReadLlama(GgufFields& fields, GgufConfig* config) {
  HYDRANT_RETURN_IF_ERROR(ReadExperts(fields, config));
  return ReadWindow(fields, &config->model);
}

absl::Status ReadQwen3(GgufFields&, GgufConfig* config) {
  config->model.qk_norm = QkNorm::kHead;
  return absl::OkStatus();
}

absl::Status ReadQwen3Moe(GgufFields& fields, GgufConfig* config) {
  config->model.qk_norm = QkNorm::kHead;
  return ReadExperts(fields, config);
}

absl::Status ReadGranite(GgufFields& fields, GgufConfig* config) {
  ModelConfig& c = config->model;
  double divisor = 1.0, attention = 0.0;
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("attention.scale", false, &attention));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("embedding_scale", false, &c.embedding_scale));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("residual_scale", false, &c.residual_scale));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("logit_scale", false, &divisor));
  if (attention != 0.0) c.attention_scale = attention;
  c.logit_scale = 1.0 / divisor;
  return absl::OkStatus();
}

absl::Status ReadGraniteMoe(GgufFields& fields, GgufConfig* config) {
  HYDRANT_RETURN_IF_ERROR(ReadGranite(fields, config));
  return ReadExperts(fields, config);
}

// No key lists the layers without RoPE: it is every fourth.
absl::Status ReadSmolLm3(GgufFields&, GgufConfig* config) {
  ModelConfig& c = config->model;
  c.layer_kinds.resize(c.num_layers);
  for (int layer = 3; layer < c.num_layers; layer += 4) c.layer_kinds[layer].rotated = false;
  return absl::OkStatus();
}

absl::Status ReadPhi3(GgufFields& fields, GgufConfig* config) {
  TensorNames& names = config->names;
  names.wq = names.wk = names.wv = names.gate = names.up = "";
  names.q_k_v = "attn_qkv.weight";
  names.gate_up = "ffn_up.weight";
  return ReadWindow(fields, &config->model);
}

// A window in every layer but each `period`-th, if the file has one. `local`: RoPE of the layers
// with a window, if it differs from the others'.
absl::Status ReadWindows(GgufFields& fields, int period, std::optional<Rope> local,
                         ModelConfig* c) {
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("attention.sliding_window", false, &window));
  HYDRANT_RETURN_IF_ERROR(fields.ReadInt("attention.sliding_window_pattern", false, &period));
  if (window == 0) return absl::OkStatus();
  if (period == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.Name("attention.sliding_window_pattern"), " is 0"));
  }
  c->sliding_rope = std::move(local);
  c->layer_kinds.resize(c->num_layers);
  for (int layer = 0; layer < c->num_layers; ++layer) {
    LayerKind& kind = c->layer_kinds[layer];
    kind.sliding = (layer + 1) % period != 0;
    kind.window = kind.sliding && window < c->max_context ? window : 0;
  }
  return absl::OkStatus();
}

// OLMo 3 files have windows.
absl::Status ReadOlmo2(GgufFields& fields, GgufConfig* config) {
  HYDRANT_RETURN_IF_ERROR(
      ReadWindows(fields, 4, Rope::WithTheta(config->model.rope.theta), &config->model));
  config->model.norm_placement = NormPlacement::kAfter;
  config->model.qk_norm = QkNorm::kWhole;
  config->names.attn_norm = config->names.ffn_norm = "";
  return absl::OkStatus();
}

// No key says that YaRN's blend may begin and end within a pair.
absl::Status ReadGptOss(GgufFields& fields, GgufConfig* config) {
  ModelConfig& c = config->model;
  HYDRANT_RETURN_IF_ERROR(ReadExperts(fields, config));
  if (!c.experts.has_value())
    return absl::NotFoundError(absl::StrCat(fields.Name("expert_count"), " is missing or 0"));
  c.experts->router_bias = c.experts->biases = true;
  c.activation = Activation::kClampedSwiglu;
  c.sink_logits = true;
  c.rope.yarn.truncate = false;
  config->names.sink_logits = "attn_sinks.weight";
  config->names.ffn_norm = "post_attention_norm.weight";
  return ReadWindows(fields, 2, std::nullopt, &c);
}

// No key gives the embeddings' scale; the norms' weights include the 1 in these files.
absl::Status ReadGemma(GgufFields&, GgufConfig* config) {
  config->model.activation = Activation::kGeluTanh;
  config->model.embedding_scale = std::sqrt(config->model.hidden_size);
  return absl::OkStatus();
}

// No key gives the attention scale. As in llama.cpp, a 27B model is recognised by its number of
// layers; its heads are narrower than hidden_size / num_heads.
void SetGemmaScale(int layers_of_27b, ModelConfig* c) {
  if (c->num_layers == layers_of_27b)
    c->attention_scale = 1.0 / std::sqrt(static_cast<double>(c->hidden_size) / c->num_heads);
}

absl::Status ReadGemma2(GgufFields& fields, GgufConfig* config) {
  ModelConfig& c = config->model;
  HYDRANT_RETURN_IF_ERROR(ReadGemma(fields, config));
  c.norm_placement = NormPlacement::kBoth;
  c.attention_softcap = 50.0;
  c.logit_softcap = 30.0;
  SetGemmaScale(46, &c);
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("attn_logit_softcapping", false, &c.attention_softcap));
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("final_logit_softcapping", false, &c.logit_softcap));
  return ReadWindows(fields, 2, std::nullopt, &c);
}

absl::Status ReadGemma3(GgufFields& fields, GgufConfig* config) {
  ModelConfig& c = config->model;
  HYDRANT_RETURN_IF_ERROR(ReadGemma(fields, config));
  c.norm_placement = NormPlacement::kBoth;
  c.qk_norm = QkNorm::kHead;
  SetGemmaScale(62, &c);
  Rope local = Rope::WithTheta(10000.0);
  HYDRANT_RETURN_IF_ERROR(fields.ReadFloat("rope.freq_base_swa", false, &local.theta));
  return ReadWindows(fields, 6, local, &c);
}

struct Architecture {
  const char* name;
  RopePairing pairing;
  bool partial_rope;  // whether RoPE may cover part of a head
  absl::Status (*read)(GgufFields& fields, GgufConfig* config);
};
constexpr Architecture kArchitectures[] = {
    {"llama", RopePairing::kInterleaved, false, ReadLlama},
    {"qwen2", RopePairing::kHalfSplit, false, ReadQwen2},
    {"qwen3", RopePairing::kHalfSplit, false, ReadQwen3},
    {"qwen3moe", RopePairing::kHalfSplit, false, ReadQwen3Moe},
    {"granite", RopePairing::kInterleaved, false, ReadGranite},
    {"granitemoe", RopePairing::kInterleaved, false, ReadGraniteMoe},
    {"smollm3", RopePairing::kInterleaved, false, ReadSmolLm3},
    {"phi3", RopePairing::kHalfSplit, true, ReadPhi3},
    {"olmo2", RopePairing::kHalfSplit, false, ReadOlmo2},
    {"gemma", RopePairing::kHalfSplit, false, ReadGemma},
    {"gemma2", RopePairing::kHalfSplit, false, ReadGemma2},
    {"gpt-oss", RopePairing::kHalfSplit, false, ReadGptOss},
    {"gemma3", RopePairing::kHalfSplit, false, ReadGemma3},
};

absl::StatusOr<Architecture> FindArchitecture(const std::string& name) {
  std::string list;
  for (const Architecture& architecture : kArchitectures) {
    if (name == architecture.name) return architecture;
    absl::StrAppend(&list, list.empty() ? "" : ", ", architecture.name);
  }
  return absl::UnimplementedError(
      absl::StrCat("general.architecture is ", Quoted(name), "; supported are ", list));
}

}  // namespace

const TensorNames& GgufNames() {
  static const auto& names = *new TensorNames{.embedding = "token_embd.weight",
                                              .final_norm = "output_norm.weight",
                                              .output = "output.weight",
                                              .layer_prefix = "blk.",
                                              .attn_norm = "attn_norm.weight",
                                              .attn_post_norm = "post_attention_norm.weight",
                                              .wq = "attn_q.weight",
                                              .wk = "attn_k.weight",
                                              .wv = "attn_v.weight",
                                              .wo = "attn_output.weight",
                                              .q_norm = "attn_q_norm.weight",
                                              .k_norm = "attn_k_norm.weight",
                                              .ffn_norm = "ffn_norm.weight",
                                              .ffn_post_norm = "post_ffw_norm.weight",
                                              .gate = "ffn_gate.weight",
                                              .up = "ffn_up.weight",
                                              .down = "ffn_down.weight",
                                              .router = "ffn_gate_inp.weight",
                                              .expert_gate = "ffn_gate_exps.weight",
                                              .expert_up = "ffn_up_exps.weight",
                                              .expert_down = "ffn_down_exps.weight"};
  return names;
}

bool IsGgufRopeTensor(const std::string& name) {
  return name == kRopeFreqs || name == kLongFactors || name == kShortFactors ||
         name.ends_with(kRotationTable);
}

absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFile& file) {
  HYDRANT_ASSIGN_OR_RETURN(const std::string name, file.GetString("general.architecture"));
  HYDRANT_ASSIGN_OR_RETURN(const Architecture architecture, FindArchitecture(name));
  GgufFields fields(file, name);
  GgufConfig config;
  ModelConfig& model = config.model;
  config.names = GgufNames();
  model.architecture = name;
  model.name = file.GetString("general.name").value_or("");
  model.rope_pairing = architecture.pairing;
  HYDRANT_RETURN_IF_ERROR(ReadSizes(fields, &model));
  HYDRANT_RETURN_IF_ERROR(ReadVocabulary(file, &model));
  HYDRANT_RETURN_IF_ERROR(ReadRope(fields, architecture.partial_rope, &model));
  FindBiases(file, &model);
  HYDRANT_RETURN_IF_ERROR(architecture.read(fields, &config));
  HYDRANT_RETURN_IF_ERROR(fields.RefuseUnread(kIdle));
  HYDRANT_RETURN_IF_ERROR(ValidateConfig(model));
  return config;
}

}  // namespace hydrant
