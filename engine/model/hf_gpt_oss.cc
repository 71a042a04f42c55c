// GPT-OSS (arXiv 2508.10925): experts with biases and a clamped gate, a sink logit for each query
// head, a window in every other layer, YaRN with `truncate` false.
#include <cmath>

#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// transformers' defaults for a file without RoPE fields.
void SetDefaultRope(HfFields& root, ModelConfig* c) {
  if (root.Find("rope_parameters") != nullptr || root.Find("rope_scaling") != nullptr) return;
  c->rope.yarn = {.enabled = true,
                  .factor = 32.0,
                  .beta_fast = 32.0,
                  .beta_slow = 1.0,
                  .original_context = 4096,
                  .truncate = false};
  c->rope.attention_factor = 0.1 * std::log(32.0) + 1.0;
}

absl::Status ReadGptOss(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(
      root, {.max_context = 131072, .head_dim = 64, .norm_eps = 1e-5, .rope_theta = 150000.0}, c));
  SetDefaultRope(root, c);
  HYDRANT_RETURN_IF_ERROR(ReadHfExperts(root, {.default_count = 128, .default_per_token = 4}, c));
  c->experts->router_bias = c->experts->biases = true;
  c->activation = Activation::kClampedSwiglu;
  c->sink_logits = true;
  bool biased = true;
  HYDRANT_RETURN_IF_ERROR(ReadBool(root, "attention_bias", &biased));
  c->biases.qkv = c->biases.attention_output = biased;
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 128, &window));
  return ReadHfLayerTypes(
      root, window, [](int layer) { return layer % 2 == 0; }, c);
}

const TensorNames& GptOssNames() {
  static const auto& names = *[] {
    auto* oss = new TensorNames(HfLlamaNames());
    oss->gate = oss->up = oss->down = "";
    oss->sink_logits = "self_attn.sinks";
    oss->router = "mlp.router.weight";
    oss->expert_gate_up = "mlp.experts.gate_up_proj.weight";
    oss->expert_down = "mlp.experts.down_proj.weight";
    oss->expert_rows_alternate = true;
    return oss;
  }();
  return names;
}

// Fields of training and of other programs, and constants of the activation.
constexpr IdleField kGptOssIdle[] = {{"output_router_logits"},   {"router_aux_loss_coef"},
                                     {"initial_context_length"}, {"experts_per_token"},
                                     {"swiglu_alpha", "1.702"},  {"swiglu_limit", "7.0"}};

constexpr HfFamily kGptOssFamily[] = {
    {"GptOssForCausalLM", "gpt_oss", ReadGptOss, GptOssNames, kGptOssIdle}};

}  // namespace

std::span<const HfFamily> HfGptOssFamily() { return kGptOssFamily; }

}  // namespace hydrant
