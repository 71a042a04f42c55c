#include "tools/eval/fit/pages.h"

#include <memory>
#include <utility>

#include "engine/cache/prompt_scorer.h"
#include "engine/run/engine_probe.h"
#include "kernels/check.h"
#include "tools/eval/engine_driver.h"

namespace hydrant::eval {
namespace {

// The statistics are gathered by one prefill for all of these.
struct Gathered {
  bool of_echo = false;
  ColumnStatistic::Kind kind = ColumnStatistic::Kind::kSum;
};
constexpr Gathered kAll[kPageCaches] = {{false, ColumnStatistic::Kind::kSum},
                                        {false, ColumnStatistic::Kind::kMax},
                                        {true, ColumnStatistic::Kind::kSum},
                                        {true, ColumnStatistic::Kind::kMax}};

class OneStatistic final : public PromptScorer {
 public:
  explicit OneStatistic(const Gathered& gathered) : gathered_(gathered) {}
  bool ReadsProbe() const override { return !gathered_.of_echo; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override {
    if (gathered_.of_echo) return {};
    return {From(read - static_cast<int32_t>(plan.prompt.tokens))};
  }
  std::vector<ColumnStatistic> Echo(const CachePlan& /*plan*/) const override {
    if (!gathered_.of_echo) return {};
    return {From(0)};
  }
  const float* Score(const PromptLayer& layer) const override {
    DeriveScoresArgs weigh = layer.Derivation();
    weigh.step = ScoreStep::kTimesLength;
    weigh.rows = layer.kv.v;
    weigh.row_head_stride = layer.kv.head_stride;
    weigh.dims = layer.kv.head_dim;
    layer.backend->DeriveScores(weigh);
    return layer.scores;
  }

 private:
  ColumnStatistic From(int32_t first_query) const {
    const bool sums = gathered_.kind == ColumnStatistic::Kind::kSum;
    return {.kind = gathered_.kind,
            .reduce = sums ? GroupReduce::kMean : GroupReduce::kMax,
            .first_query = first_query};
  }

  Gathered gathered_;
};

// A cache of all entries of the page but the least one of each head: a plan that keeps everything
// reads nothing twice.
CachePlan PlanOf(const Engine& engine, int tokens, const Gathered& gathered) {
  CacheSpec spec;
  spec.policy = "reconstruct";
  spec.max_cache_tokens = tokens - 1;
  spec.params = {{"budget_scope", "head"}};
  absl::StatusOr<CachePlan> plan = PlanCache(spec, engine.limits().ShapeOf(tokens));
  HYDRANT_CHECK(plan.ok());
  plan->scorer = std::make_shared<OneStatistic>(gathered);
  return *std::move(plan);
}

}  // namespace

std::vector<PageLayer> ReadPage(Engine* engine, std::span<const TokenId> page,
                                std::span<const TokenId> instruction) {
  const EngineLimits& limits = engine->limits();
  const auto n = static_cast<int>(page.size());
  std::vector<TokenId> tokens(page.begin(), page.end());
  tokens.insert(tokens.end(), instruction.begin(), instruction.end());
  tokens.insert(tokens.end(), page.begin(), page.end());
  EngineDriver driver(engine, 1);
  int slots[kPageCaches] = {driver.Add(std::move(tokens), PlanOf(*engine, n, kAll[0]), 0)};
  for (int i = 1; i < kPageCaches; ++i)
    slots[i] = driver.AddSharing(slots[0], PlanOf(*engine, n, kAll[i]), 0);

  std::vector<PageLayer> layers(limits.num_layers);
  const EngineProbe probe(*engine);
  const size_t width = engine->config().hidden_size;
  probe.ObserveLayers([&](int layer, const TokenRun& /*run*/, const float* hidden) {
    layers[layer].hidden.resize(n * width);
    engine->Parts().backend->CopyToHost(layers[layer].hidden.data(), hidden,
                                        n * width * sizeof(float));
  });
  driver.PrefillAll(slots[0]);
  driver.Step();
  probe.ObserveLayers(nullptr);

  for (int layer = 0; layer < limits.num_layers; ++layer) {
    if (engine->config().KindOf(layer).window > 0) continue;
    for (int head = 0; head < limits.num_kv_heads; ++head) {
      const auto scores = [&](int i) { return probe.ReadScores(slots[i], layer, head, n, -1.0f); };
      layers[layer].repetition.push_back({scores(0), scores(1)});
      layers[layer].echo.push_back({scores(2), scores(3)});
    }
  }
  return layers;
}

}  // namespace hydrant::eval
