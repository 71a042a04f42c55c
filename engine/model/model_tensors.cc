#include "engine/model/model_tensors.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Fresh bytes with the alignment of operator new, or null.
uint8_t* Allocate(ModelTensors* owner, size_t size) {
  owner->owned.emplace_back(new (std::nothrow) uint8_t[size]);
  return owner->owned.back().get();
}

absl::Status NoMemory(const std::string& name, size_t size) {
  return absl::ResourceExhaustedError(
      absl::StrCat("tensor ", Quoted(name), ": no memory for ", size, " bytes"));
}

// Norms and biases are few and small, and every kernel wants them in f32.
absl::Status ToFloat(const std::string& name, ModelTensors* owner, TensorView* view) {
  if (view->dtype == DType::kF32) return absl::OkStatus();
  const int64_t count = view->NumElements();
  const size_t size = static_cast<size_t>(count) * sizeof(float);
  uint8_t* bytes = Allocate(owner, size);
  if (bytes == nullptr) return NoMemory(name, size);
  DequantizeRow(view->dtype, view->bytes.data(), count, reinterpret_cast<float*>(bytes));
  *view = {DType::kF32, view->shape, {bytes, size}};
  return absl::OkStatus();
}

// A safetensors header may have any length, so its data may lie at any address; kernels read whole
// elements.
absl::Status Align(const std::string& name, ModelTensors* owner, TensorView* view) {
  const size_t alignment = view->dtype == DType::kF32 ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(view->bytes.data()) % alignment == 0) return absl::OkStatus();
  uint8_t* bytes = Allocate(owner, view->bytes.size());
  if (bytes == nullptr) return NoMemory(name, view->bytes.size());
  std::copy(view->bytes.begin(), view->bytes.end(), bytes);
  view->bytes = {bytes, view->bytes.size()};
  return absl::OkStatus();
}

absl::Status Gather(const ExpectedTensor& expected, const FindTensor& find, ModelTensors* owner,
                    TensorView* out) {
  HYDRANT_ASSIGN_OR_RETURN(TensorView found, find(expected.name));
  if (found.shape != expected.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(expected.name), " has shape ", ShapeText(found.shape),
                     ", the configuration wants ", ShapeText(expected.shape)));
  }
  *out = std::move(found);
  if (expected.shape.size() == 1) {
    HYDRANT_RETURN_IF_ERROR(ToFloat(expected.name, owner, out));
  }
  return Align(expected.name, owner, out);
}

}  // namespace

std::string TensorNames::InLayer(int layer, const std::string& name) const {
  return absl::StrCat(layer_prefix, layer, ".", name);
}

TensorNames TensorNames::WithoutOuterModule() const {
  TensorNames names = *this;
  for (std::string* name :
       {&names.embedding, &names.positions, &names.final_norm, &names.layer_prefix}) {
    if (name->starts_with(outer_module)) name->erase(0, outer_module.size());
  }
  return names;
}

const TensorNames& GgufLlamaNames() {
  static const auto& names = *new TensorNames{.embedding = "token_embd.weight",
                                              .final_norm = "output_norm.weight",
                                              .output = "output.weight",
                                              .layer_prefix = "blk.",
                                              .attn_norm = "attn_norm.weight",
                                              .wq = "attn_q.weight",
                                              .wk = "attn_k.weight",
                                              .wv = "attn_v.weight",
                                              .wo = "attn_output.weight",
                                              .ffn_norm = "ffn_norm.weight",
                                              .gate = "ffn_gate.weight",
                                              .up = "ffn_up.weight",
                                              .down = "ffn_down.weight"};
  return names;
}

namespace {

// Rotation tables (inv_freq) are computed here.
const TensorNames& LlamaNames() {
  static const auto& names = *new TensorNames{.embedding = "model.embed_tokens.weight",
                                              .final_norm = "model.norm.weight",
                                              .output = "lm_head.weight",
                                              .layer_prefix = "model.layers.",
                                              .attn_norm = "input_layernorm.weight",
                                              .wq = "self_attn.q_proj.weight",
                                              .wk = "self_attn.k_proj.weight",
                                              .wv = "self_attn.v_proj.weight",
                                              .wo = "self_attn.o_proj.weight",
                                              .ffn_norm = "post_attention_layernorm.weight",
                                              .gate = "mlp.gate_proj.weight",
                                              .up = "mlp.up_proj.weight",
                                              .down = "mlp.down_proj.weight",
                                              .ignored_endings = {".rotary_emb.inv_freq"}};
  return names;
}

// Position p has row p + 2: the first two are from the padding of the code OPT was trained with.
// Some of the published files were saved without "model.".
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
                                              .biases = true,
                                              .outer_module = "model."};
  return names;
}

