// Gemma 1 (arXiv 2403.08295): wide heads, scaled embeddings, GELU in the gate, and norm weights
// stored minus 1.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status ReadGemma(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root,
                                        {.kv_heads_as_heads = false,
                                         .head_dim = 256,
                                         .tied_embeddings = true,
                                         .activation = "gelu_pytorch_tanh"},
                                        c));
  if (c->activation == Activation::kGelu) c->activation = Activation::kGeluTanh;  // older files
  c->embedding_scale = std::sqrt(c->hidden_size);
  HYDRANT_RETURN_IF_ERROR(WantValue(root, "use_bidirectional_attention", false,
                                    "attention to later tokens is not supported"));
  return ReadHfBiases(root, false, c);
}

const TensorNames& GemmaNames() {
  static const auto& names = *[] {
    auto* gemma = new TensorNames(HfLlamaNames());
    gemma->norm_offset = 1.0;
    return gemma;
  }();
  return names;
}

// The activation in the family's first files, beside hidden_act.
constexpr IdleField kGemmaIdle[] = {{"hidden_activation", "\"gelu_pytorch_tanh\""}};

// null: no cap.
absl::Status ReadSoftCap(HfFields& root, const char* key, double absent, double* cap) {
  *cap = root.Contains(key) ? 0.0 : absent;
  if (root.Find(key) == nullptr) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, key, true, cap));
  if (*cap > 0.0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", *cap, ", wanted null or more than 0"));
}

// Shared by Gemma 2 and 3: norms before and after attention and feed-forward, the attention scale.
absl::Status ReadBothNorms(HfFields& root, double rope_theta, ModelConfig* c) {
  c->norm_placement = NormPlacement::kBoth;
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root,
                                        {.kv_heads_as_heads = false,
                                         .head_dim = 256,
                                         .rope_theta = rope_theta,
                                         .tied_embeddings = true,
                                         .activation = "gelu_pytorch_tanh",
                                         .activation_key = "hidden_activation"},
                                        c));
  c->embedding_scale = std::sqrt(c->hidden_size);
  int scalar = 256;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "query_pre_attn_scalar", false, &scalar));
  c->attention_scale = 1.0 / std::sqrt(scalar);
  HYDRANT_RETURN_IF_ERROR(WantValue(root, "use_bidirectional_attention", false,
                                    "attention to later tokens is not supported"));
  return ReadHfBiases(root, false, c);
}

// Gemma 2 (arXiv 2408.00118): bounded logits, a window in every other layer.
absl::Status ReadGemma2(HfFields& root, ModelConfig* c) {
  HYDRANT_RETURN_IF_ERROR(ReadBothNorms(root, 10000.0, c));
  HYDRANT_RETURN_IF_ERROR(ReadSoftCap(root, "attn_logit_softcapping", 50.0, &c->attention_softcap));
  HYDRANT_RETURN_IF_ERROR(ReadSoftCap(root, "final_logit_softcapping", 30.0, &c->logit_softcap));
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  return ReadHfLayerTypes(
      root, window, [](int layer) { return layer % 2 == 0; }, c);
}

// Text models of Gemma 3 (arXiv 2503.19786): QK norm per head; five layers with a window for each
// layer without.
absl::Status ReadGemma3(HfFields& root, ModelConfig* c) {
  c->qk_norm = QkNorm::kHead;
  c->sliding_rope = Rope::WithTheta(10000.0);
  HYDRANT_RETURN_IF_ERROR(ReadReal(root, "rope_local_base_freq", false, &c->sliding_rope->theta));
  HYDRANT_RETURN_IF_ERROR(ReadBothNorms(root, 1000000.0, c));
  int window = 0, pattern = 6;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "sliding_window_pattern", false, &pattern));
  if (pattern == 0) return absl::InvalidArgumentError("sliding_window_pattern is 0");
  return ReadHfLayerTypes(
      root, window, [pattern](int layer) { return (layer + 1) % pattern != 0; }, c);
}

const TensorNames& BothNormsNames() {
  static const auto& names = *[] {
    auto* gemma = new TensorNames(GemmaNames());
    gemma->attn_post_norm = "post_attention_layernorm.weight";
    gemma->ffn_norm = "pre_feedforward_layernorm.weight";
    gemma->ffn_post_norm = "post_feedforward_layernorm.weight";
    return gemma;
  }();
  return names;
}

constexpr IdleField kGemma2Idle[] = {{"hidden_act", "\"gelu_pytorch_tanh\""},
                                     {"cache_implementation"}};
constexpr IdleField kGemma3Idle[] = {{"cache_implementation"}, {"_sliding_window_pattern"}};

constexpr HfFamily kGemmaFamilies[] = {
    {"GemmaForCausalLM", "gemma", ReadGemma, GemmaNames, kGemmaIdle},
    {"Gemma2ForCausalLM", "gemma2", ReadGemma2, BothNormsNames, kGemma2Idle},
    {"Gemma3ForCausalLM", "gemma3_text", ReadGemma3, BothNormsNames, kGemma3Idle}};

}  // namespace

std::span<const HfFamily> HfGemmaFamilies() { return kGemmaFamilies; }

}  // namespace hydrant
