// The truth the engine is held to: a plain transformer in double precision with one cache per
// (layer, KV head) that really drops entries. Written from the papers and the design's order of a
// step, sharing no code with engine or kernels.
#ifndef HYDRANT_TESTS_ENGINE_RUN_DOUBLE_MODEL_H_
#define HYDRANT_TESTS_ENGINE_RUN_DOUBLE_MODEL_H_

#include <memory>
#include <utility>
#include <vector>

#include "engine/model/model_source.h"
#include "engine/run/step/batch.h"

namespace hydrant {

class DoubleModel {
 public:
  using Vector = std::vector<double>;
  using Matrix = std::vector<Vector>;  // rows
  struct Linear {
    Matrix weight;
    Vector bias;  // may be empty
  };

  explicit DoubleModel(const ModelSource& source);

  struct Entry {
    int position;
    Vector key, value;  // key: turned by its position; under a rolling rule as before RoPE
    double score = 0;
    double most = 0;  // of what one query received
    double late = 0;  // what the queries of retained mass received, mean over the group
    double numerator = 0, denominator = 0;  // log weights
    Vector received = {};                   // by each query of the prompt, 0 before its own
    std::vector<int> below_mean = {};  // queries since the last drop that received less than 1 / n
  };
  struct Head {
    std::vector<Entry> entries;
    std::vector<Entry> left;   // with the newest run
    int victim_position = -1;  // leaves when the next token comes; -1: none
    int64_t cap = kNoCap;
  };

  // One sequence: the prompt is read with dense attention, then compressed layer by layer; each
  // Step() adds a token.
  class Sequence {
   public:
    Sequence(const DoubleModel* model, const CachePlan& plan);
    // Logits of the prompt's last token. What is read past the plan's prompt is a probe.
    Vector Prefill(const std::vector<TokenId>& reading);
    Vector Step(TokenId token, int position);
    // Tokens from `position` on, at once: each attends to all entries and to those before it, then
    // a head's entries leave one by one, the lowest score first, until it is at its cap.
    // keep: [heads of all layers] that are left instead, by what the last 32 of them pay.
    Vector Append(const std::vector<TokenId>& tokens, int position,
                  const std::vector<int32_t>& keep = {});

    // Every head keeps the same part of its entries, `mean` on average and the protected at least,
    // and grows no more. The window of the newest becomes less in proportion, where there was a
    // cap.
    void Shrink(int mean, int next_position);

    // Of a plan that tunes itself, after Prefill(): what each trial retains, [trials][heads of all
    // layers], the last by what the held-out queries pay.
    Matrix TrialMasses() const;
    // The plan that was decided, and with it the scores.
    void Decide(const CachePlan& plan);

    // Entries are in the order of their positions: an entry's index is its rank.
    Head& head(int layer, int kv_head) { return HeadsOf(layer)[kv_head]; }
    bool InWindow(int layer) const { return place_[layer].first; }

   private:
    std::vector<Head>& HeadsOf(int layer);
    void KeepWindow(int layer, Head* head) const;
    void StepInWindow(int layer, int position, Vector* hidden);
    Vector Attend(int layer, const Vector& query, size_t unseen, std::vector<Head>* heads) const;
    void DropTo(int64_t keep, int next_position, int recent, Head* head) const;
    void ChooseVictims(int layer, int position);
    void AddEcho(int layer, const Matrix& queries);
    void Pool(Head* head, int end) const;
    void RankByKCenter(Head* head, int end) const;
    double TwoPartAverage(const Vector& received, double alpha, int late, int end) const;
    std::vector<int> BestFirst(const Head& head, int n) const;
    std::vector<int> Shares(int layer_begin, int layer_end, int n) const;
    void CompressAll(int n);
    void Compress(Head* head, int n, int keep) const;
    void CountIfBelowMean(double weight, int length, int query, Entry* entry) const;
    void Revise(int layer, int first, int next_position);
    double Draw(int layer, int head, int next_position, int position) const;
    void DropMany(Head* head, int next_position) const;
    void PickVictim(Head* head, int next_position) const;
    double Reduce(const Vector& weights) const;  // over the query heads of a group
    double Logit(int layer, Vector query, const Head& head, size_t rank) const;

    const DoubleModel* model_;
    CachePlan plan_;
    // [layers without a window], [those with one]: the plan is about the former.
    std::vector<std::vector<Head>> heads_, in_windows_;
    std::vector<std::pair<bool, int>> place_;  // [layers]: which of the two, and where
  };

 private:
  struct Norm {
    Vector weight, bias;
  };
  struct Expert {
    Linear gate, up, down;
  };
  struct Layer {
    Norm attn_norm, ffn_norm, attn_post_norm, ffn_post_norm;
    Vector q_norm, k_norm, sink_logits;
    Linear wq, wk, wv, wo, gate, up, down;  // without rows where there are only experts
    Linear router;
    std::vector<Expert> experts;
  };
  Vector Embed(TokenId token, int position) const;
  Vector Normalise(const Vector& x, const Norm& norm) const;  // x where there is no norm
  // Queries and keys of a row that attention reads, before they turn.
  Vector Heads(const Linear& linear, const Vector& norm, const Vector& x) const;
  // Every head of a key row of a layer.
  void Rotate(int layer, Vector* heads, int position, double scale = 1) const;
  // Of a query row. The attention factor is of queries and of keys; keys are kept without it.
  void RotateQueries(int layer, Vector* heads, int position) const;
  // What attention or feed-forward adds.
  void AddResidual(const Vector& x, const Norm& post_norm, Vector* hidden) const;
  Vector FeedForward(const Layer& layer, const Vector& x) const;
  Vector Gated(const Linear& gate, const Linear& up, const Linear& down, const Vector& x) const;
  void AddExperts(const Layer& layer, const Vector& normed, Vector* sum) const;
  void FinishLayer(const Layer& layer, const Vector& attended, Vector* hidden) const;
  Vector Logits(const Vector& hidden) const;
  double SinkLogit(int layer, int head) const;
  double LogitOf(const double* query, const Vector& key) const;

  ModelConfig config_;
  Matrix embedding_, positions_, output_;
  Norm final_norm_;
  std::vector<Layer> layers_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_RUN_DOUBLE_MODEL_H_
