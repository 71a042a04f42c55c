#include "engine/model/model_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
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

// Norms and biases are small, and every kernel wants them in f32. If values lie a step apart, the
// view covers the first.
absl::Status ToFloat(const ExpectedTensor& expected, ModelTensors* owner, TensorView* view) {
  const int64_t step = expected.row_step;
  if (view->dtype == DType::kF32 && expected.offset == 0 && step == 1) return absl::OkStatus();
  const int64_t count = view->NumElements();
  const size_t size = static_cast<size_t>(count) * sizeof(float);
  uint8_t* bytes = Allocate(owner, size);
  if (bytes == nullptr) return NoMemory(expected.name, size);
  auto* const values = reinterpret_cast<float*>(bytes);
  for (int64_t i = 0; i < count; i += step == 1 ? count : 1) {
    DequantizeRow(view->dtype, view->bytes.data() + BytesOf(view->dtype, i * step),
                  step == 1 ? count : 1, values + i);
  }
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(values[i] + expected.offset);
  view->dtype = DType::kF32;
  view->bytes = {bytes, size};
  return absl::OkStatus();
}

// Data may start at any address, as a safetensors header may have any length; kernels need aligned
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

// Rows first, first + step, ... of a matrix with bytes or with its own RowMaker.
class EveryNthRow final : public RowMaker {
 public:
  EveryNthRow(const TensorView& of, int64_t first, int64_t step)
      : of_(of), first_(first), step_(step), row_bytes_(BytesOf(of.dtype, of.shape[1])) {}

  void Make(int64_t row, uint8_t* out) const override {
    const int64_t from = first_ + row * step_;
    if (of_.maker != nullptr) return of_.maker->Make(of_.first_made + from, out);
    std::memcpy(out, of_.bytes.data() + from * row_bytes_, row_bytes_);
  }

 private:
  const TensorView of_;
  const int64_t first_, step_;
  const size_t row_bytes_;
};

// The expected rows of a tensor that holds more.
TensorView RowsOf(const ExpectedTensor& expected, const TensorView& whole) {
  if (expected.row_step == 1) return whole.Rows(expected.first_row, expected.shape[0]);
  TensorView rows = whole;
  rows.shape[0] = expected.shape[0];
  if (rows.shape.size() == 1) {  // ToFloat() handles steps
    rows.bytes = whole.bytes.subspan(BytesOf(whole.dtype, expected.first_row));
    return rows;
  }
  rows.maker = std::make_shared<EveryNthRow>(whole, expected.first_row, expected.row_step);
  rows.first_made = 0;
  rows.bytes = {};
  return rows;
}

