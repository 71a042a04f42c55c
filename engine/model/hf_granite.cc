// Granite 3, dense: Llama with four scales. Granite 4 under the name of its hybrids, where the file
// has neither layers with states nor experts: the same again with fused projections.
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

// Every layer has to be one of attention.
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

absl::Status ReadGraniteHybrid(HfFields& root, ModelConfig* c) {
  int experts = 8;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "num_local_experts", false, &experts));
  if (experts != 0) {
    return absl::UnimplementedError(
        absl::StrCat("num_local_experts is ", experts, "; experts are not supported"));
  }
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(
      root, {.max_context = 2048, .intermediate_key = "shared_intermediate_size"}, c));
  HYDRANT_RETURN_IF_ERROR(CheckLayerTypes(root, *c));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, false, c));
  const nlohmann::json* positions = root.Find("position_embedding_type");
  const bool rotated = positions != nullptr && *positions == "rope";
  c->layer_kinds.resize(c->num_layers);
  for (LayerKind& kind : c->layer_kinds) kind.rotated = rotated;
  return ReadScales(root, c);
}

const TensorNames& HybridNames() {
  static const auto& names = *[] {
    auto* hybrid = new TensorNames(HfLlamaNames());
    hybrid->gate = hybrid->up = "";
    hybrid->gate_up = "shared_mlp.input_linear.weight";
    hybrid->down = "shared_mlp.output_linear.weight";
    return hybrid;
  }();
  return names;
}

// Of experts and of layers with states, where there are none.
constexpr IdleField kHybridIdle[] = {
    {"intermediate_size"},    {"num_experts_per_tok"},
    {"output_router_logits"}, {"router_aux_loss_coef"},
    {"mamba_n_heads"},        {"mamba_n_groups"},
    {"mamba_d_state"},        {"mamba_d_head"},
    {"mamba_d_conv"},         {"mamba_expand"},
    {"mamba_chunk_size"},     {"mamba_conv_bias"},
    {"mamba_proj_bias"},      {"time_step_limit"},
    {"init_method"},          {"normalization_function", "\"rmsnorm\""},
};

constexpr HfFamily kFamilies[] = {{"GraniteForCausalLM", "granite", ReadGranite, HfLlamaNames, {}},
                                  {"GraniteMoeHybridForCausalLM", "granitemoehybrid",
                                   ReadGraniteHybrid, HybridNames, kHybridIdle}};

}  // namespace

std::span<const HfFamily> HfGraniteFamilies() { return kFamilies; }

}  // namespace hydrant
