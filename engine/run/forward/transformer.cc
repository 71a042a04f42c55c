#include "engine/run/forward/transformer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/gguf.h"
#include "engine/model/text.h"
#include "engine/run/forward/rope_table.h"
#include "kernels/byte_text.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant {
namespace {

// Loads tensors concatenated; absent ones are skipped.
absl::Status LoadVectors(Backend& backend, const std::vector<TensorView>& tensors,
                         DeviceArray<float>* out, double scale = 1.0) {
  std::vector<float> values;
  for (const TensorView& tensor : tensors) {
    if (!tensor.Exists()) continue;
    const size_t end = values.size();
    values.resize(end + tensor.NumElements());
    DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data() + end);
    if (AllFinite(std::span(values).subspan(end))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quoted(tensor.name), " holds a value that is infinite or not a number"));
  }
  if (values.empty()) return absl::OkStatus();
  for (float& value : values) value = static_cast<float>(value * scale);
  return out->AllocateFrom(backend, values);
}

// Reorders a fused projection's rows [head, (query, key, value), head_dim] to all queries, all keys
// and all values, one part per head. Random weights need no order.
std::vector<TensorView> SplitFused(const TensorView& fused, const ModelConfig& config) {
  if (!fused.Exists() || fused.normals.has_value()) return {fused};
  std::vector<TensorView> parts;
  for (int kind = 0; kind < 3; ++kind) {
    for (int head = 0; head < config.num_heads; ++head)
      parts.push_back(fused.Rows((3 * head + kind) * config.head_dim, config.head_dim));
  }
  return parts;
}

// Embedding and output matrices keep eight bits when other weights have four, as is usual:
// embedding look-ups read few bytes.
WeightDType VocabularyDType(WeightDType dtype) {
  return dtype == WeightDType::kQ4_0 ? WeightDType::kQ8_0 : dtype;
}

// Learned positions are small and stay unquantised.
WeightDType PositionsDType(WeightDType dtype) {
  return Quantises(dtype) ? WeightDType::kStored : dtype;
}

// A router stays unquantised, too: its logits choose the experts.
WeightDType RouterDType(WeightDType dtype) { return PositionsDType(dtype); }

// The name of the model's files for messages.
std::string PathOf(const ModelSource& source) {
  return source.gguf() != nullptr ? source.gguf()->path() : source.folder();
}

// Packed bytes of the matrices; norms and biases are negligible.
absl::StatusOr<uint64_t> WeightBytes(const Backend& backend, const ModelSource& source,
                                     WeightDType dtype) {
  absl::Status status;
  uint64_t sum = 0;
  const auto add = [&](const absl::StatusOr<TensorView>& tensor, WeightDType as) {
    status.Update(tensor.status());
    if (!tensor.ok() || !tensor->Exists()) return;
    const int cols = static_cast<int>(tensor->shape[1]);
    sum += BytesOf(backend.PackedDType(tensor->dtype, as, cols), tensor->NumElements());
  };
  add(source.Embedding(), VocabularyDType(dtype));
  add(source.Positions(), PositionsDType(dtype));
  if (!source.config().tied_embeddings) add(source.Output(), VocabularyDType(dtype));
  for (int i = 0; i < source.config().num_layers && status.ok(); ++i) {
    HYDRANT_ASSIGN_OR_RETURN(const LayerTensors layer, source.Layer(i));
    for (const TensorView& tensor :
         {layer.wq, layer.wk, layer.wv, layer.wqkv, layer.wo, layer.gate, layer.up, layer.down}) {
      add(tensor, dtype);
    }
    add(layer.router, RouterDType(dtype));
    for (const ExpertTensors& expert : layer.experts) {
      for (const TensorView& tensor : {expert.gate, expert.up, expert.down}) add(tensor, dtype);
    }
  }
  if (!status.ok()) return status;
  return sum;
}

}  // namespace

