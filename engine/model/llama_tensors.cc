#include "engine/model/llama_tensors.h"

#include <new>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/dequantize.h"

namespace hydrant {
namespace {

// Fresh bytes with the alignment of operator new, or null.
uint8_t* Allocate(LlamaTensors* owner, size_t size) {
  owner->owned.emplace_back(new (std::nothrow) uint8_t[size]);
  return owner->owned.back().get();
}

absl::Status NoMemory(const std::string& name, size_t size) {
  return absl::ResourceExhaustedError(
      absl::StrCat("tensor ", Quoted(name), ": no memory for ", size, " bytes"));
}

// Norms are few and small, and every kernel wants them in f32.
absl::Status ToFloat(const std::string& name, LlamaTensors* owner, TensorView* view) {
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
absl::Status Align(const std::string& name, LlamaTensors* owner, TensorView* view) {
  const size_t alignment = view->dtype == DType::kF32 ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(view->bytes.data()) % alignment == 0) return absl::OkStatus();
  uint8_t* bytes = Allocate(owner, view->bytes.size());
  if (bytes == nullptr) return NoMemory(name, view->bytes.size());
  std::copy(view->bytes.begin(), view->bytes.end(), bytes);
  view->bytes = {bytes, view->bytes.size()};
  return absl::OkStatus();
}

absl::Status Gather(const ExpectedTensor& expected, const FindTensor& find, LlamaTensors* owner,
                    TensorView* out) {
  absl::StatusOr<TensorView> found = find(expected.name);
  if (!found.ok()) return found.status();
  if (found->shape != expected.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(expected.name), " has shape ", ShapeText(found->shape),
                     ", the configuration wants ", ShapeText(expected.shape)));
  }
  *out = *std::move(found);
  const bool is_norm = expected.shape.size() == 1;
  if (is_norm) {
    if (absl::Status s = ToFloat(expected.name, owner, out); !s.ok()) return s;
  }
  return Align(expected.name, owner, out);
}

}  // namespace

std::string LlamaTensorNames::InLayer(int layer, const std::string& name) const {
  return absl::StrCat(layer_prefix, layer, ".", name);
}

const LlamaTensorNames& GgufLlamaNames() {
  static const auto& names = *new LlamaTensorNames{
      "token_embd.weight",  "output_norm.weight", "output.weight",   "blk.",
      "attn_norm.weight",   "attn_q.weight",      "attn_k.weight",   "attn_v.weight",
      "attn_output.weight", "ffn_norm.weight",    "ffn_gate.weight", "ffn_up.weight",
      "ffn_down.weight"};
  return names;
}

const LlamaTensorNames& HuggingFaceLlamaNames() {
  static const auto& names = *new LlamaTensorNames{"model.embed_tokens.weight",
                                                   "model.norm.weight",
                                                   "lm_head.weight",
                                                   "model.layers.",
                                                   "input_layernorm.weight",
                                                   "self_attn.q_proj.weight",
                                                   "self_attn.k_proj.weight",
                                                   "self_attn.v_proj.weight",
                                                   "self_attn.o_proj.weight",
                                                   "post_attention_layernorm.weight",
                                                   "mlp.gate_proj.weight",
                                                   "mlp.up_proj.weight",
                                                   "mlp.down_proj.weight"};
  return names;
}

std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& c,
                                                 const LlamaTensorNames& names, int layer) {
  using L = LlamaLayerTensors;
  const auto in_layer = [&](const std::string& name) { return names.InLayer(layer, name); };
  return {{in_layer(names.attn_norm), {c.hidden_size}, &L::attn_norm},
          {in_layer(names.wq), {c.QDim(), c.hidden_size}, &L::wq},
          {in_layer(names.wk), {c.KvDim(), c.hidden_size}, &L::wk},
          {in_layer(names.wv), {c.KvDim(), c.hidden_size}, &L::wv},
          {in_layer(names.wo), {c.hidden_size, c.QDim()}, &L::wo},
          {in_layer(names.ffn_norm), {c.hidden_size}, &L::ffn_norm},
          {in_layer(names.gate), {c.intermediate_size, c.hidden_size}, &L::gate},
          {in_layer(names.up), {c.intermediate_size, c.hidden_size}, &L::up},
          {in_layer(names.down), {c.hidden_size, c.intermediate_size}, &L::down}};
}

std::vector<ExpectedTensor> ExpectedOuterTensors(const ModelConfig& c,
                                                 const LlamaTensorNames& names) {
  std::vector<ExpectedTensor> outer = {{names.embedding, {c.vocab_size, c.hidden_size}, nullptr},
                                       {names.final_norm, {c.hidden_size}, nullptr}};
  if (!c.tied_embeddings) outer.push_back({names.output, {c.vocab_size, c.hidden_size}, nullptr});
  return outer;
}

absl::StatusOr<LlamaLayerTensors> LlamaTensors::Layer(int layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("layer is ", layer, ", the model has layers 0 to ", layers.size() - 1));
  }
  return layers[layer];
}

absl::StatusOr<LlamaTensors> GatherLlamaTensors(const ModelConfig& config,
                                                const LlamaTensorNames& names,
                                                const FindTensor& find) {
  LlamaTensors tensors;
  const std::vector<ExpectedTensor> outer = ExpectedOuterTensors(config, names);
  TensorView* const targets[] = {&tensors.embedding, &tensors.final_norm, &tensors.output};
  for (size_t i = 0; i < outer.size(); ++i) {
    if (absl::Status s = Gather(outer[i], find, &tensors, targets[i]); !s.ok()) return s;
  }
  if (config.tied_embeddings) tensors.output = tensors.embedding;
  tensors.layers.resize(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const ExpectedTensor& expected : ExpectedLayerTensors(config, names, layer)) {
      TensorView& target = tensors.layers[layer].*expected.role;
      if (absl::Status s = Gather(expected, find, &tensors, &target); !s.ok()) return s;
    }
  }
  return tensors;
}

absl::Status CheckNoStrangers(const ModelConfig& config, const LlamaTensorNames& names,
                              const std::vector<std::string>& present,
                              const std::function<bool(const std::string&)>& ignored) {
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : ExpectedOuterTensors(config, names))
    known.insert(tensor.name);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const ExpectedTensor& tensor : ExpectedLayerTensors(config, names, layer))
      known.insert(tensor.name);
  }
  for (const std::string& name : present) {
    if (known.contains(name) || ignored(name)) continue;
    return absl::UnimplementedError(absl::StrCat(
        "tensor ", Quoted(name), " is not part of a llama model of ", config.num_layers,
        " layers; biases, expert weights and extra norms are not supported"));
  }
  return absl::OkStatus();
}

}  // namespace hydrant
