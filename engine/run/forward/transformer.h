// The weights of a decoder-only transformer on a backend, and the parts of its forward pass that
// are the same for prefill and decode. Families are told apart by what their ModelConfig says: the
// norms and where they stand, how positions enter (learned rows, RoPE on the whole or a part of a
// head, in all or in some of the layers), the feed-forward and its experts, and whether it reads
// the sum of input and attention or the input alone.
//
// Two scales cost nothing here. The logits' is in the last norm's weights. Rows are kept divided by
// the residual scale r: what attention and feed-forward add is then added as it is, embeddings are
// multiplied by 1 / r, and a norm of x / r with eps / r^2 is the norm of x with eps.
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
#include "engine/run/forward/linear.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

// Work space of one pass over at most `rows` rows.
struct Activations {
  absl::Status Allocate(Backend& backend, const ModelConfig& config, DType dtype, int rows);

  // What only matrix products read, in the dtype that the backend wants: RowsOf.
  DType input_dtype = DType::kF32;
  DeviceArray<uint8_t> normed;    // [rows, hidden]
  DeviceArray<uint8_t> gated;     // [rows, intermediate]
  DeviceArray<uint8_t> attended;  // [rows, q_dim]
  DeviceArray<float> qkv;         // [rows, q_dim + 2 kv_dim]
  DeviceArray<float> q;           // [rows, q_dim]
  DeviceArray<float> gate_up;     // [rows, 2 intermediate]; [rows, intermediate] without a gate
  DeviceArray<float> projected;   // [rows, hidden], where it is normalised before it is added
  DeviceArray<double> squares;    // of normed where a product makes it (SplitNorm::squares)
  ExpertSpace experts;

  // The place of an element in one of these arrays.
  void* At(const DeviceArray<uint8_t>& array, size_t element) const {
    return array.data() + BytesOf(input_dtype, element);
  }
};

// Where a run of rows puts its turned keys and its values (kernels/ops/elementwise.h).
struct KvDestination {
  MutableArenaRows k = nullptr;
  MutableArenaRows v = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  DType precision = DType::kF32;  // what they are rounded to
};

class Transformer {
 public:
  // Borrows the backend; keeps the source alive (stored weights point into its file).
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(
      Backend* backend, std::shared_ptr<const ModelSource> source, WeightDType dtype,
      int max_positions, const std::function<void(double)>& progress);

  const ModelConfig& config() const { return source_->config(); }
  int64_t weight_bytes() const { return weight_bytes_; }
  // What the matrices of its layers are kept as, by one of them.
  DType weight_dtype() const { return weight_dtype_; }
  Rotary RotaryOf(int layer) const {
    const bool sliding = &config().RopeOf(layer) != &config().rope;
    const DeviceRope& rope = sliding ? sliding_rope_ : rope_;
    return {.cos = rope.cos.data(),
            .sin = rope.sin.data(),
            .rotary_dim = config().RotaryDimOf(layer),
            .interleaved = config().rope_pairing == RopePairing::kInterleaved};
  }

  // [heads]; null: the model has none (kernels/ops/decode_attention.h).
  const float* SinkLogitsOf(int layer) const { return layers_[layer].sink_logits.data(); }

