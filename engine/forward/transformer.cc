#include "engine/forward/transformer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/forward/rope_table.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// One after the other; of absent tensors there is nothing.
absl::Status LoadVectors(Backend& backend, const std::vector<TensorView>& tensors,
                         DeviceArray<float>* out) {
  std::vector<float> values;
  for (const TensorView& tensor : tensors) {
    if (!tensor.Exists()) continue;
    const size_t end = values.size();
    values.resize(end + tensor.NumElements());
    DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data() + end);
  }
  return values.empty() ? absl::OkStatus() : out->AllocateFrom(backend, values);
}

// A fused projection's rows [head, (query, key, value), head_dim] as the projections of all
// queries, all keys and all values, a part per head. Drawn ones are the same in any order.
std::vector<TensorView> SplitFused(const TensorView& fused, const ModelConfig& config) {
  if (!fused.Exists() || fused.normals.has_value()) return {fused};
  std::vector<TensorView> parts;
  for (int kind = 0; kind < 3; ++kind) {
    for (int head = 0; head < config.num_heads; ++head)
      parts.push_back(fused.Rows((3 * head + kind) * config.head_dim, config.head_dim));
  }
  return parts;
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

// Of the matrices; norms and biases are nothing beside them.
absl::StatusOr<uint64_t> WeightBytes(const ModelSource& source, WeightDType dtype) {
  absl::Status status;
  uint64_t sum = 0;
  const auto add = [&](const absl::StatusOr<TensorView>& tensor) {
    if (tensor.ok() && tensor->Exists()) sum += BytesAs(dtype, *tensor);
    status.Update(tensor.status());
  };
  add(source.Embedding());
  add(source.Positions());
  if (!source.config().tied_embeddings) add(source.Output());
  for (int i = 0; i < source.config().num_layers && status.ok(); ++i) {
    HYDRANT_ASSIGN_OR_RETURN(const LayerTensors layer, source.Layer(i));
    for (const TensorView& tensor :
         {layer.wq, layer.wk, layer.wv, layer.wqkv, layer.wo, layer.gate, layer.up, layer.down}) {
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
  allocate(gate_up, n * (config.activation.has_value() ? 1 : 2) * config.intermediate_size);
  allocate(gated, BytesOf(input_dtype, n * config.intermediate_size));
  return status;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    Backend* backend, std::shared_ptr<const ModelSource> source, WeightDType dtype,
    int max_positions, const std::function<void(double)>& progress) {
  std::unique_ptr<Transformer> model(new Transformer(backend, std::move(source)));
  HYDRANT_RETURN_IF_ERROR(model->Load(dtype, max_positions, progress));
  return model;
}

absl::Status Transformer::Load(WeightDType dtype, int max_positions,
                               const std::function<void(double)>& progress) {
  HYDRANT_RETURN_IF_ERROR(CheckFits(dtype));
  const int num_layers = config().num_layers;
  layers_.resize(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    HYDRANT_RETURN_IF_ERROR(LoadLayer(layer, dtype));
    if (progress) progress((layer + 1.0) / (num_layers + 1.0));
  }
  HYDRANT_RETURN_IF_ERROR(LoadHead(dtype));
  if (config().RotaryDim() > 0) {
    const RopeTable rope = MakeRopeTable(config(), max_positions);
    HYDRANT_RETURN_IF_ERROR(cos_.AllocateFrom(*backend_, rope.cos));
    HYDRANT_RETURN_IF_ERROR(sin_.AllocateFrom(*backend_, rope.sin));
  }
  if (progress) progress(1.0);
  return source_->CheckUnchanged();
}

// Said before the first of them is read. A system that promises more memory than it has would kill
// the process in the middle.
absl::Status Transformer::CheckFits(WeightDType dtype) const {
  HYDRANT_ASSIGN_OR_RETURN(const uint64_t wanted, WeightBytes(*source_, dtype));
  HYDRANT_ASSIGN_OR_RETURN(const DeviceMemory memory, backend_->Memory());
  if (wanted <= memory.total_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the weights need ", wanted, " bytes, the device has ", memory.total_bytes));
}

absl::Status Transformer::LoadLayer(int index, WeightDType dtype) {
  HYDRANT_ASSIGN_OR_RETURN(const LayerTensors t, source_->Layer(index));
  Layer& layer = layers_[index];
  absl::Status status = LoadNorm(t.attn_norm, t.attn_norm_bias, &layer.attn_norm);
  if (status.ok()) status = LoadNorm(t.ffn_norm, t.ffn_norm_bias, &layer.ffn_norm);
  if (status.ok() && t.wqkv.Exists()) {
    status =
        LoadLinear(SplitFused(t.wqkv, config()), SplitFused(t.bqkv, config()), dtype, &layer.qkv);
  } else if (status.ok()) {
    status = LoadLinear({t.wq, t.wk, t.wv}, {t.bq, t.bk, t.bv}, dtype, &layer.qkv);
  }
  if (status.ok()) status = LoadLinear({t.wo}, {t.bo}, dtype, &layer.wo);
  if (status.ok()) status = LoadLinear({t.gate, t.up}, {t.up_bias}, dtype, &layer.gate_up);
  if (status.ok()) status = LoadLinear({t.down}, {t.down_bias}, dtype, &layer.down);
  return status;
}

absl::Status Transformer::LoadHead(WeightDType dtype) {
  const auto pack = [&](const absl::StatusOr<TensorView>& tensor, std::unique_ptr<Weight>* weight) {
    if (!tensor.ok()) return tensor.status();
    if (!tensor->Exists()) return absl::OkStatus();
    HYDRANT_ASSIGN_OR_RETURN(*weight, Pack({*tensor}, dtype));
    return absl::OkStatus();
  };
  HYDRANT_ASSIGN_OR_RETURN(const TensorView norm, source_->FinalNorm());
  HYDRANT_ASSIGN_OR_RETURN(const TensorView bias, source_->FinalNormBias());
  absl::Status status = LoadNorm(norm, bias, &final_norm_);
  if (status.ok()) status = pack(source_->Embedding(), &embedding_);
  if (status.ok()) status = pack(source_->Positions(), &positions_);
  if (status.ok() && !config().tied_embeddings) status = pack(source_->Output(), &output_);
  return status;
}

absl::Status Transformer::LoadNorm(const TensorView& weight, const TensorView& bias, Norm* norm) {
  absl::Status status = LoadVectors(*backend_, {weight}, &norm->weight);
  return status.ok() ? LoadVectors(*backend_, {bias}, &norm->bias) : status;
}

absl::Status Transformer::LoadLinear(const std::vector<TensorView>& weights,
                                     const std::vector<TensorView>& biases, WeightDType dtype,
                                     Linear* linear) {
  HYDRANT_ASSIGN_OR_RETURN(linear->weight, Pack(weights, dtype));
  return LoadVectors(*backend_, biases, &linear->bias);
}

// Absent parts are passed over.
absl::StatusOr<std::unique_ptr<Weight>> Transformer::Pack(const std::vector<TensorView>& parts,
                                                          WeightDType dtype) {
  std::vector<WeightPart> weight_parts;
  weight_parts.reserve(parts.size());
  for (const TensorView& part : parts) {
    if (!part.Exists()) continue;
    weight_parts.push_back({part.dtype, part.bytes.data(), static_cast<int>(part.shape[0]),
                            static_cast<int>(part.shape[1]), part.normals});
  }
  absl::StatusOr<std::unique_ptr<Weight>> weight = backend_->PackWeight(weight_parts, dtype);
  if (weight.ok()) weight_bytes_ += (*weight)->bytes();
  return weight;
}

void Transformer::Embed(const TokenId* ids, const int32_t* positions, int rows,
                        float* hidden) const {
  backend_->Embed({.ids = ids, .m = rows, .table = embedding_.get(), .out = hidden});
  if (positions_ == nullptr) return;
  backend_->Embed({.ids = reinterpret_cast<const uint32_t*>(positions),  // none is negative
                   .m = rows,
                   .table = positions_.get(),
                   .out = hidden,
                   .accumulate = true});
}

void Transformer::Normalise(const float* x, const Norm& norm, int rows, int first,
                            const Activations& act) const {
  const int n = config().hidden_size;
  const auto eps = static_cast<float>(config().norm_eps);
  void* out = act.At(act.normed, static_cast<size_t>(first) * n);
  if (config().norm == NormKind::kRms) {
    backend_->RmsNorm({.x = x,
                       .weight = norm.weight.data(),
                       .m = rows,
                       .n = n,
                       .eps = eps,
                       .out = out,
                       .out_dtype = act.input_dtype});
  } else {
    backend_->LayerNorm({.x = x,
                         .weight = norm.weight.data(),
                         .bias = norm.bias.data(),
                         .m = rows,
                         .n = n,
                         .eps = eps,
                         .out = out,
                         .out_dtype = act.input_dtype});
  }
}

void Transformer::ProjectQkv(int layer, const float* hidden, const int32_t* positions, int rows,
                             const Activations& act, const KvDestination& kv) const {
  const Layer& weights = layers_[layer];
  Normalise(hidden, weights.attn_norm, rows, 0, act);
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weights.qkv.weight.get(),
                    .y = act.qkv.data(),
                    .bias = weights.qkv.bias.data()});
  RopeSplitArgs split = Splitting(positions, rows, act);
  split.q = act.q.data();
  split.k = kv.k;
  split.v = kv.v;
  split.kv_row_stride = kv.row_stride;
  split.kv_head_stride = kv.head_stride;
  backend_->RopeSplit(split);
}

void Transformer::RotateQueries(const int32_t* positions, int rows, const Activations& act,
                                float* q) const {
  RopeSplitArgs split = Splitting(positions, rows, act);
  split.q = q;
  backend_->RopeSplit(split);
}

// Of act.qkv, outputs aside.
RopeSplitArgs Transformer::Splitting(const int32_t* positions, int rows,
                                     const Activations& act) const {
  return {.qkv = act.qkv.data(),
          .positions = positions,
          .cos = cos_.data(),
          .sin = sin_.data(),
          .m = rows,
          .num_heads = config().num_heads,
          .num_kv_heads = config().num_kv_heads,
          .head_dim = config().head_dim,
          .rotary_dim = config().RotaryDim(),
          .interleaved = config().rope_pairing == RopePairing::kInterleaved};
}

void Transformer::FinishLayer(int layer, float* hidden, int rows, const Activations& act) const {
  const Layer& weights = layers_[layer];
  const bool parallel = config().parallel_residual;
  if (parallel) Normalise(hidden, weights.ffn_norm, rows, 0, act);
  backend_->Matmul({.x = act.attended.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weights.wo.weight.get(),
                    .y = hidden,
                    .accumulate = true,
                    .bias = weights.wo.bias.data()});
  if (!parallel) Normalise(hidden, weights.ffn_norm, rows, 0, act);
  FeedForward(weights, hidden, rows, act);
}

// hidden += feed-forward of act.normed.
void Transformer::FeedForward(const Layer& layer, float* hidden, int rows,
                              const Activations& act) const {
  const int n = config().intermediate_size;
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = layer.gate_up.weight.get(),
                    .y = act.gate_up.data(),
                    .bias = layer.gate_up.bias.data()});
  if (config().activation.has_value()) {
    backend_->Activate({.x = act.gate_up.data(),
                        .activation = *config().activation,
                        .m = rows,
                        .n = n,
                        .out = act.gated.data(),
                        .out_dtype = act.input_dtype});
  } else {
    backend_->Swiglu({.gate_up = act.gate_up.data(),
                      .m = rows,
                      .n = n,
                      .out = act.gated.data(),
                      .out_dtype = act.input_dtype});
  }
  backend_->Matmul({.x = act.gated.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = layer.down.weight.get(),
                    .y = hidden,
                    .accumulate = true,
                    .bias = layer.down.bias.data()});
}

void Transformer::FinalNorm(const float* hidden, int rows, int first,
                            const Activations& act) const {
  Normalise(hidden, final_norm_, rows, first, act);
}

void Transformer::Logits(const Activations& act, int rows, float* logits) const {
  const Weight* weight = output_ ? output_.get() : embedding_.get();
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = weight,
                    .y = logits});
}

}  // namespace hydrant