absl::Status Activations::Allocate(Backend& backend, const ModelConfig& config, DType dtype,
                                   int rows) {
  const size_t n = rows;
  input_dtype = dtype;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(backend, count);
  };
  allocate(normed, BytesOf(input_dtype, n * config.hidden_size));
  allocate(qkv, n * (config.QDim() + 2 * config.KvDim()));
  allocate(q, n * config.QDim());
  allocate(attended, BytesOf(input_dtype, n * config.QDim()));
  const size_t dense = config.HasDense() ? n * config.intermediate_size : 1;  // 1: none is used
  allocate(gate_up, (config.gated ? 2 : 1) * dense);
  if (config.norm_placement != NormPlacement::kBefore) allocate(projected, n * config.hidden_size);
  allocate(gated, BytesOf(input_dtype, dense));
  if (input_dtype == DType::kBF16) allocate(squares, n * SplitNorm::Parts(config.hidden_size));
  return status.ok() ? experts.Allocate(backend, config, input_dtype, rows) : status;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    Backend* backend, std::shared_ptr<const ModelSource> source, WeightDType dtype, DType kv_dtype,
    int max_positions, const std::function<void(double)>& progress) {
  std::unique_ptr<Transformer> model(new Transformer(backend, std::move(source)));
  HYDRANT_RETURN_IF_ERROR(model->Load(dtype, kv_dtype, max_positions, progress));
  return model;
}

absl::Status Transformer::Load(WeightDType dtype, DType kv_dtype, int max_positions,
                               const std::function<void(double)>& progress) {
  HYDRANT_ASSIGN_OR_RETURN(const uint64_t wanted, CheckFits(dtype));
  progress_ = [&](int64_t bytes) {
    // The packed bytes include padding and may exceed `wanted`.
    if (progress) progress(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(wanted)));
  };
  if (absl::Status s = LoadWeights(dtype, kv_dtype); !s.ok())
    return WithContext(s, Quoted(PathOf(*source_)));
  progress_ = nullptr;
  if (config().RotaryDim() > 0) {
    HYDRANT_RETURN_IF_ERROR(LoadRope(config().rope, max_positions, &rope_));
    if (config().sliding_rope.has_value())
      HYDRANT_RETURN_IF_ERROR(LoadRope(*config().sliding_rope, max_positions, &sliding_rope_));
  }
  if (progress) progress(1.0);
  return source_->CheckUnchanged();
}

absl::Status Transformer::LoadRope(const Rope& rope, int max_positions, DeviceRope* out) {
  const RopeTable table = MakeRopeTable(rope, config().RotaryDim(), max_positions);
  HYDRANT_RETURN_IF_ERROR(out->cos.AllocateFrom(*backend_, table.cos));
  return out->sin.AllocateFrom(*backend_, table.sin);
}

absl::Status Transformer::LoadWeights(WeightDType dtype, DType kv_dtype) {
  layers_.resize(config().num_layers);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    HYDRANT_RETURN_IF_ERROR(LoadLayer(layer, dtype, kv_dtype));
    source_->ReleasePages();  // else file pages and packed weights would both fill memory
  }
  const absl::Status status = LoadHead(dtype);
  source_->ReleasePages();
  return status;
}

// Checked before any weight is read: a system that overcommits memory would kill the process while
// it loads.
absl::StatusOr<uint64_t> Transformer::CheckFits(WeightDType dtype) const {
  HYDRANT_ASSIGN_OR_RETURN(const uint64_t wanted, WeightBytes(*backend_, *source_, dtype));
  HYDRANT_ASSIGN_OR_RETURN(const DeviceMemory memory, backend_->Memory());
  if (wanted <= memory.total_bytes) return wanted;
  return absl::ResourceExhaustedError(absl::StrCat("the weights need ", FormatByteSize(wanted),
                                                   ", the device has ",
                                                   FormatByteSize(memory.total_bytes)));
}

