#include "engine/llama_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/rope_table.h"
#include "kernels/dequantize.h"

namespace hydrant {
namespace {

absl::Status LoadVector(Backend& backend, const TensorView& tensor, DeviceArray<float>* out) {
  std::vector<float> values(tensor.NumElements());
  DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data());
  return out->AllocateFrom(backend, values);
}

uint64_t BytesAs(WeightDType dtype, const TensorView& tensor) {
  switch (dtype) {
    case WeightDType::kFloat32:
      return BytesOf(DType::kF32, tensor.NumElements());
    case WeightDType::kBFloat16:
      return BytesOf(DType::kBF16, tensor.NumElements());
    case WeightDType::kStored:
      return BytesOf(tensor.dtype, tensor.NumElements());
  }
  return 0;
}

// Of the matrices; norms are nothing beside them.
absl::StatusOr<uint64_t> WeightBytes(const ModelSource& source, WeightDType dtype) {
  absl::Status status;
  uint64_t sum = 0;
  const auto add = [&](const absl::StatusOr<TensorView>& tensor) {
    if (tensor.ok()) sum += BytesAs(dtype, *tensor);
    status.Update(tensor.status());
  };
  add(source.Embedding());
  if (!source.config().tied_embeddings) add(source.Output());
  for (int i = 0; i < source.config().num_layers && status.ok(); ++i) {
    const absl::StatusOr<LlamaLayerTensors> layer = source.Layer(i);
    if (!layer.ok()) return layer.status();
    for (const TensorView& tensor :
         {layer->wq, layer->wk, layer->wv, layer->wo, layer->gate, layer->up, layer->down}) {
      add(tensor);
    }
  }
  if (!status.ok()) return status;
  return sum;
}

}  // namespace

absl::Status Activations::Allocate(Backend& backend, const ModelConfig& config, WeightDType dtype,
                                   int rows) {
  const size_t n = rows;
  input_dtype = backend.ActivationDType(dtype);
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(backend, count);
  };
  allocate(normed, BytesOf(input_dtype, n * config.hidden_size));
  allocate(qkv, n * (config.QDim() + 2 * config.KvDim()));
  allocate(q, n * config.QDim());
  allocate(attended, BytesOf(input_dtype, n * config.QDim()));
  allocate(gate_up, n * 2 * config.intermediate_size);
  allocate(gated, BytesOf(input_dtype, n * config.intermediate_size));
  return status;
}

absl::StatusOr<std::unique_ptr<LlamaModel>> LlamaModel::Create(
    Backend* backend, std::shared_ptr<const ModelSource> source, WeightDType dtype,
    int max_positions, const std::function<void(double)>& progress) {
  std::unique_ptr<LlamaModel> model(new LlamaModel(backend, std::move(source)));
  if (absl::Status status = model->Load(dtype, max_positions, progress); !status.ok())
    return status;
  return model;
}

absl::Status LlamaModel::Load(WeightDType dtype, int max_positions,
                              const std::function<void(double)>& progress) {
  if (absl::Status status = CheckFits(dtype); !status.ok()) return status;
  const int num_layers = config().num_layers;
  layers_.resize(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    if (absl::Status status = LoadLayer(layer, dtype); !status.ok()) return status;
    if (progress) progress((layer + 1.0) / (num_layers + 1.0));
  }
  if (absl::Status status = LoadHead(dtype); !status.ok()) return status;
  const RopeTable rope = MakeRopeTable(config(), max_positions);
  if (absl::Status status = cos_.AllocateFrom(*backend_, rope.cos); !status.ok()) return status;
  if (absl::Status status = sin_.AllocateFrom(*backend_, rope.sin); !status.ok()) return status;
  if (progress) progress(1.0);
  return absl::OkStatus();
}

