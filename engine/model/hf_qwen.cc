// Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): biases of queries, keys and values. Qwen3
// (arXiv 2505.09388): none, but a norm of each head of queries and keys.
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr IdleField kIdle[] = {{"use_mrope", "false"}};

// From max_window_layers on layers have a window, where the file says that it is used.
absl::Status ReadWindow(HfFields& root, ModelConfig* config) {
  bool used = false;
  int window = 0, first = 28;
  HYDRANT_RETURN_IF_ERROR(ReadBool(root, "use_sliding_window", &used));
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "max_window_layers", false, &first));
  if (!used) window = 0;
  const auto is_sliding = [=](int layer) { return window > 0 && layer >= first; };
  return ReadHfLayerTypes(root, window, is_sliding, config);
}

absl::Status ReadQwen2(HfFields& root, ModelConfig* config) {
  config->biases.qkv = true;
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(root, {.kv_heads_as_heads = false}, config));
  return ReadWindow(root, config);
}

absl::Status ReadQwen3(HfFields& root, ModelConfig* config) {
  config->qk_norm = QkNorm::kHead;
  HYDRANT_RETURN_IF_ERROR(
      ReadHfDecoder(root, {.kv_heads_as_heads = false, .head_dim = 128}, config));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, false, config));
  return ReadWindow(root, config);
}

constexpr HfFamily kFamilies[] = {
    {"Qwen2ForCausalLM", "qwen2", ReadQwen2, HfLlamaNames, kIdle},
    {"Qwen3ForCausalLM", "qwen3", ReadQwen3, HfLlamaNames, kIdle},
};

}  // namespace

std::span<const HfFamily> HfQwenFamilies() { return kFamilies; }

}  // namespace hydrant
