#include "engine/prompt_compressor.h"

#include "engine/prompt_budget.h"

namespace hydrant {
namespace {

// The last: what the last queries pay, by which retained mass is measured.
constexpr int kMassStatistic = kMaxColumnStatistics - 1;

// Whether that is kept beside the entries. A weighted slot has its own use for the place.
bool NotesMass(const CachePlan& plan) { return plan.Compresses() && !plan.rule.weighted; }

}  // namespace

absl::StatusOr<std::unique_ptr<PromptCompressor>> PromptCompressor::Create(
    Backend* backend, const EngineLimits& limits, int arena_tokens) {
  std::unique_ptr<PromptCompressor> compressor(new PromptCompressor(backend, limits, arena_tokens));
  if (absl::Status status = compressor->Allocate(); !status.ok()) return status;
  return compressor;
}

absl::Status PromptCompressor::Allocate() {
  const size_t per_arena = static_cast<size_t>(arena_tokens_) * limits_.num_kv_heads;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
  };
  for (DeviceArray<float>& array : noted_) allocate(array, per_arena);
  allocate(scores_, per_arena);
  allocate(kept_, per_arena);
  allocate(mass_, NumHeads() * limits_.max_num_seqs);
  allocate(trials_, NumHeads() * limits_.max_num_seqs * kTrials);
  if (status.ok()) status = budget_.Allocate(backend_, limits_);
  return status;
}

std::array<ColumnStatistic, kMaxColumnStatistics> PromptCompressor::Statistics(
    const PrefillSlice& slice, const CachePlan& plan) const {
  std::array<ColumnStatistic, kMaxColumnStatistics> statistics = {};
  const auto note = [&](int i, const ColumnStatistic& statistic) {
    statistics[i] = statistic;
    statistics[i].out = noted_[i].data() + slice.arena_begin;
    statistics[i].stride = arena_tokens_;
  };
  int i = 0;
  for (const ColumnStatistic& wanted :
       plan.prompt_score->Statistics(plan, static_cast<int>(slice.prompt.size())))
    note(i++, wanted);
  const auto n = static_cast<int32_t>(plan.prompt.tokens);
  if (NotesMass(plan))
    note(kMassStatistic, {.first_query = n - plan.MassQueries(), .end_query = n});
  return statistics;
}

void PromptCompressor::Begin(const PrefillSlice& slice, const CachePlan& plan) {
  for (const ColumnStatistic& statistic : Statistics(slice, plan)) {
    if (statistic.out == nullptr) continue;
    for (int head = 0; head < limits_.num_kv_heads; ++head) {
      backend_->Zero(statistic.out + head * statistic.stride, slice.prompt.size() * sizeof(float));
    }
  }
}

PromptLayer PromptCompressor::LayerOf(int layer, const PrefillSlice& slice, const LayerKv& layer_kv,
                                      const CachePlan& plan) const {
  const size_t head = static_cast<size_t>(layer) * limits_.num_kv_heads;
  const auto place = [&](const auto& array) { return array.data() + slice.arena_begin; };
  return {.backend = backend_,
          .plan = &plan,
          .slot = slice.slot,
          .layer = layer,
          .num_kv_heads = limits_.num_kv_heads,
          .n = static_cast<int>(plan.prompt.tokens),
          .kv = layer_kv,
          .stride = arena_tokens_,
          .noted = {place(noted_[0]), place(noted_[1]), place(noted_[2])},
          .scores = place(scores_),
          .kept = place(kept_),
          .keep = budget_.keep(layer),
          .trial_masses = trials_.data() + slice.slot * kTrials * NumHeads() + head,
          .trial_stride = static_cast<int64_t>(NumHeads())};
}

void PromptCompressor::Compress(int layer, const PrefillSlice& slice, const LayerKv& layer_kv,
                                const KvState& kv) {
  const CachePlan& plan = kv.plan(slice.slot);
  const PromptLayer prompt = LayerOf(layer, slice, layer_kv, plan);
  if (plan.rule.weighted && plan.Compresses()) {
    backend_->SubGenBuild({.k = layer_kv.k,
                           .v = layer_kv.v,
                           .kv_head_stride = layer_kv.head_stride,
                           .n = prompt.n,
                           .rule = plan.subgen,
                           .slot = slice.slot,
                           .layer = layer,
                           .pages = kv.pages(),
                           .tables = kv.tables()});
    return;
  }
  const float* scores = plan.prompt_score->Score(prompt);
  BudgetOf(plan).OfLayer(prompt, scores, kv);
  const bool everything = !plan.IsRagged() && plan.KeptOfPrompt(layer) == prompt.n;
  if (!everything) Select(prompt, scores);
  Write(prompt, scores, everything, kv);
}

void PromptCompressor::Select(const PromptLayer& layer, const float* scores) {
  // Without scores the protected are all there is to keep.
  backend_->Select({.scores = scores != nullptr ? scores : layer.noted[0],
                    .score_stride = layer.stride,
                    .num_kv_heads = layer.num_kv_heads,
                    .n = layer.n,
                    .sinks = layer.plan->rule.sinks,
                    .recent = layer.plan->rule.recent,
                    .keep = layer.keep,
                    .kept = layer.kept,
                    .kept_stride = layer.stride});
}

void PromptCompressor::Write(const PromptLayer& layer, const float* scores, bool everything,
                             const KvState& kv) {
  const CachePlan& plan = *layer.plan;
  const bool decided = plan.IsRagged() && !plan.IsDeferred() && plan.Growth() != kNoCap;
  backend_->WritePages({.k = layer.kv.k,
                        .v = layer.kv.v,
                        .kv_head_stride = layer.kv.head_stride,
                        .scores = scores,
                        .score_stride = layer.stride,
                        .score_scale = plan.mean_scores ? 1.0f / static_cast<float>(layer.n) : 1.0f,
                        .kept = everything ? nullptr : layer.kept,
                        .kept_stride = layer.stride,
                        .keep = layer.keep,
                        .growth = decided ? plan.Growth() : -1,
                        .window_sums = NotesMass(plan) ? layer.noted[kMassStatistic]
                                                       : plan.prompt_score->Beside(layer),
                        .window_stride = layer.stride,
                        .n = layer.n,
                        .rotary = layer.kv.rotary,
                        .slot = layer.slot,
                        .layer = layer.layer,
                        .pages = kv.pages(),
                        .tables = kv.tables()});
}

void PromptCompressor::Finish(const PrefillSlice& slice, const KvState& kv) {
  const CachePlan& plan = kv.plan(slice.slot);
  BudgetOf(plan).OfPrompt(plan, kv, slice.slot, &budget_);
  if (!NotesMass(plan)) return;
  backend_->RetainedMass({.slot = slice.slot,
                          .queries = plan.MassQueries(),
                          .max_length = plan.WidestKeep(),
                          .pages = kv.pages(),
                          .tables = kv.tables(),
                          .mass = mass_.data() + slice.slot * NumHeads()});
}

}  // namespace hydrant