absl::Status Gather(const ExpectedTensor& expected, const FindTensor& find, ModelTensors* owner,
                    TensorView* out) {
  HYDRANT_ASSIGN_OR_RETURN(TensorView found, find(expected.name));
  if (found.shape != expected.StoredShape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(expected.name), " has shape ", ShapeText(found.shape),
                     ", the configuration wants ", ShapeText(expected.StoredShape())));
  }
  if (expected.whole_matrices != 0) {
    found.shape = expected.shape;
    found.shape[0] = expected.whole_rows;
  }
  *out = expected.whole_rows == 0 ? std::move(found) : RowsOf(expected, found);
  out->name = expected.name;
  if (expected.shape.size() == 1) {
    HYDRANT_RETURN_IF_ERROR(ToFloat(expected, owner, out));
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

std::vector<int64_t> ExpectedTensor::StoredShape() const {
  std::vector<int64_t> stored = shape;
  if (whole_rows != 0) stored[0] = whole_rows;
  if (whole_matrices != 0) {
    stored[0] /= whole_matrices;
    stored.insert(stored.begin(), whole_matrices);
  }
  return stored;
}

TensorView& ExpectedTensor::In(LayerTensors* layer) const {
  if (expert < 0) return layer->*role;
  if (layer->experts.size() <= static_cast<size_t>(expert)) layer->experts.resize(expert + 1);
  return layer->experts[expert].*expert_role;
}

// Rotation tables (inv_freq) are ignored; the engine computes them.
const TensorNames& HfLlamaNames() {
  static const auto& names = *new TensorNames{.embedding = "model.embed_tokens.weight",
                                              .final_norm = "model.norm.weight",
                                              .output = "lm_head.weight",
                                              .layer_prefix = "model.layers.",
                                              .attn_norm = "input_layernorm.weight",
                                              .wq = "self_attn.q_proj.weight",
                                              .wk = "self_attn.k_proj.weight",
                                              .wv = "self_attn.v_proj.weight",
                                              .wo = "self_attn.o_proj.weight",
                                              .q_norm = "self_attn.q_norm.weight",
                                              .k_norm = "self_attn.k_norm.weight",
                                              .ffn_norm = "post_attention_layernorm.weight",
                                              .gate = "mlp.gate_proj.weight",
                                              .up = "mlp.up_proj.weight",
                                              .down = "mlp.down_proj.weight",
                                              .ignored_endings = {".rotary_emb.inv_freq"}};
  return names;
}

namespace {

// "x.weight" becomes "x.bias".
std::string BiasName(const std::string& weight) {
  return weight.substr(0, weight.rfind('.')) + ".bias";
}

using Role = TensorView LayerTensors::*;

// Collects a layer's tensors.
class LayerList {
 public:
  LayerList(const TensorNames& names, int layer) : names_(names), layer_(layer) {}

  void AddNorm(bool wanted, const std::string& name, int64_t size, Role weight,
               Role bias = nullptr) {
    if (!wanted || name.empty()) return;
    const std::string full = names_.InLayer(layer_, name);
    tensors_.push_back(
        {.name = full, .shape = {size}, .role = weight, .offset = names_.norm_offset});
    if (bias != nullptr) tensors_.push_back({BiasName(full), {size}, bias});
  }

  void AddNumbers(bool wanted, const std::string& name, int64_t count, Role role) {
    if (!wanted || name.empty()) return;
    tensors_.push_back({.name = names_.InLayer(layer_, name), .shape = {count}, .role = role});
  }

  struct Part {
    int64_t rows;
    Role weight, bias;
  };
  // Matrices that follow each other in one tensor, or a single matrix that fills it.
  void AddMatrices(const std::string& name, const std::vector<Part>& parts, int64_t cols,
                   bool biased) {
    if (name.empty()) return;
    const std::string full = names_.InLayer(layer_, name);
    int64_t whole = 0, first = 0;
    for (const Part& part : parts) whole += part.rows;
    const int64_t whole_rows = parts.size() > 1 ? whole : 0;
    for (const Part& part : parts) {
      ExpectedTensor tensor = {.name = full,
                               .shape = {part.rows, cols},
                               .role = part.weight,
                               .first_row = first,
                               .whole_rows = whole_rows};
      tensors_.push_back(tensor);
      first += part.rows;
      if (!biased) continue;
      tensor.name = BiasName(full);
      tensor.shape = {part.rows};
      tensor.role = part.bias;
      tensors_.push_back(std::move(tensor));
    }
  }

  using ExpertRole = TensorView ExpertTensors::*;
  struct ExpertPart {
    int64_t rows;
    ExpertRole weight, bias;
  };
  // One or several consecutive matrices of each expert, in a tensor per expert or in one for all.
  void AddExpertMatrices(const std::string& name, const std::vector<ExpertPart>& parts,
                         int64_t cols, const Experts& experts) {
    if (name.empty()) return;
    const bool stacked = names_.expert_prefix.empty();
    int64_t own_rows = 0, first = 0;
    for (const ExpertPart& part : parts) own_rows += part.rows;
    for (int e = 0; e < experts.count; ++e) {
      const std::string own = stacked ? name : absl::StrCat(names_.expert_prefix, e, ".", name);
      ExpectedTensor tensor;
      tensor.name = names_.InLayer(layer_, own);
      tensor.expert = e;
      if (stacked) tensor.whole_matrices = experts.count;
      if (stacked || parts.size() > 1) tensor.whole_rows = own_rows * (stacked ? experts.count : 1);
      if (!stacked) first = 0;
      tensor.row_step = names_.expert_rows_alternate ? static_cast<int64_t>(parts.size()) : 1;
      for (size_t i = 0; i < parts.size(); ++i) {
        const ExpertPart& part = parts[i];
        tensor.first_row = tensor.row_step > 1 ? e * own_rows + static_cast<int64_t>(i) : first;
        first += part.rows;
        tensor.shape = {part.rows, cols};
        tensor.expert_role = part.weight;
        tensors_.push_back(tensor);
        if (!experts.biases) continue;
        ExpectedTensor bias = tensor;
        bias.name = BiasName(tensor.name);
        bias.shape = {part.rows};
        bias.expert_role = part.bias;
        tensors_.push_back(std::move(bias));
      }
    }
  }

  std::vector<ExpectedTensor> Take() { return std::move(tensors_); }

 private:
  const TensorNames& names_;
  const int layer_;
  std::vector<ExpectedTensor> tensors_;
};

void AddNorms(const ModelConfig& c, const TensorNames& names, LayerList* list) {
  using L = LayerTensors;
  const bool before = c.norm_placement != NormPlacement::kAfter;
  const bool after = c.norm_placement != NormPlacement::kBefore;
  const bool biased = c.norm == NormKind::kLayer;
  const int h = c.hidden_size;
  list->AddNorm(before, names.attn_norm, h, &L::attn_norm, biased ? &L::attn_norm_bias : nullptr);
  list->AddNorm(before, names.ffn_norm, h, &L::ffn_norm, biased ? &L::ffn_norm_bias : nullptr);
  list->AddNorm(after, names.attn_post_norm, h, &L::attn_post_norm);
  list->AddNorm(after, names.ffn_post_norm, h, &L::ffn_post_norm);
  const bool whole = c.qk_norm == QkNorm::kWhole, normed = c.qk_norm != QkNorm::kNone;
  list->AddNorm(normed, names.q_norm, whole ? c.QDim() : c.head_dim, &L::q_norm);
  list->AddNorm(normed, names.k_norm, whole ? c.KvDim() : c.head_dim, &L::k_norm);
}

void AddDense(const ModelConfig& c, const TensorNames& names, LayerList* list) {
  using L = LayerTensors;
  using Part = LayerList::Part;
  const int64_t h = c.hidden_size, inter = c.intermediate_size;
  const bool biased = c.biases.feed_forward;
  const Part gate{inter, &L::gate, &L::gate_bias}, up{inter, &L::up, &L::up_bias};
  if (c.gated) list->AddMatrices(names.gate, {gate}, h, biased);
  list->AddMatrices(names.up, {up}, h, biased);
  list->AddMatrices(names.gate_up, {gate, up}, h, biased);
  list->AddMatrices(names.down, {{h, &L::down, &L::down_bias}}, inter, biased);
}

void AddExperts(const ModelConfig& c, const TensorNames& names, LayerList* list) {
  using L = LayerTensors;
  using E = ExpertTensors;
  using Part = LayerList::ExpertPart;
  const Experts& experts = *c.experts;
  const int64_t h = c.hidden_size, inter = experts.intermediate_size;
  const Part gate{inter, &E::gate, &E::gate_bias}, up{inter, &E::up, &E::up_bias};
  list->AddMatrices(names.router, {{experts.count, &L::router, &L::router_bias}}, h,
                    experts.router_bias);
  list->AddExpertMatrices(names.expert_gate, {gate}, h, experts);
  list->AddExpertMatrices(names.expert_up, {up}, h, experts);
  list->AddExpertMatrices(names.expert_gate_up, {gate, up}, h, experts);
  list->AddExpertMatrices(names.expert_down, {{h, &E::down, &E::down_bias}}, inter, experts);
}

}  // namespace

std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& c, const TensorNames& names,
                                                 int layer) {
  using L = LayerTensors;
  using Part = LayerList::Part;
  const int64_t h = c.hidden_size, q = c.QDim(), kv = c.KvDim();
  const Part wq{q, &L::wq, &L::bq}, wk{kv, &L::wk, &L::bk}, wv{kv, &L::wv, &L::bv};
  LayerList list(names, layer);
  AddNorms(c, names, &list);
  list.AddMatrices(names.wq, {wq}, h, c.biases.qkv);
  list.AddMatrices(names.wk, {wk}, h, c.biases.qkv);
  list.AddMatrices(names.wv, {wv}, h, c.biases.qkv);
  list.AddMatrices(names.q_k_v, {wq, wk, wv}, h, c.biases.qkv);
  list.AddMatrices(names.wqkv, {{3 * q, &L::wqkv, &L::bqkv}}, h, c.biases.qkv);
  list.AddNumbers(c.sink_logits, names.sink_logits, c.num_heads, &L::sink_logits);
  list.AddMatrices(names.wo, {{h, &L::wo, &L::bo}}, q, c.biases.attention_output);
  if (c.HasDense(layer)) AddDense(c, names, &list);
  if (c.HasExperts(layer)) AddExperts(c, names, &list);
  return list.Take();
}

std::vector<ExpectedTensor> ExpectedOuterTensors(const ModelConfig& c, const TensorNames& names) {
  using O = OuterTensors;
  const int h = c.hidden_size;
  std::vector<ExpectedTensor> outer = {
      {names.embedding, {c.vocab_size, h}, nullptr, &O::embedding}};
  outer.push_back({.name = names.final_norm,
                   .shape = {h},
                   .outer = &O::final_norm,
                   .offset = names.norm_offset});
  if (c.norm == NormKind::kLayer)
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
      TensorView& target = expected.In(&tensors.layers[layer]);
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