absl::Status Transformer::LoadLayer(int index, WeightDType dtype, DType kv_dtype) {
  HYDRANT_ASSIGN_OR_RETURN(const LayerTensors t, source_->Layer(index));
  Layer& layer = layers_[index];
  absl::Status status = LoadNorms(t, &layer);
  if (status.ok() && t.wqkv.Exists()) {
    status =
        LoadLinear(SplitFused(t.wqkv, config()), SplitFused(t.bqkv, config()), dtype, &layer.qkv);
  } else if (status.ok()) {
    status = LoadLinear({t.wq, t.wk, t.wv}, {t.bq, t.bk, t.bv}, dtype, &layer.qkv);
  }
  if (status.ok()) status = LoadLinear({t.wo}, {t.bo}, dtype, &layer.wo);
  weight_dtype_ = backend_->PackedDType(t.wo.dtype, dtype, static_cast<int>(t.wo.shape[1]));
  if (status.ok()) status = LoadKeyScaling(t, index, kv_dtype, &layer);
  if (status.ok() && t.up.Exists())
    status = LoadLinear({t.gate, t.up}, {t.gate_bias, t.up_bias}, dtype, &layer.gate_up);
  if (status.ok() && t.down.Exists())
    status = LoadLinear({t.down}, {t.down_bias}, dtype, &layer.down);
  if (status.ok() && !t.experts.empty()) status = LoadExperts(t, dtype, &layer.experts);
  return status;
}

// In 8 bits factors suffice (docs/decisions/keys_scaled_by_their_weights.md).
absl::Status Transformer::LoadKeyScaling(const LayerTensors& t, int index, DType kv_dtype,
                                         Layer* layer) {
  if (BlockElements(kv_dtype) == 1) {
    if (backend_->AttentionDType(kv_dtype, weight_dtype_) != DType::kQ8_0 &&
        backend_->RankingDType(kv_dtype, weight_dtype_) != DType::kQ8_0)
      return absl::OkStatus();
    HYDRANT_ASSIGN_OR_RETURN(const KeyScaling scaling, KeyScalingOf(t, config(), index, false));
    return layer->byte_factors.AllocateFrom(*backend_, scaling.factors);
  }
  const bool centre = kv_dtype == DType::kQ4_0 && MayCentreKeys(config(), t);
  HYDRANT_ASSIGN_OR_RETURN(const KeyScaling scaling, KeyScalingOf(t, config(), index, centre));
  HYDRANT_RETURN_IF_ERROR(layer->factors.AllocateFrom(*backend_, scaling.factors));
  if (scaling.offsets.empty()) return absl::OkStatus();
  centres_keys_ = true;
  return layer->key_offsets.AllocateFrom(*backend_, scaling.offsets);
}

KeyScaling Transformer::KeyScalingAt(int layer) const {
  const auto copy = [&](const DeviceArray<float>& array) {
    std::vector<float> values(array.size());
    array.Read(*backend_, 0, values);
    return values;
  };
  return {copy(layers_[layer].factors), copy(layers_[layer].key_offsets)};
}

absl::Status Transformer::LoadExperts(const LayerTensors& t, WeightDType dtype,
                                      ExpertLayer* experts) {
  std::vector<TensorView> gate_up, gate_up_bias, down, down_bias;
  for (const ExpertTensors& expert : t.experts) {
    gate_up.insert(gate_up.end(), {expert.gate, expert.up});
    gate_up_bias.insert(gate_up_bias.end(), {expert.gate_bias, expert.up_bias});
    down.push_back(expert.down);
    down_bias.push_back(expert.down_bias);
  }
  HYDRANT_RETURN_IF_ERROR(
      LoadLinear({t.router}, {t.router_bias}, RouterDType(dtype), &experts->router));
  HYDRANT_RETURN_IF_ERROR(LoadLinear(gate_up, gate_up_bias, dtype, &experts->gate_up));
  return LoadLinear(down, down_bias, dtype, &experts->down);
}