  // ids, positions, hidden: [rows, ...].
  void Embed(const TokenId* ids, const int32_t* positions, int rows, float* hidden) const;
  // Queries, keys and values before they turn, into act.qkv. hidden: [rows, hidden]. `prepared`:
  // FinishLayer() of the layer before has said so, of the same rows, and nothing has touched `act`.
  void ProjectQkv(int layer, const float* hidden, int rows, const Activations& act,
                  bool prepared = false) const;
  // Of the last ProjectQkv(), the rows from `first` on: queries into the same rows of Queries(),
  // keys and values into `kv`, all of one dtype. positions: [rows].
  void RotateQkv(int layer, const int32_t* positions, int first, int rows, const Activations& act,
                 const KvDestination& kv) const;
  // ProjectQkv() and RotateQkv() of all rows, in one operation where the backend has it.
  void ProjectAndRotate(int layer, const float* hidden, const int32_t* positions, int rows,
                        const Activations& act, bool prepared, const KvDestination& kv) const;
  // The queries of the last ProjectQkv(), or what else is in their place (RawQueries), at other
  // positions: q [rows, heads, head_dim], of the rows from `first` on. They are rounded to
  // `precision` before they turn.
  void RotateQueries(int layer, const int32_t* positions, int first, int rows,
                     const Activations& act, DType precision, MutableArenaRows q) const;
  // Where queries of a dtype lie once they have turned: [rows, heads, head_dim].
  static MutableArenaRows Queries(const Activations& act, DType dtype) {
    return {act.q.data(), dtype};
  }
  // Where queries lie before they turn: that of a row's head at row * stride + head * head_dim.
  static float* RawQueries(const Activations& act) { return act.qkv.data(); }
  int64_t RawQueryStride() const { return config().QDim() + 2 * config().KvDim(); }
  // hidden += attention output projection of act.attended, hidden += feed-forward; with norms of
  // what is added, where the model has them. With `prepare` also half of the norm that the next
  // layer begins with, where the backend does that in the last product (SplitNorm): true, and
  // ProjectQkv() of that layer must be told.
  bool FinishLayer(int layer, float* hidden, int rows, const Activations& act,
                   bool prepare = false) const;
  // The rows `first`, `first` + 1, ... of act.normed.
  void FinalNorm(const float* hidden, int rows, int first, const Activations& act) const;
  // The same as fp32, [rows, hidden], but for the factor LastNormScale().
  void FinalNorm(const float* hidden, int rows, float* out) const;
  double LastNormScale() const { return config().logit_scale; }
  // Of the first rows of act.normed. logits: [rows, vocab].
  void Logits(const Activations& act, int rows, float* logits) const;
  // Whether Logits() of so many rows is one of the products that the backend fuses.
  bool FusesLogits(int rows) const { return backend_->FusesProducts(OutputWeight(), rows); }

 private:
  struct Norm {
    DeviceArray<float> weight;  // [hidden]
    DeviceArray<float> bias;    // [hidden], of a LayerNorm
  };
  struct Layer {
    Norm attn_norm, ffn_norm;            // empty where the model has none there
    Norm attn_post_norm, ffn_post_norm;  // the same
    DeviceArray<float> q_norm, k_norm;   // the same; [head_dim], or [q_dim] and [kv_dim]
    DeviceArray<float> sink_logits;      // the same; [heads]
    Linear qkv, wo;
    Linear gate_up;  // without a gate: up alone; without a weight where there are only experts
    Linear down;     // the same
    ExpertLayer experts;
  };

  struct DeviceRope {
    DeviceArray<float> cos, sin;  // [max_positions, rotary_dim / 2]
  };

  Transformer(Backend* backend, std::shared_ptr<const ModelSource> source)
      : backend_(backend), source_(std::move(source)) {}
  absl::Status Load(WeightDType dtype, int max_positions,
                    const std::function<void(double)>& progress);
  absl::StatusOr<uint64_t> CheckFits(WeightDType dtype) const;  // what they take
  absl::Status LoadWeights(WeightDType dtype);
  absl::Status LoadLayer(int index, WeightDType dtype);
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
  std::unique_ptr<Weight> positions_;  // null: none are learned
  std::unique_ptr<Weight> output_;     // null: tied, the embedding serves
  DeviceRope rope_, sliding_rope_;     // empty where RoPE turns nothing, or there is but one
  DType weight_dtype_ = DType::kF32;
  int64_t weight_bytes_ = 0;
  std::function<void(int64_t)> progress_;  // hears weight_bytes_ while they are loaded
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_TRANSFORMER_H_