// Said before the first of them is read. A system that promises more memory than it has would kill
// the process in the middle.
absl::Status LlamaModel::CheckFits(WeightDType dtype) const {
  const absl::StatusOr<uint64_t> wanted = WeightBytes(*source_, dtype);
  if (!wanted.ok()) return wanted.status();
  const absl::StatusOr<DeviceMemory> memory = backend_->Memory();
  if (!memory.ok()) return memory.status();
  if (*wanted <= memory->total_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the weights need ", *wanted, " bytes, the device has ", memory->total_bytes));
}

absl::Status LlamaModel::LoadLayer(int index, WeightDType dtype) {
  absl::StatusOr<LlamaLayerTensors> tensors = source_->Layer(index);
  if (!tensors.ok()) return tensors.status();
  Layer& layer = layers_[index];
  if (absl::Status status = LoadVector(*backend_, tensors->attn_norm, &layer.attn_norm);
      !status.ok())
    return status;
  if (absl::Status status = LoadVector(*backend_, tensors->ffn_norm, &layer.ffn_norm); !status.ok())
    return status;
  absl::Status status;
  const auto pack = [&](const std::vector<TensorView>& parts, std::unique_ptr<Weight>* weight) {
    if (!status.ok()) return;
    absl::StatusOr<std::unique_ptr<Weight>> packed = Pack(parts, dtype);
    status = packed.status();
    if (status.ok()) *weight = *std::move(packed);
  };
  pack({tensors->wq, tensors->wk, tensors->wv}, &layer.qkv);
  pack({tensors->wo}, &layer.wo);
  pack({tensors->gate, tensors->up}, &layer.gate_up);
  pack({tensors->down}, &layer.down);
  return status;
}

absl::Status LlamaModel::LoadHead(WeightDType dtype) {
  absl::StatusOr<TensorView> norm = source_->FinalNorm();
  if (!norm.ok()) return norm.status();
  if (absl::Status status = LoadVector(*backend_, *norm, &final_norm_); !status.ok()) return status;
  absl::StatusOr<TensorView> embedding = source_->Embedding();
  if (!embedding.ok()) return embedding.status();
  absl::StatusOr<std::unique_ptr<Weight>> table = Pack({*embedding}, dtype);
  if (!table.ok()) return table.status();
  embedding_ = *std::move(table);
  if (config().tied_embeddings) return absl::OkStatus();
  absl::StatusOr<TensorView> output = source_->Output();
  if (!output.ok()) return output.status();
  absl::StatusOr<std::unique_ptr<Weight>> packed = Pack({*output}, dtype);
  if (!packed.ok()) return packed.status();
  output_ = *std::move(packed);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Weight>> LlamaModel::Pack(const std::vector<TensorView>& parts,
                                                         WeightDType dtype) {
  std::vector<WeightPart> weight_parts;
  weight_parts.reserve(parts.size());
  for (const TensorView& part : parts) {
    weight_parts.push_back({part.dtype, part.bytes.data(), static_cast<int>(part.shape[0]),
                            static_cast<int>(part.shape[1]), part.normals});
  }
  absl::StatusOr<std::unique_ptr<Weight>> weight = backend_->PackWeight(weight_parts, dtype);
  if (weight.ok()) weight_bytes_ += (*weight)->bytes();
  return weight;
}

void LlamaModel::Embed(const TokenId* ids, int rows, float* hidden) const {
  backend_->Embed({.ids = ids, .m = rows, .table = embedding_.get(), .out = hidden});
}

void LlamaModel::Norm(const float* x, const DeviceArray<float>& weight, int rows, int first,
                      const Activations& act) const {
  backend_->RmsNorm({.x = x,
                     .weight = weight.data(),
                     .m = rows,
                     .n = config().hidden_size,
                     .eps = static_cast<float>(config().norm_eps),
                     .out = act.At(act.normed, static_cast<size_t>(first) * config().hidden_size),
                     .out_dtype = act.input_dtype});
}

void LlamaModel::ProjectQkv(int layer, const float* hidden, const int32_t* positions, int rows,
                            const Activations& act, const KvDestination& kv) const {
  Norm(hidden, layers_[layer].attn_norm, rows, 0, act);
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = layers_[layer].qkv.get(),
                    .y = act.qkv.data()});
  backend_->RopeSplit({.qkv = act.qkv.data(),
                       .positions = positions,
                       .cos = cos_.data(),
                       .sin = sin_.data(),
                       .m = rows,
                       .num_heads = config().num_heads,
                       .num_kv_heads = config().num_kv_heads,
                       .head_dim = config().head_dim,
                       .rotary_dim = config().head_dim,
                       .interleaved = config().rope_pairing == RopePairing::kInterleaved,
                       .q = act.q.data(),
                       .k = kv.k,
                       .v = kv.v,
                       .kv_row_stride = kv.row_stride,
                       .kv_head_stride = kv.head_stride});
}

void LlamaModel::FinishLayer(int layer, float* hidden, int rows, const Activations& act) const {
  const Layer& weights = layers_[layer];
  backend_->Matmul({.x = act.attended.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weights.wo.get(),
                    .y = hidden,
                    .accumulate = true});
  Norm(hidden, weights.ffn_norm, rows, 0, act);
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weights.gate_up.get(),
                    .y = act.gate_up.data()});
  backend_->Swiglu({.gate_up = act.gate_up.data(),
                    .m = rows,
                    .n = config().intermediate_size,
                    .out = act.gated.data(),
                    .out_dtype = act.input_dtype});
  backend_->Matmul({.x = act.gated.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weights.down.get(),
                    .y = hidden,
                    .accumulate = true});
}

void LlamaModel::FinalNorm(const float* hidden, int rows, int first, const Activations& act) const {
  Norm(hidden, final_norm_, rows, first, act);
}

void LlamaModel::Logits(const Activations& act, int rows, float* logits) const {
  const Weight* weight = output_ ? output_.get() : embedding_.get();
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weight,
                    .y = logits});
}

}  // namespace hydrant
