// SmolLM3: Llama without RoPE in every fourth layer (NoPE, arXiv 2501.18795).
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// no_rope_layers has a 1 for each layer with RoPE, and may be longer than the model.
absl::Status ReadRotatedLayers(HfFields& root, ModelConfig* c) {
  int interval = 4;
  HYDRANT_RETURN_IF_ERROR(ReadInt(root, "no_rope_layer_interval", false, &interval));
  const nlohmann::json* rotated = root.Find("no_rope_layers");
  if (rotated == nullptr && interval == 0)
    return absl::InvalidArgumentError("no_rope_layer_interval is 0, it must be at least 1");
  if (rotated != nullptr && (!rotated->is_array() || rotated->size() < size_t(c->num_layers)))
    return WrongField("no_rope_layers", *rotated, "a number for each of num_hidden_layers");
  for (int layer = 0; layer < c->num_layers; ++layer) {
    if (rotated == nullptr) {
      c->layer_kinds[layer].rotated = (layer + 1) % interval != 0;
      continue;
    }
    const nlohmann::json& flag = (*rotated)[layer];
    if (flag != 0 && flag != 1)
      return WrongField(absl::StrCat("no_rope_layers[", layer, "]").c_str(), flag, "0 or 1");
    c->layer_kinds[layer].rotated = flag == 1;
  }
  return absl::OkStatus();
}

absl::Status ReadSmolLm3(HfFields& root, ModelConfig* config) {
  HYDRANT_RETURN_IF_ERROR(ReadHfDecoder(
      root, {.kv_heads_as_heads = false, .rope_theta = 2000000.0, .tied_embeddings = true},
      config));
  HYDRANT_RETURN_IF_ERROR(ReadHfBiases(root, true, config));
  HYDRANT_RETURN_IF_ERROR(
      WantValue(root, "use_sliding_window", false, "windows are not supported in this family"));
  HYDRANT_RETURN_IF_ERROR(ReadHfLayerTypes(
      root, 0, [](int) { return false; }, config));
  return ReadRotatedLayers(root, config);
}

constexpr IdleField kSmolLm3Idle[] = {
    {"sliding_window"}, {"max_window_layers"}, {"pretraining_tp"}};

constexpr HfFamily kSmolLm3Families[] = {
    {"SmolLM3ForCausalLM", "smollm3", ReadSmolLm3, HfLlamaNames, kSmolLm3Idle}};

}  // namespace

std::span<const HfFamily> HfSmolLm3Family() { return kSmolLm3Families; }

}  // namespace hydrant
