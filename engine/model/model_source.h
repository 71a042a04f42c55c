// A model on disk: its shape, its tensors by role, and the place of its tokenizer. Three sources
// exist: a GGUF file, a Hugging Face folder, and seeded random weights for a config.json ("dummy"),
// with tensors without bytes. Immutable after opening; tensor bytes live as long as the
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

// One expert of a layer, shaped like a feed-forward.
struct ExpertTensors {
  TensorView gate, gate_bias;  // [inter of an expert, hidden]
  TensorView up, up_bias;      // [inter of an expert, hidden]
  TensorView down, down_bias;  // [hidden, inter of an expert]
};

// The tensors of one layer; those that a family lacks do not Exist(). [rows, cols] = [outputs,
// inputs]; norms and biases are f32, a bias has the length of its output.
struct LayerTensors {
  TensorView attn_norm, attn_norm_bias;  // [hidden]
  TensorView attn_post_norm;             // [hidden]
  TensorView wq, wk, wv;                 // [q_dim, hidden], [kv_dim, hidden], [kv_dim, hidden]
  TensorView bq, bk, bv;
  // Replaces these three; rows in the order [head, (query, key, value), head_dim].
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
  std::vector<ExpertTensors> experts;  // empty: no experts
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
  // FailedPrecondition if a file was written since it was opened; its bytes are then undefined.
  // Call it after all reads.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }
  // Lets the system drop the resident pages of the files; later reads load them again.
  virtual void ReleasePages() const {}
  // Null unless the source is a GGUF file; the tokenizer and chat template are in its metadata.
  virtual const GgufFile* gguf() const { return nullptr; }
  // The folder that holds tokenizer.json etc.; empty for a GGUF file.
  virtual std::string folder() const { return {}; }
};

enum class LoadFormat { kAuto, kDummy };

// The GGUF file of a folder that holds one GGUF model and no config.json: the only file, or the
// first part. Returns every other `path` unchanged.
std::string ModelFileOf(const std::string& path);

// `path`: a .gguf file, a folder with one GGUF model, or a folder with config.json; with kDummy a
// folder or a config.json file.
absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path, LoadFormat format,
                                                       uint64_t dummy_seed = 0);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_MODEL_SOURCE_H_
