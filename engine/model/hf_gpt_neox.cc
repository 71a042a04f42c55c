// GPT-NeoX (arXiv 2204.06745, section 2.1): RoPE on a part of each head, and a parallel residual.
// Pythia models are of this family.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// transformers writes these fields from the ones above and never reads them; a different value
// means that the file is inconsistent.
absl::Status WantAgreement(HfFields& root, const char* key, double used) {
  double said = used;
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, key, false, &said));
  if (said == used) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(key, " is ", said,
                   ", but transformers reads it in rope_parameters, rotary_emb_base"
                   " and rotary_pct alone, which say ",
                   used));
}

// rotary_pct and rotary_emb_base, which rope_parameters replaced in transformers 5.
absl::Status ReadRotary(HfFields& root, ModelConfig* c) {
  double rotated = 0.25;
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rotary_emb_base", false, &c->rope.theta));
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rotary_pct", false, &rotated));
  HYDRANT_RETURN_IF_ERROR(ReadHfRope(root, {}, c, &rotated));
  if (!(rotated >= 0.0 && rotated <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary_pct (partial_rotary_factor) is ", rotated, ", the limit is 0 to 1"));
  }
  c->rotary_dim = static_cast<int>(c->head_dim * rotated);
  HYDRANT_RETURN_IF_ERROR(WantAgreement(root, "rope_theta", c->rope.theta));
  return WantAgreement(root, "partial_rotary_factor", rotated);
}

absl::Status ReadGptNeox(HfFields& root, ModelConfig* c) {
  c->max_context = 2048;
  c->norm = NormKind::kLayer;
  c->norm_eps = 1e-5;
  c->biases = {true, true, true};
  c->gated = false;
  c->parallel_residual = true;
  absl::Status status = ReadHfSizes(root, "intermediate_size", c);
  if (status.ok()) status = ReadInt(root, "max_position_embeddings", false, &c->max_context);
  if (status.ok()) status = SetHeadDim(c);
  if (status.ok())
    status = WantValue(root, "attention_bias", true, "a model without biases is not supported");
  if (status.ok()) status = ReadReal(root, "layer_norm_eps", false, &c->norm_eps);
  if (status.ok()) status = ReadBool(root, "use_parallel_residual", &c->parallel_residual);
  if (status.ok()) status = ReadBool(root, "tie_word_embeddings", &c->tied_embeddings);
  if (status.ok()) status = ReadHfActivation(root, "hidden_act", "gelu", c);
  return status.ok() ? ReadRotary(root, c) : status;
}

// attention.bias and attention.masked_bias are the causal mask.
const TensorNames& GptNeoxNames() {
  static const auto& names = *new TensorNames{
      .embedding = "gpt_neox.embed_in.weight",
      .final_norm = "gpt_neox.final_layer_norm.weight",
      .output = "embed_out.weight",
      .layer_prefix = "gpt_neox.layers.",
      .attn_norm = "input_layernorm.weight",
      .wo = "attention.dense.weight",
      .wqkv = "attention.query_key_value.weight",
      .ffn_norm = "post_attention_layernorm.weight",
      .up = "mlp.dense_h_to_4h.weight",
      .down = "mlp.dense_4h_to_h.weight",
      .ignored_endings = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"}};
  return names;
}

constexpr IdleField kGptNeoxIdle[] = {{"hidden_dropout"},
                                      {"classifier_dropout"},
                                      {"attention_probs_dropout_prob"},
                                      {"hidden_dropout_prob"}};

constexpr HfFamily kGptNeoxFamilies[] = {
    {"GPTNeoXForCausalLM", "gpt_neox", ReadGptNeox, GptNeoxNames, kGptNeoxIdle}};

}  // namespace

std::span<const HfFamily> HfGptNeoxFamily() { return kGptNeoxFamilies; }

}  // namespace hydrant
