#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Several times the sizes of any published model; they keep products of fields far from overflow
// and bound the memory that a damaged header can request.
constexpr int kMaxLayers = 1024;
constexpr int kMaxHidden = 1 << 16;
constexpr int kMaxIntermediate = 1 << 20;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxContext = 1 << 27;
constexpr int kMaxExpertsInAll = 1 << 17;  // of all layers

absl::Status CheckInt(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", the limit is ", low, " to ", high));
}

// Written so that NaN fails.
absl::Status CheckReal(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", the limit is ", low, " to ", high));
}

absl::Status CheckSizes(const ModelConfig& c) {
  const struct {
    const char* field;
    int value, low, high;
  } fields[] = {
      {"num_layers", c.num_layers, 1, kMaxLayers},
      {"hidden_size", c.hidden_size, 1, kMaxHidden},
      {"intermediate_size", c.intermediate_size, 1, kMaxIntermediate},
      {"num_heads", c.num_heads, 1, kMaxHeads},
      {"num_kv_heads", c.num_kv_heads, 1, c.num_heads},
      {"head_dim", c.head_dim, 2, kMaxHeadDim},
      {"vocab_size", c.vocab_size, 1, kMaxVocab},
      {"max_context", c.max_context, 1, kMaxContext},
  };
  for (const auto& f : fields) {
    HYDRANT_RETURN_IF_ERROR(CheckInt(f.field, f.value, f.low, f.high));
  }
  if (c.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", c.head_dim, ", it must be even: RoPE turns pairs"));
  }
  if (c.RotaryDim() < 0 || c.RotaryDim() > c.head_dim || c.RotaryDim() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rotary_dim is ", c.RotaryDim(),
                                                   ", it must be even and from 0 to head_dim, "
                                                   "which is ",
                                                   c.head_dim));
  }
  if (c.num_heads % c.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_heads is ", c.num_heads,
                     ", it must be a multiple of num_kv_heads, which is ", c.num_kv_heads));
  }
  return absl::OkStatus();
}

absl::Status CheckLlama3(const Llama3RopeScaling& scaling) {
  if (!scaling.enabled) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(CheckReal("llama3 rope factor", scaling.factor, 1.0, 1e6));
  HYDRANT_RETURN_IF_ERROR(
      CheckReal("llama3 rope low_freq_factor", scaling.low_freq_factor, 1e-6, 1e6));
  HYDRANT_RETURN_IF_ERROR(
      CheckReal("llama3 rope high_freq_factor", scaling.high_freq_factor, 1e-6, 1e6));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat("llama3 rope high_freq_factor is ", scaling.high_freq_factor,
                     ", it must be above low_freq_factor, which is ", scaling.low_freq_factor));
  }
  return CheckInt("llama3 rope original_context", scaling.original_context, 1, kMaxContext);
}

absl::Status CheckYarn(const YarnRopeScaling& yarn) {
  if (!yarn.enabled) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(CheckReal("yarn rope factor", yarn.factor, 1.0, 1e6));
  HYDRANT_RETURN_IF_ERROR(CheckReal("yarn rope beta_slow", yarn.beta_slow, 1e-6, 1e6));
  HYDRANT_RETURN_IF_ERROR(CheckReal("yarn rope beta_fast", yarn.beta_fast, yarn.beta_slow, 1e6));
  return CheckInt("yarn rope original_context", yarn.original_context, 1, kMaxContext);
}

absl::Status CheckFactors(const char* name, const std::vector<float>& factors,
                          const ModelConfig& c) {
  if (factors.empty()) return absl::OkStatus();
  if (factors.size() != static_cast<size_t>(c.RotaryDim() / 2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has ", factors.size(), " values, half of rotary_dim is ", c.RotaryDim() / 2));
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    const std::string field = absl::StrCat(name, "[", i, "]");
    HYDRANT_RETURN_IF_ERROR(CheckReal(field.c_str(), factors[i], 1e-6, 1e9));
  }
  return absl::OkStatus();
}

absl::Status CheckLongRope(const LongRopeScaling& scaling, const ModelConfig& c) {
  if (scaling.short_factors.empty() != scaling.long_factors.empty()) {
    return absl::InvalidArgumentError("of the two sets of LongRoPE factors one is missing");
  }
  if (scaling.short_factors.empty()) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(CheckFactors("rope short_factor", scaling.short_factors, c));
  HYDRANT_RETURN_IF_ERROR(CheckFactors("rope long_factor", scaling.long_factors, c));
  return CheckInt("longrope original_context", scaling.original_context, 1, kMaxContext);
}

absl::Status CheckRope(const Rope& rope, const ModelConfig& c) {
  HYDRANT_RETURN_IF_ERROR(CheckReal("rope_theta", rope.theta, 1.0, 1e12));
  HYDRANT_RETURN_IF_ERROR(CheckReal("rope_linear_factor", rope.linear_factor, 1e-3, 1e6));
  HYDRANT_RETURN_IF_ERROR(CheckReal("rope attention_factor", rope.attention_factor, 1e-3, 1e3));
  HYDRANT_RETURN_IF_ERROR(CheckLlama3(rope.llama3));
  HYDRANT_RETURN_IF_ERROR(CheckYarn(rope.yarn));
  HYDRANT_RETURN_IF_ERROR(CheckLongRope(rope.long_rope, c));
  return CheckFactors("rope_freq_factors", rope.freq_factors, c);
}

absl::Status CheckLayerKinds(const ModelConfig& c) {
  if (!c.layer_kinds.empty() && c.layer_kinds.size() != static_cast<size_t>(c.num_layers)) {
    return absl::InvalidArgumentError(absl::StrCat("layer_kinds has ", c.layer_kinds.size(),
                                                   " values, num_layers is ", c.num_layers));
  }
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const std::string field = absl::StrCat("sliding_window of layer ", layer);
    const int window = c.KindOf(layer).window;
    HYDRANT_RETURN_IF_ERROR(CheckInt(field.c_str(), window, 0, kMaxContext));
    if (window > 0 && window != c.Window()) {
      return absl::UnimplementedError(absl::StrCat(field, ": ", window, " beside ", c.Window(),
                                                   "; layers with different windows are not "
                                                   "supported"));
    }
  }
  return absl::OkStatus();
}

