// The reference for tests of the engine: a plain transformer in double precision with one cache per
// (layer, KV head), which really drops entries. Written from the papers and the design's order of a
// step. Shares plans, dequantisation and random draws with the engine, no other code.
#ifndef HYDRANT_TESTS_ENGINE_RUN_DOUBLE_MODEL_H_
#define HYDRANT_TESTS_ENGINE_RUN_DOUBLE_MODEL_H_

#include <memory>
#include <utility>
#include <vector>

#include "engine/model/model_source.h"
#include "engine/run/forward/score_predictor.h"
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

  // predictor: for plans with predicted scores.
  explicit DoubleModel(const ModelSource& source,
                       std::shared_ptr<const ScorePredictor> predictor = nullptr);

  struct Entry {
    int position;
    Vector key, value;  // key: rotated by its position; before RoPE under a rolling rule
    double score = 0;
    double earned = 0;  // by the prompt and by turns, if turns are scored; or predicted
    double most = 0;    // the largest weight that one query head gave it
    double late = 0;    // sum of the retained-mass queries' weights, mean over the group
    double numerator = 0, denominator = 0;  // log weights
    Vector received = {};              // weight from each query of the prompt, 0 before its own
    std::vector<int> below_mean = {};  // queries since the last drop with a weight below 1 / n
  };
  struct Head {
    std::vector<Entry> entries;
    std::vector<Entry> left;   // evicted by the newest run or Shrink()
    int victim_position = -1;  // evicted by the next token; -1: none
    int64_t cap = kNoCap;
  };

  // One sequence: the prompt is prefilled with dense attention and compacted when the plan says so;
  // each Step() adds a token.
  class Sequence {
   public:
    Sequence(const DoubleModel* model, const CachePlan& plan);
    // Logits of the prompt's last token. Tokens after the plan's prompt are a probe.
    Vector Prefill(const std::vector<TokenId>& reading);
    Vector Step(TokenId token, int position);
    // Appends tokens from `position` on in one run: each attends to all entries and to the run's
    // tokens before it. Then each head evicts the lowest score repeatedly until it is at its cap.
    Vector Append(const std::vector<TokenId>& tokens, int position);
    // The same as another turn (TurnRun).
    Vector AppendTurn(const std::vector<TokenId>& tokens, int position, const TurnRun& turn);

    // Every head keeps the same part of its entries, `mean` on average and at least the protected
    // ones, and stops growing. With a cap the protected recent window shrinks in proportion.
    void Shrink(int mean, int next_position);

    // For a self-tuning plan, after Prefill(): retained mass of each trial, [trials][KV heads of
    // layers without a window]. The last trial ranks by the held-out queries' own attention.
    Matrix TrialMasses() const;
    // Sets the decided plan and recomputes the scores by it.
    void Decide(const CachePlan& plan);

    // Entries are ordered by position: an entry's index is its rank.
    Head& head(int layer, int kv_head) { return HeadsOf(layer)[kv_head]; }
    bool InWindow(int layer) const { return place_[layer].first; }

   private:
    std::vector<Head>& HeadsOf(int layer);
    void KeepWindow(int layer, Head* head) const;
    void StepInWindow(int layer, int position, Vector* hidden);
    Vector Attend(int layer, const Vector& query, size_t unseen, std::vector<Head>* heads) const;
    void DropTo(int64_t keep, int next_position, int recent, Head* head) const;
    void ChooseVictims(int layer, int position);
    // Adds the attention of queries, rotated to the position after the tokens, to the scores and
    // maxima of the first `most` entries of all heads; of the queries as many.
    void AddEcho(int layer, const Matrix& queries, int most);
    void MakeScores(Head* head) const;
    void ReadRun(int layer, int position, Matrix* hidden, const TurnRun* turn);
    void ScoreTurn(int layer, int position, const Matrix& unrotated, const TurnRun& turn);
    void CompactTurn(int n, int next_position, const TurnRun& turn);
    void DropHeads(int layer_begin, int layer_end, int n, int next_position, const TurnRun& turn);
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
    // [layers without a window], [layers with one]; the plan applies to the former.
    std::vector<std::vector<Head>> heads_, in_windows_;
    std::vector<std::pair<bool, int>> place_;  // [layers]: has a window, index in its list
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
    Linear wq, wk, wv, wo, gate, up, down;  // gate, up, down: empty with experts alone
    Linear router;
    std::vector<Expert> experts;
  };
  Vector Embed(TokenId token, int position) const;
  Vector Normalise(const Vector& x, const Norm& norm) const;  // without a norm: x
  // Queries or keys of a row, normalised, before RoPE.
  Vector Heads(const Linear& linear, const Vector& norm, const Vector& x) const;
  // RoPE of every head of a key row.
  void Rotate(int layer, Vector* heads, int position, double scale = 1) const;
  // RoPE of a query row, times the squared attention factor: keys are kept without theirs.
  void RotateQueries(int layer, Vector* heads, int position) const;
  // Adds the output of attention or feed-forward.
  void AddResidual(const Vector& x, const Norm& post_norm, Vector* hidden) const;
  Vector FeedForward(const Layer& layer, const Vector& x) const;
  Vector Gated(const Linear& gate, const Linear& up, const Linear& down, const Vector& x) const;
  void AddExperts(const Layer& layer, const Vector& normed, Vector* sum) const;
  void FinishLayer(const Layer& layer, const Vector& attended, Vector* hidden) const;
  Vector Logits(const Vector& hidden) const;
  // hidden: the layer's input.
  double PredictedScore(int layer, int kv_head, const Vector& hidden) const;
  double SinkLogit(int layer, int head) const;
  double LogitOf(const double* query, const Vector& key) const;

  ModelConfig config_;
  Matrix embedding_, positions_, output_;
  Norm final_norm_;
  std::vector<Layer> layers_;
  std::shared_ptr<const ScorePredictor> predictor_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_RUN_DOUBLE_MODEL_H_
