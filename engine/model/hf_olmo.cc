// OLMo 2 (arXiv 2501.00656): norms after attention and feed-forward only, and QK norms over whole
// rows.
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status ReadOlmo2(HfFields& root, ModelConfig* config) {
  config->norm_placement = NormPlacement::kAfter;
  config->qk_norm = QkNorm::kWhole;
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.max_context = 2048, .norm_eps = 1e-5}, config));
  return ReadHfBiases(root, false, config);
}

// OLMo 3: OLMo 2 with windows in three of four layers; only the other layers scale RoPE.
absl::Status ReadOlmo3(HfFields& root, ModelConfig* config) {
  config->norm_placement = NormPlacement::kAfter;
  config->qk_norm = QkNorm::kWhole;
  constexpr double kTheta = 500000.0;
  config->sliding_rope = Rope::WithTheta(kTheta);
  HYDRANT_RETURN_IF_ERROR(
      ReadHfDecoder(root, {.max_context = 2048, .norm_eps = 1e-5, .rope_theta = kTheta}, config));
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  const auto is_sliding = [](int layer) { return (layer + 1) % 4 != 0; };
  HYDRANT_RETURN_IF_ERROR(ReadHfLayerTypes(root, window, is_sliding, config));
  return ReadHfBiases(root, false, config);
}

const TensorNames& OlmoNames() {
  static const auto& names = *[] {
    auto* olmo = new TensorNames(HfLlamaNames());
    olmo->attn_norm = olmo->ffn_norm = "";
    olmo->attn_post_norm = "post_attention_layernorm.weight";
    olmo->ffn_post_norm = "post_feedforward_layernorm.weight";
    return olmo;
  }();
  return names;
}

constexpr HfFamily kOlmoFamilies[] = {{"Olmo2ForCausalLM", "olmo2", ReadOlmo2, OlmoNames, {}},
                                      {"Olmo3ForCausalLM", "olmo3", ReadOlmo3, OlmoNames, {}}};

}  // namespace

std::span<const HfFamily> HfOlmoFamilies() { return kOlmoFamilies; }

}  // namespace hydrant
