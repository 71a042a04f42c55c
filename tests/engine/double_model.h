// The truth the engine is held to: a plain llama in double precision with one cache per (layer, KV
// head) that really drops entries. Written from the papers and the design's order of a step,
// sharing no code with engine or kernels.
#ifndef HYDRANT_TESTS_ENGINE_DOUBLE_MODEL_H_
#define HYDRANT_TESTS_ENGINE_DOUBLE_MODEL_H_

#include <memory>
#include <vector>

#include "engine/batch.h"
#include "engine/model/model_source.h"

namespace hydrant {

class DoubleModel {
 public:
  using Vector = std::vector<double>;
  using Matrix = std::vector<Vector>;  // rows

  explicit DoubleModel(const ModelSource& source);

  struct Entry {
    int position;
    Vector key, value;
    double score = 0;
    double numerator = 0, denominator = 0;  // log weights
  };
  struct Head {
    std::vector<Entry> entries;
    int victim_position = -1;  // leaves when the next token comes; -1: none
  };

  // One sequence: the prompt is read with dense attention, then compressed layer by layer; each
  // Step() adds a token.
  class Sequence {
   public:
    Sequence(const DoubleModel* model, const CachePlan& plan);
    Vector Prefill(const std::vector<TokenId>& prompt);  // logits of the last token
    Vector Step(TokenId token, int position);

    Head& head(int layer, int kv_head) { return heads_[layer][kv_head]; }

   private:
    void Pool(Head* head, int end) const;
    void RankByKCenter(Head* head, int end) const;
    void Compress(Head* head, int n) const;
    void PickVictim(Head* head, int next_position) const;
    double Reduce(const Vector& weights) const;  // over the query heads of a group

    const DoubleModel* model_;
    CachePlan plan_;
    std::vector<std::vector<Head>> heads_;
  };

 private:
  struct Layer {
    Vector attn_norm, ffn_norm;
    Matrix wq, wk, wv, wo, gate, up, down;
  };
  Vector Normalise(const Vector& x, const Vector& weight) const;
  void Rotate(Vector* heads, int position) const;  // every head of a query or key row
  Vector FeedForward(const Layer& layer, const Vector& x) const;
  Vector Logits(const Vector& hidden) const;

  ModelConfig config_;
  Matrix embedding_, output_;
  Vector final_norm_;
  std::vector<Layer> layers_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_DOUBLE_MODEL_H_
