// Granite 3: Llama with four scales, and the same with experts, optionally with a shared
// feed-forward. Granite 4 uses the architecture of its hybrids; accepted if no layer is recurrent:
// the shared feed-forward, and experts if present.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status ReadScales(HfFields& root, ModelConfig* c) {
  double attention = 1.0, divisor = 1.0;
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "attention_multiplier", false, &attention));
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "embedding_multiplier", false, &c->embedding_scale));
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "residual_multiplier", false, &c->residual_scale));
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "logits_scaling", false, &divisor));
  c->attention_scale = attention;
  c->logit_scale = 1.0 / divisor;
  return absl::OkStatus();
}

absl::Status ReadGranite(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.max_context = 2048}, c));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, true, c));
  return ReadScales(root, c);
}

// Every layer must be an attention layer.
absl::Status CheckLayerTypes(HfFields& root, const ModelConfig& c) {
  const nlohmann::json* types = root.Find("layer_types");
  if (types == nullptr) {
    return absl::UnimplementedError(
        "layer_types is missing, which means layers with states; only attention is supported");
  }
  if (!types->is_array() || types->size() != static_cast<size_t>(c.num_layers))
    return WrongField("layer_types", *types, "a string for each of num_hidden_layers");
  for (size_t layer = 0; layer < types->size(); ++layer) {
    const nlohmann::json& type = (*types)[layer];
    if (type == "attention" || type == "full_attention") continue;
    return WrongField(absl::StrCat("layer_types[", layer, "]").c_str(), type,
                      "attention: layers with states are not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadGraniteMoe(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.max_context = 2048}, c));
  HYDRANT_RETURN_IF_ERROR(ReadHfExperts(root, {}, c));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, false, c));
  return ReadScales(root, c);
}

// There is no shared feed-forward if its field is missing or 0.
absl::Status ReadGraniteMoeShared(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadGraniteMoe(root, c));
  int shared = 0;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "shared_intermediate_size", false, &shared));
  if (shared == 0) return absl::OkStatus();
  c->intermediate_size = shared;
  c->experts->shared = true;
  return absl::OkStatus();
}

// The file may declare no experts.
absl::Status ReadHybridExperts(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadHfExperts(root, {.default_intermediate_size = 11008}, c));
  c->experts->shared = true;
  if (c->experts->count == 0) c->experts.reset();
  return absl::OkStatus();
}

absl::Status ReadGraniteHybrid(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(
      root, {.max_context = 2048, .intermediate_key = "shared_intermediate_size"}, c));
  HYDRANT_RETURN_IF_ERROR(ReadHybridExperts(root, c));
  HYDRANT_RETURN_IF_ERROR(CheckLayerTypes(root, *c));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, false, c));
  const nlohmann::json* positions = root.Find("position_embedding_type");
  const bool rotated = positions != nullptr && *positions == "rope";
  c->layer_kinds.resize(c->num_layers);
  for (LayerKind& kind : c->layer_kinds) kind.rotated = rotated;
  return ReadScales(root, c);
}

const TensorNames& MoeNames() {
  static const auto& names = *[] {
    auto* moe = new TensorNames(HfLlamaNames());
    moe->gate = moe->up = moe->down = "";
    moe->router = "block_sparse_moe.router.layer.weight";
    moe->expert_gate_up = "block_sparse_moe.input_linear.weight";
    moe->expert_down = "block_sparse_moe.output_linear.weight";
    return moe;
  }();
  return names;
}

const TensorNames& SharedNames() {
  static const auto& names = *[] {
    auto* hybrid = new TensorNames(MoeNames());
    hybrid->gate_up = "shared_mlp.input_linear.weight";
    hybrid->down = "shared_mlp.output_linear.weight";
    return hybrid;
  }();
  return names;
}

// Fields of training.
constexpr IdleField kGraniteMoeIdle[] = {{"output_router_logits"}, {"router_aux_loss_coef"}};

// Fields of recurrent layers, ignored as there are none.
constexpr IdleField kHybridIdle[] = {
    {"output_router_logits"}, {"router_aux_loss_coef"},
    {"mamba_n_heads"},        {"mamba_n_groups"},
    {"mamba_d_state"},        {"mamba_d_head"},
    {"mamba_d_conv"},         {"mamba_expand"},
    {"mamba_chunk_size"},     {"mamba_conv_bias"},
    {"mamba_proj_bias"},      {"time_step_limit"},
    {"init_method"},          {"normalization_function", "\"rmsnorm\""},
};

constexpr HfFamily kGraniteFamilies[] = {
    {"GraniteForCausalLM", "granite", ReadGranite, HfLlamaNames, {}},
    {"GraniteMoeForCausalLM", "granitemoe", ReadGraniteMoe, MoeNames, kGraniteMoeIdle},
    {"GraniteMoeSharedForCausalLM", "granitemoeshared", ReadGraniteMoeShared, SharedNames,
     kGraniteMoeIdle},
    {"GraniteMoeHybridForCausalLM", "granitemoehybrid", ReadGraniteHybrid, SharedNames,
     kHybridIdle},
};

}  // namespace

std::span<const HfFamily> HfGraniteFamilies() { return kGraniteFamilies; }

}  // namespace hydrant
