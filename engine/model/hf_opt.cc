// OPT (arXiv 2205.01068): learned positions, LayerNorm before each half of a layer, biases
// everywhere. The 350m model is refused: it normalises afterwards and projects its embeddings.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status CheckArithmetic(HfFields& root, int hidden_size) {
  const struct {
    const char* key;
    bool wanted;
    const char* why;
  } flags[] = {
      {"do_layer_norm_before", true, "normalisation after each half of a layer is not supported"},
      {"_remove_final_layer_norm", false, "a model without its final norm is not supported"},
      {"enable_bias", true, "a model without biases is not supported"},
      {"layer_norm_elementwise_affine", true, "norms without weights are not supported"}};
  for (const auto& flag : flags) {
    HYDRANT_RETURN_IF_ERROR(WantValue(root, flag.key, flag.wanted, flag.why));
  }
  int embedding_dim = hidden_size;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "word_embed_proj_dim", false, &embedding_dim));
  if (embedding_dim == hidden_size) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("word_embed_proj_dim is ", embedding_dim,
                                               ", hidden_size is ", hidden_size,
                                               "; projected embeddings are not supported"));
}

absl::Status ReadOpt(HfFields& root, ModelConfig* c) {
  c->max_context = 2048;
  c->norm = NormKind::kLayer;
  c->norm_eps = 1e-5;  // not in any file
  c->biases = {true, true, true};
  c->gated = false;
  c->rotary_dim = 0;
  c->learned_positions = true;
  c->tied_embeddings = true;
  HYDRANT_RETURN_IF_ERROR(ReadHfSizes(root, "ffn_dim", c));
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "max_position_embeddings", false, &c->max_context));
  HYDRANT_RETURN_IF_ERROR(SetHeadDim(c));
  HYDRANT_RETURN_IF_ERROR(CheckArithmetic(root, c->hidden_size));
  HYDRANT_RETURN_IF_ERROR(ReadHfActivation(root, "activation_function", "relu", c));
  return ReadBool(root, "tie_word_embeddings", &c->tied_embeddings);
}

// Position p has row p + 2: OPT's training code reserved two rows for padding. Some published files
// were saved without "model.".
const TensorNames& OptNames() {
  static const auto& names = *new TensorNames{.embedding = "model.decoder.embed_tokens.weight",
                                              .final_norm = "model.decoder.final_layer_norm.weight",
                                              .output = "lm_head.weight",
                                              .positions = "model.decoder.embed_positions.weight",
                                              .unused_positions = 2,
                                              .layer_prefix = "model.decoder.layers.",
                                              .attn_norm = "self_attn_layer_norm.weight",
                                              .wq = "self_attn.q_proj.weight",
                                              .wk = "self_attn.k_proj.weight",
                                              .wv = "self_attn.v_proj.weight",
                                              .wo = "self_attn.out_proj.weight",
                                              .ffn_norm = "final_layer_norm.weight",
                                              .up = "fc1.weight",
                                              .down = "fc2.weight",
                                              .outer_module = "model."};
  return names;
}

constexpr IdleField kOptIdle[] = {{"dropout"}, {"activation_dropout"}, {"layerdrop"}};

constexpr HfFamily kOptFamilies[] = {{"OPTForCausalLM", "opt", ReadOpt, OptNames, kOptIdle}};

}  // namespace

std::span<const HfFamily> HfOptFamily() { return kOptFamilies; }

}  // namespace hydrant
