// Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219, 2412.08905): fused projections, LongRoPE, and in the
// small models RoPE on a part of each head.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status ReadPhi3(HfFields& root, ModelConfig* c) {
  double rotated = 1.0;
  HYDRANT_RETURN_IF_ERROR(
      ReadHfDecoder(root, {.max_context = 4096, .norm_eps = 1e-5}, c, &rotated));
  int original_context = 4096;
  HYDRANT_RETURN_IF_ERROR(
      ReadInt(root, "original_max_position_embeddings", false, &original_context));
  HYDRANT_RETURN_IF_ERROR(
      ReadHfRope(root, {.original_context = original_context, .only_longrope = true}, c, &rotated));
  if (!(rotated > 0.0 && rotated <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("partial_rotary_factor is ", rotated, ", the limit is above 0 to 1"));
  }
  c->rotary_dim = static_cast<int>(c->head_dim * rotated);
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 0, &window));
  SetWindow(window, c);
  return absl::OkStatus();
}

const TensorNames& Phi3Names() {
  static const auto& names = *new TensorNames{.embedding = "model.embed_tokens.weight",
                                              .final_norm = "model.norm.weight",
                                              .output = "lm_head.weight",
                                              .layer_prefix = "model.layers.",
                                              .attn_norm = "input_layernorm.weight",
                                              .wo = "self_attn.o_proj.weight",
                                              .q_k_v = "self_attn.qkv_proj.weight",
                                              .ffn_norm = "post_attention_layernorm.weight",
                                              .down = "mlp.down_proj.weight",
                                              .gate_up = "mlp.gate_up_proj.weight"};
  return names;
}

constexpr IdleField kPhi3Idle[] = {{"resid_pdrop"},
                                   {"embd_pdrop"},
                                   {"attention_bias", "false"},
                                   {"mlp_bias", "false"},
                                   {"lm_head_bias", "false"},
                                   {"full_attn_mod", "1"},
                                   {"interpolate_factor", "1"}};

constexpr HfFamily kPhi3Families[] = {{"Phi3ForCausalLM", "phi3", ReadPhi3, Phi3Names, kPhi3Idle}};

}  // namespace

std::span<const HfFamily> HfPhi3Family() { return kPhi3Families; }

}  // namespace hydrant