// attention.bias and attention.masked_bias are the causal mask.
const TensorNames& GptNeoxNames() {
  static const auto& names = *new TensorNames{
      .embedding = "gpt_neox.embed_in.weight",
      .final_norm = "gpt_neox.final_layer_norm.weight",
      .output = "embed_out.weight",
      .layer_prefix = "gpt_neox.layers.",
      .attn_norm = "input_layernorm.weight",
      .wqkv = "attention.query_key_value.weight",
      .wo = "attention.dense.weight",
      .ffn_norm = "post_attention_layernorm.weight",
      .up = "mlp.dense_h_to_4h.weight",
      .down = "mlp.dense_4h_to_h.weight",
      .biases = true,
      .ignored_endings = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"}};
  return names;
}

// "x.weight" becomes "x.bias".
std::string BiasName(const std::string& weight) {
  return weight.substr(0, weight.rfind('.')) + ".bias";
}

}  // namespace

const TensorNames& HuggingFaceNames(const ModelConfig& config) {
  if (config.architecture == "opt") return OptNames();
  if (config.architecture == "gpt_neox") return GptNeoxNames();
  return LlamaNames();
}

std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& c, const TensorNames& names,
                                                 int layer) {
  using L = LayerTensors;
  const int h = c.hidden_size, inter = c.intermediate_size;
  const struct {
    const std::string& name;
    std::vector<int64_t> shape;
    TensorView L::*weight;
    TensorView L::*bias;
  } rows[] = {{names.attn_norm, {h}, &L::attn_norm, &L::attn_norm_bias},
              {names.wq, {c.QDim(), h}, &L::wq, &L::bq},
              {names.wk, {c.KvDim(), h}, &L::wk, &L::bk},
              {names.wv, {c.KvDim(), h}, &L::wv, &L::bv},
              {names.wqkv, {3 * c.QDim(), h}, &L::wqkv, &L::bqkv},
              {names.wo, {h, c.QDim()}, &L::wo, &L::bo},
              {names.ffn_norm, {h}, &L::ffn_norm, &L::ffn_norm_bias},
              {names.gate, {inter, h}, &L::gate, nullptr},
              {names.up, {inter, h}, &L::up, &L::up_bias},
              {names.down, {h, inter}, &L::down, &L::down_bias}};
  std::vector<ExpectedTensor> expected;
  for (const auto& row : rows) {
    if (row.name.empty()) continue;
    const std::string name = names.InLayer(layer, row.name);
    expected.push_back({name, row.shape, row.weight});
    if (names.biases) expected.push_back({BiasName(name), {row.shape[0]}, row.bias});
  }
  return expected;
}

std::vector<ExpectedTensor> ExpectedOuterTensors(const ModelConfig& c, const TensorNames& names) {
  using O = OuterTensors;
  const int h = c.hidden_size;
  std::vector<ExpectedTensor> outer = {{names.embedding, {c.vocab_size, h}, nullptr, &O::embedding},
                                       {names.final_norm, {h}, nullptr, &O::final_norm}};
  if (names.biases)
    outer.push_back({BiasName(names.final_norm), {h}, nullptr, &O::final_norm_bias});
  if (!names.positions.empty())
    outer.push_back(
        {names.positions, {c.max_context + names.unused_positions, h}, nullptr, &O::positions});
  if (!c.tied_embeddings) outer.push_back({names.output, {c.vocab_size, h}, nullptr, &O::output});
  return outer;
}

absl::StatusOr<LayerTensors> ModelTensors::Layer(int layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("layer is ", layer, ", the model has layers 0 to ", layers.size() - 1));
  }
  return layers[layer];
}

absl::StatusOr<ModelTensors> GatherTensors(const ModelConfig& config, const TensorNames& names,
                                           const FindTensor& find) {
  ModelTensors tensors;
  OuterTensors& outer = tensors.outer;
  for (const ExpectedTensor& expected : ExpectedOuterTensors(config, names)) {
    HYDRANT_RETURN_IF_ERROR(Gather(expected, find, &tensors, &(outer.*expected.outer)));
  }
  if (config.tied_embeddings) outer.output = outer.embedding;
  if (outer.positions.Exists())
    outer.positions = outer.positions.Rows(names.unused_positions, config.max_context);
  tensors.layers.resize(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const ExpectedTensor& expected : ExpectedLayerTensors(config, names, layer)) {
      TensorView& target = tensors.layers[layer].*expected.role;
      HYDRANT_RETURN_IF_ERROR(Gather(expected, find, &tensors, &target));
    }
  }
  return tensors;
}

absl::Status CheckNoUnknownTensors(const ModelConfig& config, const TensorNames& names,
                                   const std::vector<std::string>& present,
                                   const std::function<bool(const std::string&)>& ignored) {
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : ExpectedOuterTensors(config, names))
    known.insert(tensor.name);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const ExpectedTensor& tensor : ExpectedLayerTensors(config, names, layer))
      known.insert(tensor.name);
  }
  const auto holds_no_weights = [&](const std::string& name) {
    return std::any_of(names.ignored_endings.begin(), names.ignored_endings.end(),
                       [&](const std::string& ending) { return name.ends_with(ending); });
  };
  for (const std::string& name : present) {
    if (known.contains(name) || holds_no_weights(name) || ignored(name)) continue;
    return absl::UnimplementedError(
        absl::StrCat("tensor ", Quoted(name), " is not part of the ", config.architecture,
                     " model of ", config.num_layers,
                     " layers; other biases, expert weights and extra norms are not supported"));
  }
  return absl::OkStatus();
}

}  // namespace hydrant
