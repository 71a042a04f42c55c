// The tensors of a model by role, gathered from whatever names a file format gives them and
// checked against the configuration once, at opening. Immutable afterwards, so any thread may read.
#ifndef HYDRANT_ENGINE_MODEL_MODEL_TENSORS_H_
#define HYDRANT_ENGINE_MODEL_MODEL_TENSORS_H_

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

// How a format names the tensors of a family; an empty name is of a tensor that it lacks. A layer's
// tensor is layer_prefix + number + "." + its own name.
struct TensorNames {
  std::string embedding = {}, final_norm = {}, output = {};
  std::string positions = {};
  int unused_positions = 0;  // rows of `positions` before that of position 0
  std::string layer_prefix = {};
  std::string attn_norm = {}, wq = {}, wk = {}, wv = {}, wqkv = {}, wo = {};
  std::string ffn_norm = {}, gate = {}, up = {}, down = {};
  bool biases = false;  // beside every norm and every matrix of a layer: "x.bias" to "x.weight"
  std::vector<std::string> ignored_endings = {};  // of names of tensors that hold no weights
  std::string outer_module = {};  // the names' beginning, which some files leave out

  std::string InLayer(int layer, const std::string& name) const;
  TensorNames WithoutOuterModule() const;
};

const TensorNames& GgufLlamaNames();
const TensorNames& HuggingFaceNames(const ModelConfig& config);  // by its architecture

// The tensors outside the layers (ModelSource).
struct OuterTensors {
  TensorView embedding, positions, final_norm, final_norm_bias, output;
};

// A tensor a configuration asks for.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorView LayerTensors::*role = nullptr;   // null for those outside the layers
  TensorView OuterTensors::*outer = nullptr;  // null for those of a layer
};
std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& config,
                                                 const TensorNames& names, int layer);
std::vector<ExpectedTensor> ExpectedOuterTensors(const ModelConfig& config,
                                                 const TensorNames& names);

// Every view's bytes are aligned to the element (blocks: to 2 bytes), norms and biases are f32.
struct ModelTensors {
  OuterTensors outer;
  std::vector<LayerTensors> layers;
  std::vector<std::unique_ptr<uint8_t[]>> owned;  // bytes that had to be converted or moved

  absl::StatusOr<LayerTensors> Layer(int layer) const;
};

using FindTensor = std::function<absl::StatusOr<TensorView>(const std::string& name)>;
// Finds every tensor of the configuration. A missing one is named; a wrong shape is shown beside
// the wanted one.
absl::StatusOr<ModelTensors> GatherTensors(const ModelConfig& config, const TensorNames& names,
                                           const FindTensor& find);

// Refuses a model that holds a tensor this code would not use: a bias, a norm or an expert left out
// silently would change the answers. Names that `ignored` accepts, and the names' own
// ignored_endings, are passed over.
absl::Status CheckNoUnknownTensors(const ModelConfig& config, const TensorNames& names,
                                   const std::vector<std::string>& present,
                                   const std::function<bool(const std::string&)>& ignored);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_TENSORS_H_
