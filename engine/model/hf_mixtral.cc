// Mixtral (arXiv 2401.04088): Mistral with a mixture of experts as the feed-forward in every layer.
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Fields of training.
constexpr IdleField kMixtralIdle[] = {
    {"output_router_logits"}, {"router_aux_loss_coef"}, {"router_jitter_noise"}};

absl::Status ReadMixtral(HfFields& root, ModelConfig* config) {
  const HfDefaults defaults = {
      .max_context = 131072, .kv_heads_as_heads = false, .norm_eps = 1e-5, .rope_theta = 1000000.0};
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, defaults, config));
  HYDRANT_RETURN_IF_ERROR(ReadHfExperts(root, {}, config));
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 0, &window));
  SetWindow(window, config);
  return absl::OkStatus();
}

const TensorNames& MixtralNames() {
  static const auto& names = *[] {
    auto* mixtral = new TensorNames(HfLlamaNames());
    mixtral->gate = mixtral->up = mixtral->down = "";
    mixtral->router = "block_sparse_moe.gate.weight";
    mixtral->expert_prefix = "block_sparse_moe.experts.";
    mixtral->expert_gate = "w1.weight";
    mixtral->expert_up = "w3.weight";
    mixtral->expert_down = "w2.weight";
    return mixtral;
  }();
  return names;
}

constexpr HfFamily kMixtralFamily[] = {
    {"MixtralForCausalLM", "mixtral", ReadMixtral, MixtralNames, kMixtralIdle}};

}  // namespace

std::span<const HfFamily> HfMixtralFamily() { return kMixtralFamily; }

}  // namespace hydrant
