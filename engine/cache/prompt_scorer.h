// A scorer ranks a prompt's entries, a layer at a time: it says which statistics attention is to
// gather of each key while the layer is read, and makes scores of them afterwards. It stands in the
// file of the policy that brings it, which makes one for a request (CachePlan::scorer) and gives it
// its parameters. It is immutable, so copies of the plan share it across threads.
#ifndef HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_
#define HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "kernels/backend.h"

namespace hydrant {

// Keys and values of a layer, of a prompt's first token: [kv_heads, ...] with the stride.
struct LayerKv {
  ArenaRows k = nullptr;
  ArenaRows v = nullptr;
  int64_t head_stride = 0;  // elements
  int head_dim = 0;
  Rotary rotary;  // what turned the keys
};

// A layer of a prompt that has been read, and the device arrays in which it becomes a cache; all of
// these begin at the prompt's first token. Borrowed, for one layer.
struct PromptLayer {
  Backend* backend = nullptr;
  const CachePlan* plan = nullptr;
  int slot = 0;
  int layer = 0;
  int num_kv_heads = 0;
  int n = 0;  // tokens of the prompt, without a probe
  LayerKv kv;
  int64_t stride = 0;  // elements from head to head
  // [num_kv_heads, stride] each, in the order of the scorer's Statistics(); past these anything.
  // Where the plan compresses the last is retained mass's.
  std::array<float*, kMaxColumnStatistics> statistics = {};
  float* scores = nullptr;  // [num_kv_heads, stride] room for scores
  int32_t* kept = nullptr;  // [num_kv_heads, stride] positions, of the Select step; until then room
  int32_t* keep = nullptr;  // [num_kv_heads] entries, of the Budget step; until then room
  // Of a scorer with observations: the i-th of the layer [num_kv_heads] begins at i *
  // observation_stride.
  float* observations = nullptr;
  int64_t observation_stride = 0;

  // What turns statistics[0] into `scores` as it is, to be altered.
  DeriveScoresArgs Derivation() const {
    return {.a = statistics[0],
            .layer = layer,
            .num_kv_heads = num_kv_heads,
            .n = n,
            .out = scores,
            .stride = stride};
  }
  // Every head keeps as many.
  void KeepAlike(int32_t entries) const {
    const std::vector<int32_t> all(num_kv_heads, entries);
    backend->CopyToDevice(keep, all.data(), all.size() * sizeof(int32_t));
  }
};

// Observations that a scorer may make at most.
inline constexpr int kMaxObservations = 13;

// Scores that are made of two parts, where the weights of these are known only when the prompt's
// last layer has been written: score = of_score * score + of_second * second.
struct ScoreMix {
  float of_score = 1.0f;
  float of_second = 1.0f;
};

// The default gathers nothing and ranks nothing.
class PromptScorer {
 public:
  virtual ~PromptScorer() = default;
  virtual std::string_view Name() const { return "none"; }

  // Whether the prompt is to be read again behind an instruction, before anything of it leaves.
  virtual bool ReadsProbe() const { return false; }
  // What is gathered while `read` tokens, the prompt's and a probe's, are read, in the order of
  // PromptLayer::statistics: where to is not the scorer's to say. At most kMaxColumnStatistics, one
  // less where the plan compresses.
  virtual std::vector<ColumnStatistic> Statistics(const CachePlan& /*plan*/, int /*read*/) const {
    return {};
  }
  // What is gathered of an echo, as many at most, the i-th in the same place as the i-th of the
  // reading, where there is one: both are then of one kind, and are added or their maximum taken.
  // When a layer has been read, the queries of the prompt are asked once more, as if each came
  // right after the prompt, and so of all its keys. It costs attention without values, no matrix
  // product.
  virtual std::vector<ColumnStatistic> Echo(const CachePlan& /*plan*/) const { return {}; }
  // Retained mass is of the attention of an echo's queries, not the prompt's last.
  virtual bool EchoSaysMass() const { return false; }
  // Once the layer has been read: [num_kv_heads, stride], one of the layer's arrays; null: nothing
  // is ranked.
  virtual const float* Score(const PromptLayer& /*layer*/) const { return nullptr; }
  // Factor of the scores when they are written into pages.
  virtual float Scale(const CachePlan& /*plan*/) const { return 1.0f; }
  // After Score(), where nothing leaves yet: a number that is written beside each entry's score, a
  // SecondScore for ScoreMix or a BelowMeanCount for decoding (kernels/entry_state.h).
  virtual const float* Second(const PromptLayer& /*layer*/) const { return nullptr; }
  // Floats a head that Score() leaves in PromptLayer::observations, by which the plan's policy
  // decides what it has left open (Policy::Decide).
  virtual int NumObservations(const CachePlan& /*plan*/) const { return 0; }
  // Once it has decided: how the scores in the pages become those that decoding starts from.
  virtual ScoreMix Mix(const CachePlan& /*plan*/) const { return {}; }
};

// By the attention of the prompt's last queries.
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

// By exact accumulated attention (H2O, arXiv 2306.14048); `mean`: divided by the prompt's length.
std::shared_ptr<const PromptScorer> NewColumnSums(bool mean = false);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_
