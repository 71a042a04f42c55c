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
// tensor is layer_prefix + number + "." + its own name. Of the names that are there those count
// which the configuration asks for. The bias of "x.weight" is "x.bias".
struct TensorNames {
  std::string embedding = {}, final_norm = {}, output = {};
  std::string positions = {};
  int unused_positions = 0;  // rows of `positions` before that of position 0
  std::string layer_prefix = {};
  std::string attn_norm = {}, attn_post_norm = {}, wq = {}, wk = {}, wv = {}, wo = {};
  std::string wqkv = {};   // a head's query, key and value, then the next head's
  std::string q_k_v = {};  // all rows of wq, then those of wk, then those of wv
  std::string q_norm = {}, k_norm = {};
  std::string sink_logits = {};
  std::string ffn_norm = {}, ffn_post_norm = {}, gate = {}, up = {}, down = {};
  std::string gate_up = {};  // all rows of gate, then those of up
  // Of experts: expert_prefix + number + "." + these; without a prefix each holds the matrices of
  // all experts, one after the other.
  std::string router = {}, expert_prefix = {};
  std::string expert_gate = {}, expert_up = {}, expert_gate_up = {}, expert_down = {};
  bool expert_rows_alternate = false;  // of expert_gate_up: a gate's, an up's, and so on
  double norm_offset = 0;              // what the weights of norms are to be increased by
  std::vector<std::string> ignored_endings = {};  // of names of tensors that hold no weights
  std::string outer_module = {};  // the names' beginning, which some files leave out

  std::string InLayer(int layer, const std::string& name) const;
  TensorNames WithoutOuterModule() const;
};

// Of Llama and of those that differ from it in other things (hf_families.h has the other
// families').
const TensorNames& HfLlamaNames();

// The tensors outside the layers (ModelSource).
struct OuterTensors {
  TensorView embedding, positions, final_norm, final_norm_bias, output;
};

// A tensor a configuration asks for, or a part of one.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorView LayerTensors::*role = nullptr;   // null for those outside the layers
  TensorView OuterTensors::*outer = nullptr;  // null for those of a layer
  int64_t first_row = 0;                      // of it, in the tensor of that name
  int64_t row_step = 1;                       // from there to its next
  int64_t whole_rows = 0;                     // which has so many; 0: it is the whole
  double offset = 0;                          // to be added to its values
  int64_t whole_matrices = 0;  // of the whole, one after the other; 0: it is [whole_rows, cols]
  int expert = -1;             // of the layer, whose role it has; -1: of none
  TensorView ExpertTensors::*expert_role = nullptr;

  bool IsBias() const { return name.ends_with(".bias"); }
  // What a file should have under the name.
  std::vector<int64_t> StoredShape() const;
  // Where it belongs among the layer's; makes room for its expert. REQUIRES: outer is null
  TensorView& In(LayerTensors* layer) const;
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