absl::Status Transformer::LoadHead(WeightDType dtype) {
  const auto pack = [&](const absl::StatusOr<TensorView>& tensor, WeightDType as,
                        std::unique_ptr<Weight>* weight) {
    if (!tensor.ok()) return tensor.status();
    if (!tensor->Exists()) return absl::OkStatus();
    HYDRANT_ASSIGN_OR_RETURN(*weight, Pack({*tensor}, as));
    return absl::OkStatus();
  };
  const WeightDType vocabulary = VocabularyDType(dtype);
  HYDRANT_ASSIGN_OR_RETURN(const TensorView norm, source_->FinalNorm());
  HYDRANT_ASSIGN_OR_RETURN(const TensorView bias, source_->FinalNormBias());
  const double scale = config().logit_scale;
  absl::Status status = LoadVectors(*backend_, {norm}, &final_norm_.weight, scale);
  if (status.ok()) status = LoadVectors(*backend_, {bias}, &final_norm_.bias, scale);
  if (status.ok()) status = pack(source_->Embedding(), vocabulary, &embedding_);
  if (status.ok()) status = pack(source_->Positions(), PositionsDType(dtype), &positions_);
  if (status.ok() && !config().tied_embeddings)
    status = pack(source_->Output(), vocabulary, &output_);
  return status;
}

absl::Status Transformer::LoadNorms(const LayerTensors& t, Layer* layer) {
  HYDRANT_RETURN_IF_ERROR(LoadNorm(t.attn_norm, t.attn_norm_bias, &layer->attn_norm));
  HYDRANT_RETURN_IF_ERROR(LoadNorm(t.ffn_norm, t.ffn_norm_bias, &layer->ffn_norm));
  HYDRANT_RETURN_IF_ERROR(LoadNorm(t.attn_post_norm, {}, &layer->attn_post_norm));
  HYDRANT_RETURN_IF_ERROR(LoadNorm(t.ffn_post_norm, {}, &layer->ffn_post_norm));
  HYDRANT_RETURN_IF_ERROR(LoadVectors(*backend_, {t.q_norm}, &layer->q_norm));
  HYDRANT_RETURN_IF_ERROR(LoadVectors(*backend_, {t.k_norm}, &layer->k_norm));
  return LoadVectors(*backend_, {t.sink_logits}, &layer->sink_logits);
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

// Absent parts are skipped.
absl::StatusOr<std::unique_ptr<Weight>> Transformer::Pack(const std::vector<TensorView>& parts,
                                                          WeightDType dtype) {
  std::vector<WeightPart> weight_parts;
  weight_parts.reserve(parts.size());
  for (const TensorView& part : parts) {
    if (part.Exists()) weight_parts.push_back(PartOf(part));
  }
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<Weight> weight,
                           backend_->PackWeight(weight_parts, dtype));
  weight_bytes_ += static_cast<int64_t>(weight->bytes());
  progress_(weight_bytes_);
  return weight;
}

void Transformer::Embed(const TokenId* ids, const int32_t* positions, int rows,
                        float* hidden) const {
  const double divisor = config().residual_scale;
  backend_->Embed({.ids = ids,
                   .m = rows,
                   .table = embedding_.get(),
                   .out = hidden,
                   .scale = static_cast<float>(config().embedding_scale / divisor)});
  if (positions_ == nullptr) return;
  backend_->Embed({.ids = reinterpret_cast<const uint32_t*>(positions),  // never negative
                   .m = rows,
                   .table = positions_.get(),
                   .out = hidden,
                   .accumulate = true,
                   .scale = static_cast<float>(1.0 / divisor)});
}

// Without a norm, converts the rows to the dtype that matrix products read.
void Transformer::Normalise(const float* x, const Norm& norm, int rows, int first,
                            const Activations& act) const {
  const size_t element = static_cast<size_t>(first) * config().hidden_size;
  Normalise(x, norm, rows, act.At(act.normed, element), act.input_dtype);
}

