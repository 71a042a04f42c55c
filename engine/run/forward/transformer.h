// The weights of a decoder-only transformer on a backend, and the parts of its forward pass that
// are the same for prefill and decode. Model families differ by their ModelConfig: norms and their
// placement, positions (learned rows, RoPE on the whole or a part of a head, in all or in some
// layers), feed-forward and experts, sequential or parallel residual.
//
// Two scales cost nothing here. The logit scale is part of the last norm's weights. Rows are stored
// divided by the residual scale r: outputs of attention and feed-forward are then added unscaled,
// embeddings are multiplied by 1 / r, and a norm of x / r with eps / r^2 is the norm of x with eps.
//
// Immutable after Create(). Activations are fp32 rows in device memory.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_TRANSFORMER_H_
#define HYDRANT_ENGINE_RUN_FORWARD_TRANSFORMER_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"
#include "engine/run/forward/experts.h"
#include "engine/run/forward/key_scaling.h"
#include "engine/run/forward/linear.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

// Work space of one pass over at most `rows` rows.
struct Activations {
  absl::Status Allocate(Backend& backend, const ModelConfig& config, DType dtype, int rows);

  // dtype of rows that only matrix products read (Backend::ActivationDType).
  DType input_dtype = DType::kF32;
  DeviceArray<uint8_t> normed;    // [rows, hidden]
  DeviceArray<uint8_t> gated;     // [rows, intermediate]
  DeviceArray<uint8_t> attended;  // [rows, q_dim]
  DeviceArray<float> qkv;         // [rows, q_dim + 2 kv_dim]
  DeviceArray<float> q;           // [rows, q_dim]
  DeviceArray<float> gate_up;     // [rows, 2 intermediate]; [rows, intermediate] without a gate
  DeviceArray<float> projected;   // [rows, hidden], if outputs are normalised before they are added
  DeviceArray<double> squares;    // SplitNorm::squares of normed
  ExpertSpace experts;

  // The address of an element in one of the arrays above.
  void* At(const DeviceArray<uint8_t>& array, size_t element) const {
    return array.data() + BytesOf(input_dtype, element);
  }
};

// Destination of a run's rotated keys and its values (RopeSplitArgs, kernels/ops/elementwise.h).
struct KvDestination {
  MutableArenaRows k = nullptr;
  MutableArenaRows v = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  DType precision = DType::kF32;  // keys and values are rounded to it
};

class Transformer {
 public:
  // Borrows the backend; keeps the source alive (stored weights point into its file). Where
  // kv_dtype, of the cache, has blocks, rotated queries and keys are scaled (KeyScaling).
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(
      Backend* backend, std::shared_ptr<const ModelSource> source, WeightDType dtype,
      DType kv_dtype, int max_positions, const std::function<void(double)>& progress);

  const ModelConfig& config() const { return source_->config(); }
  int64_t weight_bytes() const { return weight_bytes_; }
  // dtype of the packed layer matrices, read from one of them.
  DType weight_dtype() const { return weight_dtype_; }
  Rotary RotaryOf(int layer) const {
    const bool sliding = &config().RopeOf(layer) != &config().rope;
    const DeviceRope& rope = sliding ? sliding_rope_ : rope_;
    return {.cos = rope.cos.data(),
            .sin = rope.sin.data(),
            .rotary_dim = config().RotaryDimOf(layer),
            .interleaved = config().rope_pairing == RopePairing::kInterleaved};
  }

  // Copied from the device; empty if a layer's keys are not scaled.
  KeyScaling KeyScalingAt(int layer) const;
  // Whether offsets are subtracted from keys (KeyScaling): keys must not be rotated again.
  bool CentresKeys() const { return centres_keys_; }
  // PrefillAttentionArgs::byte_factors; null where keys are scaled already, or attention takes more
  // than 8 bits.
  const float* ByteFactorsOf(int layer) const { return layers_[layer].byte_factors.data(); }
  // [heads]; null: the model has none (kernels/ops/decode_attention.h).
  const float* SinkLogitsOf(int layer) const { return layers_[layer].sink_logits.data(); }

  // ids, positions, hidden: [rows, ...].
  void Embed(const TokenId* ids, const int32_t* positions, int rows, float* hidden) const;
  // Computes queries, keys and values before RoPE, in act.qkv. hidden: [rows, hidden]. prepared:
  // FinishLayer() of the previous layer returned true for the same rows, and `act` is unchanged.
  void ProjectQkv(int layer, const float* hidden, int rows, const Activations& act,
                  bool prepared = false) const;
  // Applies RoPE to rows of the last ProjectQkv() from `first` on: queries go to the same rows of
  // Queries(), keys and values to `kv`, all in one dtype. positions: [rows].
  void RotateQkv(int layer, const int32_t* positions, int first, int rows, const Activations& act,
                 const KvDestination& kv) const;
  // ProjectQkv() and RotateQkv() of all rows, fused if the backend can.
  void ProjectAndRotate(int layer, const float* hidden, const int32_t* positions, int rows,
                        const Activations& act, bool prepared, const KvDestination& kv) const;
  // Rotates the rows in RawQueries() from `first` on to other positions. They come from the last
  // ProjectQkv(), or from the caller, and are rounded to `precision` before RoPE. q: [rows, heads,
  // head_dim].
  void RotateQueries(int layer, const int32_t* positions, int first, int rows,
                     const Activations& act, DType precision, MutableArenaRows q) const;
  // Rotated queries of a dtype: [rows, heads, head_dim].
  static MutableArenaRows Queries(const Activations& act, DType dtype) {
    return {act.q.data(), dtype};
  }
  // Queries before RoPE: a row's head at row * RawQueryStride() + head * head_dim.
  static float* RawQueries(const Activations& act) { return act.qkv.data(); }
  int64_t RawQueryStride() const { return config().QDim() + 2 * config().KvDim(); }
  // hidden += output projection of act.attended, then hidden += feed-forward; both normalised first
  // in models with post-norms. With `prepare`, the last product also computes the first half of the
  // next layer's norm (SplitNorm) if the backend can; then returns true, which must be passed as
  // `prepared` for that layer.
  bool FinishLayer(int layer, float* hidden, int rows, const Activations& act,
                   bool prepare = false) const;
  // Writes the final norm to the rows of act.normed from `first` on.
  void FinalNorm(const float* hidden, int rows, int first, const Activations& act) const;
  // Writes the final norm times LastNormScale() in fp32. out: [rows, hidden].
  void FinalNorm(const float* hidden, int rows, float* out) const;
  double LastNormScale() const { return config().logit_scale; }
  // Logits of the first rows of act.normed. logits: [rows, vocab].
  void Logits(const Activations& act, int rows, float* logits) const;
  // Whether the backend fuses products of the size of Logits() with `rows` rows.
  bool FusesLogits(int rows) const { return backend_->FusesProducts(OutputWeight(), rows); }

