// A scorer ranks a prompt's entries, a layer at a time: it says what attention is to note of each
// key while the layer is read, and makes scores of that afterwards. It holds no state, so one
// object of each serves every request; what it needs to know of one is in the request's CachePlan.
// It stands in the file of the policy that brings it, which sets CachePlan::prompt_score.
#ifndef HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_
#define HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "kernels/backend.h"

namespace hydrant {

// Keys and values of a layer, of a prompt's first token: [kv_heads, ...] with the stride.
struct LayerKv {
  const float* k = nullptr;
  const float* v = nullptr;
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
  // [num_kv_heads, stride] each: what attention noted, in the order of the scorer's Statistics();
  // past these anything. Where the plan compresses the last is retained mass's.
  std::array<float*, kMaxColumnStatistics> noted = {};
  float* scores = nullptr;  // [num_kv_heads, stride] room for scores
  int32_t* kept = nullptr;  // [num_kv_heads, stride] positions, of the Select step; until then room
  int32_t* keep = nullptr;  // [num_kv_heads] entries, of the Budget step; until then room
  // Of a plan whose tuning is open: trial t's masses of the layer [num_kv_heads] begin at t *
  // trial_stride (engine/cache/policies/self_tuning.h).
  float* trial_masses = nullptr;
  int64_t trial_stride = 0;

  // What turns noted[0] into `scores` as it is, to be altered.
  DeriveScoresArgs Derivation() const {
    return {.a = noted[0],
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

// What the last queries of the prompt pay, as many as the plan's window has.
inline ColumnStatistic WindowSums(const CachePlan& plan) {
  const auto n = static_cast<int32_t>(plan.prompt.tokens);
  return {.reduce = plan.rule.reduce,
          .first_query = std::max(0, n - plan.window.queries),
          .end_query = n};
}

// The default notes nothing and ranks nothing.
class PromptScorer {
 public:
  // Whether the prompt is to be read again behind an instruction, before anything of it leaves.
  virtual bool ReadsProbe() const { return false; }
  // What is noted while `read` tokens, the prompt's and a probe's, are read, in the order of
  // PromptLayer::noted: where to is not the scorer's to say. At most kMaxColumnStatistics, one less
  // where the plan compresses.
  virtual std::vector<ColumnStatistic> Statistics(const CachePlan& /*plan*/, int /*read*/) const {
    return {};
  }
  // What is noted of an echo, as many at most, the i-th in the same place as the i-th of the
  // reading, where there is one: both are then of one kind, and are added or their maximum taken.
  // When a layer has been read, the queries of the prompt are asked once more, as if each came
  // right after the prompt, and so of all its keys. It costs attention without values, no matrix
  // product.
  virtual std::vector<ColumnStatistic> Echo(const CachePlan& /*plan*/) const { return {}; }
  // Once the layer has been read: [num_kv_heads, stride], one of the layer's arrays; null: nothing
  // is ranked.
  virtual const float* Score(const PromptLayer& /*layer*/) const { return nullptr; }
  // After Score(), where nothing leaves yet: what decoding is to find beside each entry's score,
  // likewise.
  virtual const float* Beside(const PromptLayer& /*layer*/) const { return nullptr; }

 protected:
  ~PromptScorer() = default;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PROMPT_SCORER_H_
