#include "engine/run/model_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr size_t kSamples = 16;
constexpr size_t kSampleBytes = 256;

template <typename T>
void Add(T number, Sha256* hash) {
  static_assert(std::is_arithmetic_v<T>);
  hash->Add(&number, sizeof(number));
}

void AddTensor(const TensorView& tensor, Sha256* hash) {
  Add<int32_t>(static_cast<int32_t>(tensor.dtype), hash);
  for (const int64_t size : tensor.shape) Add(size, hash);
  if (tensor.normals.has_value()) Add(tensor.normals->key, hash);
  const size_t bytes = tensor.bytes.size();
  for (size_t i = 0; i < kSamples && bytes > 0; ++i) {
    const size_t begin = (bytes - std::min(bytes, kSampleBytes)) / kSamples * i;
    hash->Add(tensor.bytes.data() + begin, std::min(bytes - begin, kSampleBytes));
  }
}

void AddRope(const Rope& rope, Sha256* hash) {
  for (const double number :
       {rope.theta, rope.linear_factor, rope.attention_factor,
        rope.llama3.enabled ? rope.llama3.factor : 0.0, rope.yarn.enabled ? rope.yarn.factor : 0.0})
    Add(number, hash);
}

void AddShape(const ModelConfig& config, Sha256* hash) {
  hash->Add(config.architecture);
  for (const int number : {config.num_layers, config.hidden_size, config.num_heads,
                           config.num_kv_heads, config.head_dim, config.vocab_size})
    Add(number, hash);
  AddRope(config.rope, hash);
  if (config.sliding_rope.has_value()) AddRope(*config.sliding_rope, hash);
}

// Tensors that determine keys and values; expert weights are left out, because there may
// be thousands.
void AddLayer(const LayerTensors& layer, Sha256* hash) {
  for (const TensorView* tensor : {&layer.attn_norm, &layer.wq, &layer.wk, &layer.wv, &layer.wqkv,
                                   &layer.wo, &layer.gate, &layer.up, &layer.down, &layer.router})
    AddTensor(*tensor, hash);
}

void AddVocabulary(const Tokenizer& tokenizer, Sha256* hash) {
  for (TokenId id = 0; id < tokenizer.VocabSize(); ++id) {
    hash->Add(tokenizer.TokenBytes(id, false, false));
    Add('\0', hash);
  }
}

}  // namespace

absl::StatusOr<Sha256Digest> ModelFingerprint(const ModelSource& source,
                                              const Tokenizer& tokenizer) {
  Sha256 hash;
  AddShape(source.config(), &hash);
  HYDRANT_ASSIGN_OR_RETURN(const TensorView embedding, source.Embedding());
  AddTensor(embedding, &hash);
  HYDRANT_ASSIGN_OR_RETURN(const TensorView output, source.Output());
  AddTensor(output, &hash);
  for (int i = 0; i < source.config().num_layers; ++i) {
    HYDRANT_ASSIGN_OR_RETURN(const LayerTensors layer, source.Layer(i));
    AddLayer(layer, &hash);
  }
  AddVocabulary(tokenizer, &hash);
  return hash.Finish();
}

}  // namespace hydrant
