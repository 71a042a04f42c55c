// The tensors of a llama model by role, gathered from whatever names a file format gives them and
// checked against the configuration once, at opening. Immutable afterwards, so any thread may read.
#ifndef HYDRANT_ENGINE_MODEL_LLAMA_TENSORS_H_
#define HYDRANT_ENGINE_MODEL_LLAMA_TENSORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/model_source.h"
#include "engine/model/tensor.h"

namespace hydrant {

// How a format names the tensors. A layer's tensor is layer_prefix + number + "." + its own name.
struct LlamaTensorNames {
  std::string embedding, final_norm, output;
  std::string layer_prefix;
  std::string attn_norm, wq, wk, wv, wo, ffn_norm, gate, up, down;

  std::string InLayer(int layer, const std::string& name) const;
};

const LlamaTensorNames& GgufLlamaNames();
const LlamaTensorNames& HuggingFaceLlamaNames();

// A tensor a configuration asks for.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorView LlamaLayerTensors::*role = nullptr;  // null for the three outside the layers
};
std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& config,
                                                 const LlamaTensorNames& names, int layer);
// Embedding, final norm and, unless tied, output; in this order.
std::vector<ExpectedTensor> ExpectedOuterTensors(const ModelConfig& config,
                                                 const LlamaTensorNames& names);

// Every view's bytes are aligned to the element (blocks: to 2 bytes), norms are f32.
struct LlamaTensors {
  TensorView embedding, final_norm, output;
  std::vector<LlamaLayerTensors> layers;
  std::vector<std::unique_ptr<uint8_t[]>> owned;  // bytes that had to be converted or moved

  absl::StatusOr<LlamaLayerTensors> Layer(int layer) const;
};

using FindTensor = std::function<absl::StatusOr<TensorView>(const std::string& name)>;
// Finds every tensor of the configuration. A missing one is named; a wrong shape is shown beside
// the wanted one.
absl::StatusOr<LlamaTensors> GatherLlamaTensors(const ModelConfig& config,
                                                const LlamaTensorNames& names,
                                                const FindTensor& find);

// Refuses a model that holds a tensor this code would not use: a bias, a norm or an expert left out
// silently would change the answers. Names that `ignored` accepts are passed over.
absl::Status CheckNoStrangers(const ModelConfig& config, const LlamaTensorNames& names,
                              const std::vector<std::string>& present,
                              const std::function<bool(const std::string&)>& ignored);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_LLAMA_TENSORS_H_