void Transformer::Normalise(const float* x, const Norm& norm, int rows, void* out,
                            DType out_dtype) const {
  const int n = config().hidden_size;
  const float eps = NormEps();
  if (norm.weight.size() == 0) {
    backend_->Activate({.x = x,
                        .activation = Activation::kIdentity,
                        .m = rows,
                        .n = n,
                        .out = out,
                        .out_dtype = out_dtype});
  } else if (config().norm == NormKind::kRms) {
    backend_->RmsNorm({.x = x,
                       .weight = norm.weight.data(),
                       .m = rows,
                       .n = n,
                       .eps = eps,
                       .out = out,
                       .out_dtype = out_dtype});
  } else {
    backend_->LayerNorm({.x = x,
                         .weight = norm.weight.data(),
                         .bias = norm.bias.data(),
                         .m = rows,
                         .n = n,
                         .eps = eps,
                         .out = out,
                         .out_dtype = out_dtype});
  }
}

float Transformer::NormEps() const {
  const double divisor = config().residual_scale;
  return static_cast<float>(config().norm_eps / (divisor * divisor));
}

// Whether the norm is split over the product `writer`, which computes its first half, and the
// product `reader`, the only reader of its rows.
bool Transformer::Splits(const Norm& norm, const Linear& writer, const Norm& post_norm,
                         const Weight& reader, int rows, const Activations& act) const {
  return config().norm == NormKind::kRms && norm.weight.size() > 0 && norm.bias.size() == 0 &&
         post_norm.weight.size() == 0 && act.input_dtype == DType::kBF16 &&
         writer.weight != nullptr && backend_->FusesProducts(*writer.weight, rows) &&
         backend_->FusesProducts(reader, rows);
}

// The norm of the next layer's input, if this layer's last product computes its first half; else
// null. The norm before the logits is always separate: only some rows of the last layer need it.
const Transformer::Norm* Transformer::NormAfter(int layer, int rows, const Activations& act) const {
  // With a parallel residual a second norm reads the same rows.
  if (layer + 1 == config().num_layers || config().parallel_residual) return nullptr;
  const Layer& weights = layers_[layer];
  const Layer& next = layers_[layer + 1];
  const bool splits =
      Splits(next.attn_norm, weights.down, weights.ffn_post_norm, *next.qkv.weight, rows, act);
  return splits ? &next.attn_norm : nullptr;
}

// The split norm over act.normed, without the weights that the producer needs.
std::optional<SplitNorm> Transformer::Half(const Activations& act, bool split) const {
  if (!split) return std::nullopt;
  return SplitNorm{.eps = NormEps(),
                   .rows = reinterpret_cast<uint16_t*>(act.normed.data()),
                   .squares = act.squares.data()};
}

void Transformer::ProjectQkv(int layer, const float* hidden, int rows, const Activations& act,
                             bool prepared) const {
  const Layer& weights = layers_[layer];
  if (!prepared) Normalise(hidden, weights.attn_norm, rows, 0, act);
  MatmulArgs product = InputOf(rows, act, prepared);
  product.y = act.qkv.data();
  weights.qkv.Apply(backend_, product);
  if (config().qk_norm != QkNorm::kNone) NormaliseHeads(weights, rows, act);
}

void Transformer::RotateQkv(int layer, const int32_t* positions, int first, int rows,
                            const Activations& act, const KvDestination& kv) const {
  backend_->RopeSplit(SplittingInto(kv, layer, positions, first, rows, act));
}

void Transformer::ProjectAndRotate(int layer, const float* hidden, const int32_t* positions,
                                   int rows, const Activations& act, bool prepared,
                                   const KvDestination& kv) const {
  const Layer& weights = layers_[layer];
  if (!RotatesInProduct(weights, rows, act, kv)) {
    ProjectQkv(layer, hidden, rows, act, prepared);
    RotateQkv(layer, positions, 0, rows, act, kv);
    return;
  }
  if (!prepared) Normalise(hidden, weights.attn_norm, rows, 0, act);
  MatmulArgs product = InputOf(rows, act, prepared);
  product.rope = SplittingInto(kv, layer, positions, 0, rows, act);
  product.rope->qkv = nullptr;
  weights.qkv.Apply(backend_, product);
}

bool Transformer::RotatesInProduct(const Layer& layer, int rows, const Activations& act,
                                   const KvDestination& kv) const {
  return config().qk_norm == QkNorm::kNone && act.input_dtype == DType::kBF16 &&
         BlockElements(kv.precision) == 1 && MatmulArgs::CanRotate(config().head_dim) &&
         backend_->FusesProducts(*layer.qkv.weight, rows);
}