// The rows of each expert's weights must be a multiple of kExpertRowStep.
absl::Status CheckExpertRows(const char* field, int value) {
  if (value % kExpertRowStep == 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      field, " is ", value, ", beside experts it must be a multiple of ", kExpertRowStep));
}

absl::Status CheckExperts(const ModelConfig& c) {
  if (!c.experts.has_value()) return absl::OkStatus();
  const Experts& experts = *c.experts;
  HYDRANT_RETURN_IF_ERROR(CheckInt("num_experts", experts.count, 1, kMaxExperts));
  HYDRANT_RETURN_IF_ERROR(CheckInt("num_experts_per_tok", experts.per_token, 1,
                                   std::min(experts.count, kMaxChosenExperts)));
  HYDRANT_RETURN_IF_ERROR(
      CheckInt("experts' intermediate_size", experts.intermediate_size, 1, kMaxIntermediate));
  if (int64_t{experts.count} * c.num_layers > kMaxExpertsInAll) {
    return absl::InvalidArgumentError(absl::StrCat("num_experts is ", experts.count, " in ",
                                                   c.num_layers, " layers, the limit is ",
                                                   kMaxExpertsInAll, " in all"));
  }
  const int64_t rows = int64_t{experts.count} *
                       std::max(2 * int64_t{experts.intermediate_size}, int64_t{c.hidden_size});
  if (rows > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("num_experts is ", experts.count, ", of ",
                                                   experts.intermediate_size, " by ", c.hidden_size,
                                                   " each: matrices of 2^31 rows and more"));
  }
  HYDRANT_RETURN_IF_ERROR(CheckExpertRows("experts' intermediate_size", experts.intermediate_size));
  HYDRANT_RETURN_IF_ERROR(CheckExpertRows("hidden_size", c.hidden_size));
  if (c.gated && c.norm_placement == NormPlacement::kBefore) return absl::OkStatus();
  return absl::UnimplementedError(
      "experts are supported with a gate, and without a norm of what they add");
}

absl::Status CheckScales(const ModelConfig& c) {
  if (c.residual_scale != 1.0 && c.norm_placement != NormPlacement::kBefore) {
    return absl::UnimplementedError(absl::StrCat("residual_scale is ", c.residual_scale,
                                                 " beside norms of what is added; only 1 is "
                                                 "supported there"));
  }
  const std::pair<const char*, double> scales[] = {{"attention_scale", c.AttentionScale()},
                                                   {"embedding_scale", c.embedding_scale},
                                                   {"residual_scale", c.residual_scale},
                                                   {"logit_scale", c.logit_scale}};
  for (const auto& [field, value] : scales) {
    HYDRANT_RETURN_IF_ERROR(CheckReal(field, value, 1e-9, 1e9));
  }
  for (const auto& [field, value] : {std::pair("attn_logit_softcapping", c.attention_softcap),
                                     std::pair("final_logit_softcapping", c.logit_softcap)}) {
    if (value != 0.0) HYDRANT_RETURN_IF_ERROR(CheckReal(field, value, 1e-3, 1e6));
  }
  return absl::OkStatus();
}

}  // namespace

double ModelConfig::AttentionScale() const {
  return attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

bool ModelConfig::HasDense() const {
  for (int layer = 0; layer < num_layers; ++layer) {
    if (HasDense(layer)) return true;
  }
  return false;
}

int ModelConfig::Window() const {
  for (const LayerKind& kind : layer_kinds) {
    if (kind.window > 0) return kind.window;
  }
  return 0;
}

void SetWindow(int window, ModelConfig* config) {
  if (window == 0 || window >= config->max_context) return;  // every query sees all keys
  config->layer_kinds.resize(config->num_layers);
  for (LayerKind& kind : config->layer_kinds) kind.window = window;
}

absl::Status ValidateConfig(const ModelConfig& config) {
  HYDRANT_RETURN_IF_ERROR(CheckSizes(config));
  HYDRANT_RETURN_IF_ERROR(CheckReal("norm_eps", config.norm_eps, 1e-12, 0.1));
  HYDRANT_RETURN_IF_ERROR(CheckScales(config));
  HYDRANT_RETURN_IF_ERROR(CheckLayerKinds(config));
  HYDRANT_RETURN_IF_ERROR(CheckExperts(config));
  if (config.sliding_rope.has_value())
    HYDRANT_RETURN_IF_ERROR(CheckRope(*config.sliding_rope, config));
  return CheckRope(config.rope, config);
}

}  // namespace hydrant
