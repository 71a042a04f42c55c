// A scorer ranks a prompt's entries, one layer at a time: it names the statistics that attention
// gathers per key during the layer's prefill, and derives scores from them afterwards. It is
// defined in the file of its policy, which makes one per request (CachePlan::scorer) with the
// request's parameters. Immutable, so copies of the plan share it across threads.
#ifndef HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_
#define HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "kernels/backend.h"

namespace hydrant {

// Between a prompt and its repetition (PromptScorer::ReadsProbe); after KVzip's (arXiv 2505.23416,
// section 3.2).
inline constexpr std::string_view kProbeInstruction = "\n\nRepeat the previous context:";

// Keys and values of a layer from a prompt's first token on: [kv_heads, ...] with head_stride.
struct LayerKv {
  ArenaRows k = nullptr;
  ArenaRows v = nullptr;
  int64_t head_stride = 0;  // elements
  int head_dim = 0;
  Rotary rotary;  // the rotation of the keys
};

// A prefilled layer of a prompt, and the device arrays for its compression; all arrays begin at the
// prompt's first token. Borrowed, for one layer.
struct PromptLayer {
  Backend* backend = nullptr;
  const CachePlan* plan = nullptr;
  int slot = 0;
  int layer = 0;
  int num_kv_heads = 0;
  int n = 0;  // tokens of the prompt, without a probe
  LayerKv kv;
  int64_t stride = 0;  // elements from head to head
  // [num_kv_heads, stride] each, in the order of the scorer's Statistics(); undefined past these.
  // If the plan compresses, the last one belongs to retained mass.
  std::array<float*, kMaxColumnStatistics> statistics = {};
  float* scores = nullptr;  // [num_kv_heads, stride] room for scores, or predicted ones
  int32_t* kept = nullptr;  // [num_kv_heads, stride] positions; free for use before the Select step
  int32_t* keep = nullptr;  // [num_kv_heads] entries; free for use before the Budget step
  // Observations of the scorer: the i-th of the layer, [num_kv_heads], at i * observation_stride.
  float* observations = nullptr;
  int64_t observation_stride = 0;

  // Copies statistics[0] to `scores`; the caller changes it as needed.
  DeriveScoresArgs Derivation() const {
    return {.a = statistics[0],
            .layer = layer,
            .num_kv_heads = num_kv_heads,
            .n = n,
            .out = scores,
            .stride = stride};
  }
  // Sets `keep` to the same number for all heads.
  void KeepEqually(int32_t entries) const {
    const std::vector<int32_t> all(num_kv_heads, entries);
    backend->CopyToDevice(keep, all.data(), all.size() * sizeof(int32_t));
  }
};

// Maximum number of observations of a scorer.
inline constexpr int kMaxObservations = 13;

// Weights of a score with two parts, known only after the prompt's last layer has been written:
// score = of_score * score + of_second * second.
struct ScoreMix {
  float of_score = 1.0f;
  float of_second = 1.0f;
};

// The score of a turn behind a compressed prompt: sum * total + max * largest attention weight of the
// turn's queries, each rotated to the position right after the turn; times the L2 norm of the value
// if value_norms.
struct EchoScore {
  float sum = 1.0f;
  float max = 0.0f;
  bool value_norms = false;
};

// The default gathers no statistics and ranks nothing.
class PromptScorer {
 public:
  virtual ~PromptScorer() = default;
  virtual std::string_view Name() const { return "none"; }

  // Whether the prompt is prefilled again after an instruction, before any entry is evicted.
  virtual bool ReadsProbe() const { return false; }
  // The statistics of the prefill, in the order of PromptLayer::statistics; the caller chooses the
  // arrays. read: prefilled tokens, the prompt's and a probe's. At most kMaxColumnStatistics, one
  // less if the plan compresses.
  virtual std::vector<ColumnStatistic> Statistics(const CachePlan& /*plan*/, int /*read*/) const {
    return {};
  }
  // The statistics of an echo, with the same limit: after a layer's prefill the prompt's queries
  // attend to all its keys once more, each rotated to the position right after the prompt. The i-th
  // shares its array with the i-th of the prefill: both are of one kind, and are added or their
  // maximum taken. Costs attention without values, no matrix product.
  virtual std::vector<ColumnStatistic> Echo(const CachePlan& /*plan*/) const { return {}; }
  // Whether PromptLayer::scores holds scores predicted from the tokens' hidden states
  // (kernels/ops/predict_scores.h) when Score() is called.
  virtual bool Predicts() const { return false; }
  // Whether retained mass is measured by an echo's queries instead of the prompt's last ones.
  virtual bool MeasuresMassByEcho() const { return false; }
  // After the layer's prefill: [num_kv_heads, stride], one of the layer's arrays; null: no ranking.
  virtual const float* Score(const PromptLayer& /*layer*/) const { return nullptr; }
  // Whether every entry gets a score, from attention: a later turn adds its own to it. Else the
  // prompt's entries start from 0 there.
  virtual bool ScoresAttention() const { return true; }
  // How a later turn is scored; nullopt: by the total attention of its last kMassQueries queries.
  // Score() then gives the same for the turn's own tokens.
  virtual std::optional<EchoScore> TurnScore() const { return std::nullopt; }
  // Factor applied to the scores when they are written into pages.
  virtual float Scale(const CachePlan& /*plan*/) const { return 1.0f; }
  // After Score(), if no entry is evicted yet: a number written beside each entry's score, a
  // SecondScore for ScoreMix or a BelowMeanCount for decoding (kernels/entry_state.h).
  virtual const float* Second(const PromptLayer& /*layer*/) const { return nullptr; }
  // Floats per head that Score() writes to PromptLayer::observations, for Policy::Resolve.
  virtual int NumObservations(const CachePlan& /*plan*/) const { return 0; }
  // After the decision: how the scores that decoding starts from are made of those in the pages.
  virtual ScoreMix Mix(const CachePlan& /*plan*/) const { return {}; }
};

// Scores by the attention of the prompt's last queries.
class WindowScorer : public PromptScorer {
 public:
  explicit WindowScorer(int32_t queries) : queries_(queries) {}
  int32_t queries() const { return queries_; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int /*read*/) const override {
    return {Sums(plan)};
  }

 protected:
  ColumnStatistic Sums(const CachePlan& plan) const {
    const auto n = static_cast<int32_t>(plan.prompt.tokens);
    return {.reduce = plan.rule.reduce, .first_query = std::max(0, n - queries_), .end_query = n};
  }

 private:
  int32_t queries_;
};

// Scores by exact accumulated attention (H2O, arXiv 2306.14048), with `mean` divided by the
// prompt's length.
std::shared_ptr<const PromptScorer> NewColumnSums(bool mean = false);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_