// Arguments of a product with act.normed, without matrix and output.
MatmulArgs Transformer::InputOf(int rows, const Activations& act, bool prepared) const {
  return {
      .x = act.normed.data(), .x_dtype = act.input_dtype, .m = rows, .x_norm = Half(act, prepared)};
}

RopeSplitArgs Transformer::SplittingInto(const KvDestination& kv, int layer,
                                         const int32_t* positions, int first, int rows,
                                         const Activations& act) const {
  RopeSplitArgs split = Splitting(layer, positions, first, rows, act);
  split.q = Queries(act, kv.k.dtype) + int64_t{first} * config().QDim();
  split.k = kv.k;
  split.v = kv.v;
  split.kv_row_stride = kv.row_stride;
  split.kv_head_stride = kv.head_stride;
  split.kv_precision = kv.precision;
  return split;
}

// Norms of queries and keys (QkNorm) in act.qkv, in place.
void Transformer::NormaliseHeads(const Layer& layer, int rows, const Activations& act) const {
  const bool whole = config().qk_norm == QkNorm::kWhole;
  const auto normalise = [&](const DeviceArray<float>& weight, int first, int heads) {
    float* const x = act.qkv.data() + first;
    backend_->RmsNorm({.x = x,
                       .weight = weight.data(),
                       .m = rows,
                       .n = whole ? heads * config().head_dim : config().head_dim,
                       .eps = static_cast<float>(config().norm_eps),
                       .out = x,
                       .groups = whole ? 1 : heads,
                       .row_stride = RawQueryStride()});
  };
  normalise(layer.q_norm, 0, config().num_heads);
  normalise(layer.k_norm, config().QDim(), config().num_kv_heads);
}

void Transformer::RotateQueries(int layer, const int32_t* positions, int first, int rows,
                                const Activations& act, DType precision, MutableArenaRows q) const {
  RopeSplitArgs split = Splitting(layer, positions, first, rows, act);
  split.q = q;
  split.query_precision = precision;
  backend_->RopeSplit(split);
}

// RoPE arguments for act.qkv, without outputs. The attention factor applies to queries and keys;
// here queries are multiplied by its square instead.
RopeSplitArgs Transformer::Splitting(int layer, const int32_t* positions, int first, int rows,
                                     const Activations& act) const {
  const Rotary rotary = RotaryOf(layer);
  const double factor = config().RopeOf(layer).attention_factor;
  return {.qkv = act.qkv.data() + first * RawQueryStride(),
          .positions = positions,
          .cos = rotary.cos,
          .sin = rotary.sin,
          .m = rows,
          .num_heads = config().num_heads,
          .num_kv_heads = config().num_kv_heads,
          .head_dim = config().head_dim,
          .rotary_dim = rotary.rotary_dim,
          .interleaved = rotary.interleaved,
          .query_scale = static_cast<float>(factor * factor),
          .factors = layers_[layer].factors.data(),
          .key_offsets = layers_[layer].key_offsets.data()};
}

bool Transformer::FinishLayer(int layer, float* hidden, int rows, const Activations& act,
                              bool prepare) const {
  const Layer& weights = layers_[layer];
  const bool parallel = config().parallel_residual;
  const bool split = !parallel && !weights.experts.Exists() &&
                     Splits(weights.ffn_norm, weights.wo, weights.attn_post_norm,
                            *weights.gate_up.weight, rows, act);
  const Norm* const after = prepare ? NormAfter(layer, rows, act) : nullptr;
  if (parallel) Normalise(hidden, weights.ffn_norm, rows, 0, act);
  AddProjection(weights.wo, act.attended.data(), weights.attn_post_norm, hidden, rows, act,
                split ? &weights.ffn_norm : nullptr);
  if (!parallel && !split) Normalise(hidden, weights.ffn_norm, rows, 0, act);
  FeedForward(weights, hidden, rows, act, split, after);
  return after != nullptr;
}

