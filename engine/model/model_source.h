// A model as it lies on disk: its shape, its tensors by role, and where its tokenizer is. Three
// sources exist: a GGUF file, a Hugging Face folder, and seeded random weights for a config.json
// ("dummy"), whose tensors have no bytes. Immutable after opening; tensor bytes live as long as the
// ModelSource.
#ifndef HYDRANT_ENGINE_MODEL_MODEL_SOURCE_H_
#define HYDRANT_ENGINE_MODEL_MODEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor.h"

namespace hydrant {

class GgufFile;

// One expert's part of a layer, shapes as those of a feed-forward.
struct ExpertTensors {
  TensorView gate, gate_bias;  // [inter of an expert, hidden]
  TensorView up, up_bias;      // the same
  TensorView down, down_bias;  // [hidden, inter of an expert]
};

// The tensors of one layer; those that a family lacks do not Exist(). [rows, cols] = [outputs,
// inputs]; norms and biases are f32, a bias is as long as what it is added to.
struct LayerTensors {
  TensorView attn_norm, attn_norm_bias;  // [hidden]
  TensorView attn_post_norm;             // [hidden]
  TensorView wq, wk, wv;                 // [q_dim, hidden], [kv_dim, hidden], [kv_dim, hidden]
  TensorView bq, bk, bv;
  // Instead of these three, rows in the order [head, (query, key, value), head_dim].
  TensorView wqkv, bqkv;               // [3 q_dim, hidden]
  TensorView q_norm, k_norm;           // [head_dim], or [q_dim] and [kv_dim]
  TensorView sink_logits;              // [heads]
  TensorView wo, bo;                   // [hidden, q_dim]
  TensorView ffn_norm, ffn_norm_bias;  // [hidden]
  TensorView ffn_post_norm;            // [hidden]
  TensorView gate, gate_bias;          // [inter, hidden]
  TensorView up, up_bias;              // [inter, hidden]
  TensorView down, down_bias;          // [hidden, inter]
  TensorView router, router_bias;      // [experts, hidden]
  std::vector<ExpertTensors> experts;  // empty: there are none
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual const ModelConfig& config() const = 0;
  virtual absl::StatusOr<TensorView> Embedding() const = 0;  // [vocab, hidden]
  virtual absl::StatusOr<TensorView> Positions() const {
    return TensorView();
  }                                                          // [context, hidden]
  virtual absl::StatusOr<TensorView> FinalNorm() const = 0;  // [hidden]
  virtual absl::StatusOr<TensorView> FinalNormBias() const { return TensorView(); }  // [hidden]
  virtual absl::StatusOr<TensorView> Output()
      const = 0;  // [vocab, hidden]; the embedding where tied
  // Shapes are checked against config(); the message names the tensor, the shape found and the
  // shape wanted.
  virtual absl::StatusOr<LayerTensors> Layer(int layer) const = 0;
  // FailedPrecondition where a file was written since it was opened, and what was read of it may be
  // anything. To be asked when all has been read.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }
  // What has been read of the files may leave this process's memory; it comes back when it is read.
  virtual void ReleasePages() const {}
  // Null unless the source is a GGUF file; the tokenizer and chat template are in its metadata.
  virtual const GgufFile* gguf() const { return nullptr; }
  // The folder that holds tokenizer.json etc.; empty for a GGUF file.
  virtual std::string folder() const { return {}; }
};

enum class LoadFormat { kAuto, kDummy };

// The GGUF file of a folder that holds one GGUF model and no config.json: the only file, or the
// first part. Every other `path` is returned as it is.
std::string ModelFileOf(const std::string& path);

// `path`: a .gguf file, a folder with one GGUF model, or a folder with config.json; with kDummy a
// folder or a config.json file.
absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path, LoadFormat format,
                                                       uint64_t dummy_seed = 0);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_SOURCE_H_
