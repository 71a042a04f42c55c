// Llama (arXiv 2302.13971, 2407.21783), Mistral (arXiv 2310.06825) with a window in every layer,
// and Ministral with one in some.
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr IdleField kLlamaIdle[] = {
    {"pretraining_tp"},       // the slicing of a matmul in training
    {"max_sequence_length"},  // of older files, beside max_position_embeddings
    {"is_llama_config"},      // this and the next: of SmolLM2's training program
    {"rope_interleaved", "false"},
};

absl::Status ReadLlama(HfFields& root, ModelConfig* config) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.max_context = 2048}, config));
  return ReadHfBiases(root, true, config);
}

// The default window is 4096, here and below.
absl::Status ReadMistral(HfFields& root, ModelConfig* config) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.kv_heads_as_heads = false}, config));
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  SetWindow(window, config);
  return absl::OkStatus();
}

absl::Status ReadMinistral(HfFields& root, ModelConfig* config) {
  if (root.Find("head_dim") == nullptr) return absl::NotFoundError("head_dim is missing");
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.kv_heads_as_heads = false}, config));
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  const auto is_sliding = [window](int) { return window > 0; };
  return ReadHfLayerTypes(root, window, is_sliding, config);
}

constexpr HfFamily kLlamaFamilies[] = {
    {"LlamaForCausalLM", "llama", ReadLlama, HfLlamaNames, kLlamaIdle},
    {"MistralForCausalLM", "mistral", ReadMistral, HfLlamaNames, kLlamaIdle},
    {"MinistralForCausalLM", "ministral", ReadMinistral, HfLlamaNames, kLlamaIdle},
};

}  // namespace

std::span<const HfFamily> HfLlamaFamilies() { return kLlamaFamilies; }

}  // namespace hydrant