 private:
  struct Norm {
    DeviceArray<float> weight;  // [hidden]
    DeviceArray<float> bias;    // [hidden], for LayerNorm
  };
  struct Layer {
    // Norms and sink logits are empty if the model has none.
    Norm attn_norm, ffn_norm;
    Norm attn_post_norm, ffn_post_norm;
    DeviceArray<float> q_norm, k_norm;  // [head_dim], or [q_dim] and [kv_dim]
    DeviceArray<float> sink_logits;     // [heads]
    // KeyScaling's, or empty: for all rows, or for attention in 8 bits alone.
    DeviceArray<float> factors, key_offsets;
    DeviceArray<float> byte_factors;
    Linear qkv, wo;
    Linear gate_up;  // up alone in models without a gate; no weight in layers with experts only
    Linear down;     // no weight in layers with experts only
    ExpertLayer experts;
  };

  struct DeviceRope {
    DeviceArray<float> cos, sin;  // [max_positions, rotary_dim / 2]
  };

  Transformer(Backend* backend, std::shared_ptr<const ModelSource> source)
      : backend_(backend), source_(std::move(source)) {}
  absl::Status Load(WeightDType dtype, DType kv_dtype, int max_positions,
                    const std::function<void(double)>& progress);
  absl::StatusOr<uint64_t> CheckFits(WeightDType dtype) const;  // bytes of the weights
  absl::Status LoadWeights(WeightDType dtype, DType kv_dtype);
  absl::Status LoadLayer(int index, WeightDType dtype, DType kv_dtype);
  absl::Status LoadKeyScaling(const LayerTensors& tensors, int index, DType kv_dtype, Layer* layer);
  absl::Status LoadRope(const Rope& rope, int max_positions, DeviceRope* out);
  absl::Status LoadHead(WeightDType dtype);
  absl::Status LoadExperts(const LayerTensors& tensors, WeightDType dtype, ExpertLayer* experts);
  absl::Status LoadNorms(const LayerTensors& tensors, Layer* layer);
  absl::Status LoadNorm(const TensorView& weight, const TensorView& bias, Norm* norm);
  absl::Status LoadLinear(const std::vector<TensorView>& weights,
                          const std::vector<TensorView>& biases, WeightDType dtype, Linear* linear);
  absl::StatusOr<std::unique_ptr<Weight>> Pack(const std::vector<TensorView>& parts,
                                               WeightDType dtype);
  RopeSplitArgs Splitting(int layer, const int32_t* positions, int first, int rows,
                          const Activations& act) const;
  RopeSplitArgs SplittingInto(const KvDestination& kv, int layer, const int32_t* positions,
                              int first, int rows, const Activations& act) const;
  MatmulArgs InputOf(int rows, const Activations& act, bool prepared) const;
  bool RotatesInProduct(const Layer& layer, int rows, const Activations& act,
                        const KvDestination& kv) const;
  void NormaliseHeads(const Layer& layer, int rows, const Activations& act) const;
  void AddProjection(const Linear& linear, const void* x, const Norm& post_norm, float* hidden,
                     int rows, const Activations& act, const Norm* next) const;
  const Weight& OutputWeight() const { return output_ ? *output_ : *embedding_; }
  bool Splits(const Norm& norm, const Linear& writer, const Norm& post_norm, const Weight& reader,
              int rows, const Activations& act) const;
  const Norm* NormAfter(int layer, int rows, const Activations& act) const;
  std::optional<SplitNorm> Half(const Activations& act, bool split) const;
  float NormEps() const;
  void Normalise(const float* x, const Norm& norm, int rows, int first,
                 const Activations& act) const;
  void Normalise(const float* x, const Norm& norm, int rows, void* out, DType out_dtype) const;
  void FeedForward(const Layer& layer, float* hidden, int rows, const Activations& act,
                   bool prepared, const Norm* next) const;
  void GateUp(const Layer& layer, int rows, const Activations& act, bool prepared) const;

  Backend* backend_;
  std::shared_ptr<const ModelSource> source_;
  std::vector<Layer> layers_;
  Norm final_norm_;
  std::unique_ptr<Weight> embedding_;
  std::unique_ptr<Weight> positions_;  // null: no learned positions
  std::unique_ptr<Weight> output_;     // null: tied to the embedding
  DeviceRope rope_, sliding_rope_;     // empty if the model has no RoPE, or only one
  DType weight_dtype_ = DType::kF32;
  bool centres_keys_ = false;
  int64_t weight_bytes_ = 0;
  std::function<void(int64_t)> progress_;  // called with weight_bytes_ during loading
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_TRANSFORMER_H_
