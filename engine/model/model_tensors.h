// The tensors of a model by role, gathered from the names of its file format and checked once
// against the configuration at opening. Immutable afterwards, so any thread may read.
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

// A format's tensor names for a family; an empty name: the family lacks the tensor. A layer's
// tensor is layer_prefix + number + "." + its own name. The configuration decides which of the
// names present are used. The bias of "x.weight" is "x.bias".
struct TensorNames {
  std::string embedding = {}, final_norm = {}, output = {};
  std::string positions = {};
  int unused_positions = 0;  // rows of `positions` before the row of position 0
  std::string layer_prefix = {};
  std::string attn_norm = {}, attn_post_norm = {}, wq = {}, wk = {}, wv = {}, wo = {};
  std::string wqkv = {};   // a head's query, key and value, then the next head's
  std::string q_k_v = {};  // all rows of wq, then those of wk, then those of wv
  std::string q_norm = {}, k_norm = {};
  std::string sink_logits = {};
  std::string ffn_norm = {}, ffn_post_norm = {}, gate = {}, up = {}, down = {};
  std::string gate_up = {};  // all rows of gate, then those of up
  // Experts: expert_prefix + number + "." + these names; without a prefix each tensor holds the
  // matrices of all experts, one after the other.
  std::string router = {}, expert_prefix = {};
  std::string expert_gate = {}, expert_up = {}, expert_gate_up = {}, expert_down = {};
  bool expert_rows_alternate = false;  // rows of expert_gate_up alternate: gate, up, gate, ...
  double norm_offset = 0;              // added to the weights of norms
  std::vector<std::string> ignored_endings = {};  // endings of names that are not weights
  std::string outer_module = {};                  // prefix of the names that some files omit

  std::string InLayer(int layer, const std::string& name) const;
  TensorNames WithoutOuterModule() const;
};

// Names of Llama and of families with the same tensors (hf_families.h has the others).
const TensorNames& HfLlamaNames();

// The tensors outside the layers (ModelSource).
struct OuterTensors {
  TensorView embedding, positions, final_norm, final_norm_bias, output;
};

// A tensor required by a configuration, or a part of one.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorView LayerTensors::*role = nullptr;   // null outside the layers
  TensorView OuterTensors::*outer = nullptr;  // null within a layer
  int64_t first_row = 0;                      // in the stored tensor
  int64_t row_step = 1;                       // distance between rows in the stored tensor
  int64_t whole_rows = 0;                     // rows of the stored tensor; 0: this is all of it
  double offset = 0;                          // added to the values
  int64_t whole_matrices = 0;  // matrices in the stored tensor; 0: it is [whole_rows, cols]
  int expert = -1;             // the expert this belongs to; -1: none
  TensorView ExpertTensors::*expert_role = nullptr;

  bool IsBias() const { return name.ends_with(".bias"); }
  // The expected shape of the stored tensor.
  std::vector<int64_t> StoredShape() const;
  // Its field in `layer`; makes room for its expert. REQUIRES: outer is null
  TensorView& In(LayerTensors* layer) const;
};
std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& config,
                                                 const TensorNames& names, int layer);
std::vector<ExpectedTensor> ExpectedOuterTensors(const ModelConfig& config,
                                                 const TensorNames& names);

// Every view's bytes are aligned to the element (blocks: to 2 bytes); norms and biases are f32.
struct ModelTensors {
  OuterTensors outer;
  std::vector<LayerTensors> layers;
  std::vector<std::unique_ptr<uint8_t[]>> owned;  // converted or realigned bytes

  absl::StatusOr<LayerTensors> Layer(int layer) const;
};

using FindTensor = std::function<absl::StatusOr<TensorView>(const std::string& name)>;
// Finds every tensor of the configuration. Errors name a missing tensor, or show a wrong shape
// beside the expected one.
absl::StatusOr<ModelTensors> GatherTensors(const ModelConfig& config, const TensorNames& names,
                                           const FindTensor& find);

// Refuses a model with a tensor that this code would not use: omitting a bias, a norm or an expert
// would change the answers. Skips names that `ignored` accepts and names.ignored_endings.
absl::Status CheckNoUnknownTensors(const ModelConfig& config, const TensorNames& names,
                                   const std::vector<std::string>& present,
                                   const std::function<bool(const std::string&)>& ignored);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_TENSORS_H_
