// A plain forward pass of the llama family with inspectable attention: queries, keys and values of
// every head, the attention weight of each query on each key, and optional masks of the keys
// visible to a query. Attention is written independently of the engine, from the formula, in double
// precision; reading of weights and matmuls are the engine's.
//
// Driven by one thread; attention and matmuls use several.
#ifndef HYDRANT_TOOLS_EVAL_ANATOMY_H_
#define HYDRANT_TOOLS_EVAL_ANATOMY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/thread_pool.h"

namespace hydrant::eval {

// The result of a pass over `tokens` tokens. Rows are the queries of the tokens from `first` on;
// keys and values cover all tokens.
struct Activations {
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int tokens = 0;
  int first = 0;
  std::vector<float> queries;   // [layers, heads, rows, head_dim], rotated by RoPE
  std::vector<float> keys;      // [layers, kv_heads, tokens, head_dim], the same
  std::vector<float> values;    // [layers, kv_heads, tokens, head_dim]
  std::vector<float> attended;  // [layers, rows, heads * head_dim], before W_O
  std::vector<float> hidden;    // [rows, hidden], after the last norm

  int Rows() const { return tokens - first; }
  int Group() const { return heads / kv_heads; }
  const float* Query(int layer, int head, int token) const {
    return &queries[((int64_t{layer} * heads + head) * Rows() + token - first) * head_dim];
  }
  const float* Keys(int layer, int kv_head) const {
    return &keys[(int64_t{layer} * kv_heads + kv_head) * tokens * head_dim];
  }
  const float* Values(int layer, int kv_head) const {
    return &values[(int64_t{layer} * kv_heads + kv_head) * tokens * head_dim];
  }
};

// Visibility of keys to the query heads of a KV head. `weights` [group, query + 1]: attention
// weights without a mask; `visible` [group, query + 1] is 1 everywhere, and may be set to 0 except
// for a whole row. Called for the queries of a KV head in order; concurrently for several KV heads.
using AttentionMask =
    std::function<void(int layer, int kv_head, int query, std::span<const double> weights,
                       std::span<uint8_t> visible)>;

// Softmax attention to the keys of one KV head, in double.
class GroupAttention {
 public:
  // keys [n, head_dim]
  GroupAttention(const float* keys, int n, int head_dim);
  // weights[0 .. count - 1] = softmax of the query's logits with the first `count` keys.
  void Weights(const float* query, int count, double* weights) const;

 private:
  int n_;
  int head_dim_;
  std::vector<double> keys_;  // [head_dim, n]: sums vectorize over keys
};

class PlainForward {
 public:
  // Unimplemented, with the name of the architecture, for architectures other than llama.
  static absl::StatusOr<std::unique_ptr<PlainForward>> Create(
      std::shared_ptr<const ModelSource> source, int num_threads);

  // Computes the tokens from `first` on through the first `layers` layers (0: all). Earlier tokens
  // are taken from `before`, a previous pass. REQUIRES: the same layers there
  Activations Read(std::span<const TokenId> tokens, const AttentionMask& visible = nullptr,
                   const Activations* before = nullptr, int first = 0, int layers = 0);

  // [vocab] of a row that passed all layers.
  std::vector<float> Logits(const Activations& activations, int token);
  // -ln p(tokens[i + 1]) for i in [activations.first, tokens - 1), nats.
  std::vector<double> NegativeLogLikelihoods(const Activations& activations,
                                             std::span<const TokenId> tokens);

  // y [m, hidden] = x [m, heads * head_dim] W_O.
  std::vector<float> Output(int layer, std::span<const float> x);
  // The L1 norms of the rows of V W_O, one for each of `n` tokens and each query head: [heads, n].
  std::vector<double> OutputNorms(const Activations& activations, int layer);

  const ModelConfig& config() const { return source_->config(); }
  ThreadPool& threads() { return threads_; }

 private:
  struct Layer {
    std::vector<float> attn_norm, ffn_norm;
    std::unique_ptr<Weight> qkv, wo, gate_up, down;
    std::vector<std::unique_ptr<Weight>> wo_of_head;  // [heads] of hidden x head_dim
  };
  PlainForward(std::shared_ptr<const ModelSource> source, std::unique_ptr<Backend> backend,
               int num_threads);
  absl::Status Load();
  absl::Status LoadLayer(int layer);
  std::vector<float> Multiply(const Weight& weight, std::span<const float> x);
  std::vector<float> Normalised(std::span<const float> x, const std::vector<float>& weight) const;
  void Rotate(float* head, int position) const;
  void StoreHeads(int layer, const std::vector<float>& qkv, const Activations* before,
                  Activations* activations);
  void Attend(int layer, const AttentionMask& visible, Activations* activations);
  void FeedForward(const Layer& layer, std::vector<float>* hidden);

  std::shared_ptr<const ModelSource> source_;
  std::unique_ptr<Backend> backend_;
  ThreadPool threads_;
  std::vector<Layer> layers_;
  std::unique_ptr<Weight> embedding_, output_;  // output_ is null if tied
  std::vector<float> final_norm_;
  std::vector<double> frequencies_;  // [head_dim / 2] of RoPE
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_ANATOMY_H_