// hidden += norm of x's projection, or the projection alone without a norm; then, if `next` is set,
// the first half of that norm.
void Transformer::AddProjection(const Linear& linear, const void* x, const Norm& post_norm,
                                float* hidden, int rows, const Activations& act,
                                const Norm* next) const {
  const bool normed = post_norm.weight.size() > 0;
  std::optional<SplitNorm> half = Half(act, next != nullptr);
  if (half.has_value()) half->weight = next->weight.data();
  linear.Apply(backend_, MatmulArgs{.x = x,
                                    .x_dtype = act.input_dtype,
                                    .m = rows,
                                    .y = normed ? act.projected.data() : hidden,
                                    .accumulate = !normed,
                                    .y_norm = half});
  if (!normed) return;
  backend_->RmsNorm({.x = act.projected.data(),
                     .weight = post_norm.weight.data(),
                     .m = rows,
                     .n = config().hidden_size,
                     .eps = static_cast<float>(config().norm_eps),
                     .out = hidden,
                     .accumulate = true});
}

// hidden += feed-forward of act.normed; then, if `next` is set, the first half of that norm.
void Transformer::FeedForward(const Layer& layer, float* hidden, int rows, const Activations& act,
                              bool prepared, const Norm* next) const {
  if (layer.experts.Exists()) {
    AddExperts(backend_, config(), layer.experts, {act.normed.data(), act.input_dtype, rows},
               act.experts, hidden);
  }
  if (layer.gate_up.weight == nullptr) return;
  GateUp(layer, rows, act, prepared);
  AddProjection(layer.down, act.gated.data(), layer.ffn_post_norm, hidden, rows, act, next);
}

// Computes act.gated from act.normed.
void Transformer::GateUp(const Layer& layer, int rows, const Activations& act,
                         bool prepared) const {
  const Weight& weight = *layer.gate_up.weight;
  const bool has_bias = layer.gate_up.bias.data() != nullptr;
  const Activation activation = config().activation;
  MatmulArgs product = InputOf(rows, act, prepared);
  if (config().gated && !has_bias && act.input_dtype == DType::kBF16 &&
      (activation == Activation::kSilu || activation == Activation::kGeluTanh) &&
      backend_->FusesProducts(weight, rows)) {
    product.y_bf16 = reinterpret_cast<uint16_t*>(act.gated.data());
    product.gate = activation;
    return layer.gate_up.Apply(backend_, product);
  }
  // Only the activation reads the results, so they need no more bits than its output.
  const bool rounds = !has_bias && backend_->ResultDType(weight) == DType::kBF16;
  auto* rounded = rounds ? reinterpret_cast<uint16_t*>(act.gate_up.data()) : nullptr;
  product.y = rounds ? nullptr : act.gate_up.data();
  product.y_bf16 = rounded;
  layer.gate_up.Apply(backend_, product);
  backend_->Activate({.x = rounds ? nullptr : act.gate_up.data(),
                      .x_bf16 = rounded,
                      .activation = activation,
                      .gated = config().gated,
                      .m = rows,
                      .n = config().intermediate_size,
                      .out = act.gated.data(),
                      .out_dtype = act.input_dtype});
}

void Transformer::FinalNorm(const float* hidden, int rows, int first,
                            const Activations& act) const {
  Normalise(hidden, final_norm_, rows, first, act);
}

void Transformer::FinalNorm(const float* hidden, int rows, float* out) const {
  Normalise(hidden, final_norm_, rows, out, DType::kF32);
}

void Transformer::Logits(const Activations& act, int rows, float* logits) const {
  const Weight& weight = OutputWeight();
  backend_->Matmul({.x = act.normed.data(),
                    .x_dtype = act.input_dtype,
                    .m = rows,
                    .weight = &weight,
                    .y = logits});
  if (config().logit_softcap == 0.0) return;
  backend_->SoftCap({.x = logits,
                     .m = rows,
                     .n = weight.rows(),
                     .cap = static_cast<float>(config().logit_softcap)});
}

}  // namespace hydrant
