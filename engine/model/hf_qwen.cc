// Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): biases of queries, keys and values. Qwen3
// (arXiv 2505.09388): no biases but QK norm per head; also with experts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr IdleField kQwenIdle[] = {{"use_mrope", "false"}};

// Layers from max_window_layers on have a window, if use_sliding_window is set.
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

// The layers listed in mlp_only_layers, and those skipped by decoder_sparse_step.
absl::Status ReadDenseLayers(HfFields& root, ModelConfig* config) {
  int step = 1;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "decoder_sparse_step", false, &step));
  if (step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("decoder_sparse_step is ", step, ", the limit is 1"));
  }
  std::set<int64_t> listed;
  if (const nlohmann::json* layers = root.Find("mlp_only_layers"); layers != nullptr) {
    const auto is_layer = [](const nlohmann::json& layer) { return layer.is_number_integer(); };
    if (!layers->is_array() || !std::ranges::all_of(*layers, is_layer))
      return WrongField("mlp_only_layers", *layers, "an array of numbers of layers");
    for (const nlohmann::json& layer : *layers) listed.insert(layer.get<int64_t>());
  }
  config->layer_kinds.resize(config->num_layers);
  for (int layer = 0; layer < config->num_layers; ++layer)
    config->layer_kinds[layer].dense = listed.contains(layer) || (layer + 1) % step != 0;
  return absl::OkStatus();
}

// The window applies to every layer; max_window_layers is ignored.
absl::Status ReadQwen3Moe(HfFields& root, ModelConfig* config) {
  config->qk_norm = QkNorm::kHead;
  HYDRANT_RETURN_IF_ERROR(
      ReadHfDecoder(root, {.max_context = 32768, .kv_heads_as_heads = false}, config));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, false, config));
  HYDRANT_RETURN_IF_ERROR(ReadHfExperts(root,
                                        {.count = "num_experts",
                                         .newer_count = "num_local_experts",
                                         .default_count = 128,
                                         .default_per_token = 8,
                                         .intermediate_size = "moe_intermediate_size",
                                         .default_intermediate_size = 768},
                                        config));
  bool divided = false, windowed = false;
  int window = 0;
  HYDRANT_RETURN_IF_ERROR(ReadBool(root, "norm_topk_prob", &divided));
  config->experts->weights = divided ? ExpertWeights::kOfChosen : ExpertWeights::kOfAll;
  HYDRANT_RETURN_IF_ERROR(ReadDenseLayers(root, config));
  HYDRANT_RETURN_IF_ERROR(ReadBool(root, "use_sliding_window", &windowed));
  HYDRANT_RETURN_IF_ERROR(ReadHfWindow(root, 4096, &window));
  SetWindow(windowed ? window : 0, config);
  return absl::OkStatus();
}

const TensorNames& Qwen3MoeNames() {
  static const auto& names = *[] {
    auto* moe = new TensorNames(HfLlamaNames());
    moe->router = "mlp.gate.weight";
    moe->expert_prefix = "mlp.experts.";
    moe->expert_gate = "gate_proj.weight";
    moe->expert_up = "up_proj.weight";
    moe->expert_down = "down_proj.weight";
    return moe;
  }();
  return names;
}

constexpr IdleField kQwenMoeIdle[] = {{"use_mrope", "false"},
                                      {"max_window_layers"},
                                      {"output_router_logits"},
                                      {"router_aux_loss_coef"}};

constexpr HfFamily kQwenFamilies[] = {
    {"Qwen2ForCausalLM", "qwen2", ReadQwen2, HfLlamaNames, kQwenIdle},
    {"Qwen3ForCausalLM", "qwen3", ReadQwen3, HfLlamaNames, kQwenIdle},
    {"Qwen3MoeForCausalLM", "qwen3_moe", ReadQwen3Moe, Qwen3MoeNames, kQwenMoeIdle},
};

}  // namespace

std::span<const HfFamily> HfQwenFamilies() { return kQwenFamilies; }

}  // namespace hydrant
