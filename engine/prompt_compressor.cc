#include "engine/prompt_compressor.h"

#include <algorithm>

namespace hydrant {
namespace {

// The queries by whose attention retained mass is measured.
constexpr int kMassQueries = 32;

int PromptTokens(const CachePlan& plan) { return static_cast<int>(plan.prompt.tokens); }

int MassQueries(const CachePlan& plan) { return std::min(kMassQueries, PromptTokens(plan)); }

// Whether what was paid is kept beside the entries. A weighted slot has its own use for that place.
bool NotesMass(const CachePlan& plan) { return plan.Compresses() && !plan.rule.weighted; }

// Whether the counts that rank a prompt stand beside its entries, to be counted on while decoding
// (kernels/revise_scores.h). They do not outlive a drop.
bool NotesCounts(const CachePlan& plan) {
  return plan.rule.revision == Revision::kBelowMean && !plan.Compresses();
}

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
  for (DeviceArray<float>* array : {&sums_, &maxima_, &late_, &window_, &scores_})
    allocate(*array, per_arena);
  allocate(kept_, per_arena);
  allocate(mass_, NumHeads() * limits_.max_num_seqs);
  allocate(trials_, NumHeads() * limits_.max_num_seqs * kTrials);
  if (status.ok()) status = budget_.Allocate(backend_, limits_);
  return status;
}

std::array<ColumnStatistic, kMaxColumnStatistics> PromptCompressor::Statistics(
    const PrefillSlice& slice, const CachePlan& plan) const {
  const int n = PromptTokens(plan);
  const int read = static_cast<int>(slice.prompt.size());
  std::array<ColumnStatistic, kMaxColumnStatistics> statistics = {};
  ColumnStatistic& first = statistics[0];
  first.reduce = plan.rule.reduce;
  first.stride = arena_tokens_;
  first.out = sums_.data() + slice.arena_begin;
  switch (plan.prompt_score) {
    case PromptScore::kNone:
    case PromptScore::kRandom:
    case PromptScore::kKCenter:
      first.out = nullptr;
      break;
    case PromptScore::kColumnSums:
      first.end_query = n;
      break;
    case PromptScore::kBelowMean:
      first.kind = ColumnStatistic::Kind::kBelowMean;
      [[fallthrough]];
    case PromptScore::kWindow:
      first.first_query = std::max(0, n - plan.window.queries);
      first.end_query = n;
      break;
    case PromptScore::kTuned:
      first.end_query = n - kHeldOutQueries - kLateQueries;
      statistics[1] = first;
      statistics[1].first_query = std::max(0, first.end_query);
      statistics[1].end_query = n - kHeldOutQueries;
      statistics[1].out = late_.data() + slice.arena_begin;
      statistics[2] = first;
      statistics[2].first_query = n - kHeldOutQueries;
      statistics[2].end_query = n;
      statistics[2].out = window_.data() + slice.arena_begin;
      break;
    case PromptScore::kProbe:
      first.first_query = read - n;  // the prompt, read again
      statistics[1] = first;
      statistics[1].kind = ColumnStatistic::Kind::kMax;
      statistics[1].reduce = GroupReduce::kMax;
      statistics[1].out = maxima_.data() + slice.arena_begin;
      break;
  }
  if (NotesMass(plan)) {
    statistics[2] = {.first_query = n - MassQueries(plan),
                     .end_query = n,
                     .out = window_.data() + slice.arena_begin,
                     .stride = arena_tokens_};
  }
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

// [kv_heads, arena] from the slice's first token on, null where nothing is ranked.
const float* PromptCompressor::Score(int layer, const PrefillSlice& slice, const LayerKv& layer_kv,
                                     const CachePlan& plan) {
  float* sums = sums_.data() + slice.arena_begin;
  DeriveScoresArgs derive = {.a = sums,
                             .layer = layer,
                             .num_kv_heads = limits_.num_kv_heads,
                             .n = PromptTokens(plan),
                             .out = scores_.data() + slice.arena_begin,
                             .stride = arena_tokens_};
  switch (plan.prompt_score) {
    case PromptScore::kNone:
      return nullptr;
    case PromptScore::kKCenter:
      return plan.Compresses() ? KCenterScores(slice, layer_kv, plan) : nullptr;
    case PromptScore::kColumnSums:
      return sums;
    case PromptScore::kWindow:
      if (plan.rule.revision != Revision::kLayerMean) return PooledWindow(slice, plan);
      derive.step = ScoreStep::kAverageHeads;
      break;
    case PromptScore::kBelowMean:
      derive.weight_a = -1.0f;
      break;
    case PromptScore::kProbe:
      derive.b = maxima_.data() + slice.arena_begin;
      derive.weight_a = plan.probe.sum_weight;
      derive.weight_b = plan.probe.max_weight;
      break;
    case PromptScore::kTuned:
      return TunedScores(layer, slice, plan);
    case PromptScore::kRandom:
      derive.step = ScoreStep::kRandom;
      derive.seed = plan.rule.seed;
      break;
  }
  backend_->DeriveScores(derive);
  return derive.out;
}

// Of the early queries, and beside them of the late ones, until it is decided how these count.
const float* PromptCompressor::TunedScores(int layer, const PrefillSlice& slice,
                                           const CachePlan& plan) {
  if (plan.tuning.IsOpen()) TryChoices(layer, slice, plan);
  const float* early = sums_.data() + slice.arena_begin;
  float* late = late_.data() + slice.arena_begin;
  DeriveScoresArgs add = {.a = late,
                          .b = window_.data() + slice.arena_begin,
                          .weight_b = 1.0f,
                          .num_kv_heads = limits_.num_kv_heads,
                          .n = PromptTokens(plan),
                          .out = late,
                          .stride = arena_tokens_};
  backend_->DeriveScores(add);
  if (plan.tuning.IsOpen()) return early;
  const ScoreWeights weights = StartWeights(plan);
  add.a = early;
  add.b = late;
  add.weight_a = weights.early;
  add.weight_b = weights.late;
  add.out = scores_.data() + slice.arena_begin;
  backend_->DeriveScores(add);
  return add.out;
}

// What every trial would have kept before the held-out queries, and what these pay it.
void PromptCompressor::TryChoices(int layer, const PrefillSlice& slice, const CachePlan& plan) {
  const float* held_out = window_.data() + slice.arena_begin;
  float* scores = scores_.data() + slice.arena_begin;
  const int before = PromptTokens(plan) - kHeldOutQueries;
  budget_.Set(layer, layer + 1, plan.cap);
  for (int t = 0; t < kTrials; ++t) {
    const Trial trial = TrialOf(plan, t);
    if (!trial.by_held_out) {
      backend_->DeriveScores({.a = sums_.data() + slice.arena_begin,
                              .b = late_.data() + slice.arena_begin,
                              .weight_a = trial.weights.early,
                              .weight_b = trial.weights.late,
                              .num_kv_heads = limits_.num_kv_heads,
                              .n = before,
                              .out = scores,
                              .stride = arena_tokens_});
    }
    int32_t* kept = kept_.data() + slice.arena_begin;
    backend_->Select({.scores = trial.by_held_out ? held_out : scores,
                      .score_stride = arena_tokens_,
                      .num_kv_heads = limits_.num_kv_heads,
                      .n = before,
                      .recent = trial.recent,
                      .keep = budget_.keep(layer),
                      .kept = kept,
                      .kept_stride = arena_tokens_});
    const size_t first =
        (static_cast<size_t>(slice.slot) * kTrials + t) * NumHeads() + layer * limits_.num_kv_heads;
    backend_->KeptMass({.paid = held_out,
                        .paid_stride = arena_tokens_,
                        .kept = kept,
                        .kept_stride = arena_tokens_,
                        .keep = budget_.keep(layer),
                        .num_kv_heads = limits_.num_kv_heads,
                        .queries = kHeldOutQueries,
                        .mass = trials_.data() + first});
  }
}

// A window's sums, pooled but for the window's own positions.
const float* PromptCompressor::PooledWindow(const PrefillSlice& slice, const CachePlan& plan) {
  const float* sums = sums_.data() + slice.arena_begin;
  const int before = PromptTokens(plan) - plan.window.queries;
  if (before <= 0) return sums;
  float* pooled = scores_.data() + slice.arena_begin;
  backend_->PoolScores({.scores = sums,
                        .score_stride = arena_tokens_,
                        .num_kv_heads = limits_.num_kv_heads,
                        .n = before,
                        .kernel = plan.window.kernel,
                        .pooling = plan.window.pooling,
                        .out = pooled,
                        .out_stride = arena_tokens_});
  for (int head = 0; head < limits_.num_kv_heads; ++head) {
    const size_t tail = static_cast<size_t>(head) * arena_tokens_ + before;
    backend_->CopyOnDevice(pooled + tail, sums + tail, plan.window.queries * sizeof(float));
  }
  return pooled;
}

const float* PromptCompressor::KCenterScores(const PrefillSlice& slice, const LayerKv& layer_kv,
                                             const CachePlan& plan) {
  float* scores = scores_.data() + slice.arena_begin;
  backend_->KCenter({.k = layer_kv.k,
                     .kv_head_stride = layer_kv.head_stride,
                     .num_kv_heads = limits_.num_kv_heads,
                     .head_dim = layer_kv.head_dim,
                     .n = PromptTokens(plan) - plan.rule.recent,
                     .centres = plan.budget - plan.rule.recent,
                     .scores = scores,
                     .score_stride = arena_tokens_});
  return scores;
}

// What the heads of the layer keep. Where its heads share a budget the pages are dealt to them as
// well.
void PromptCompressor::Budget(int layer, const PrefillSlice& slice, const float* scores,
                              const KvState& kv) {
  const CachePlan& plan = kv.plan(slice.slot);
  const int heads = limits_.num_kv_heads, n = PromptTokens(plan);
  int32_t* keep = budget_.keep(layer);
  if (!plan.IsRagged() || plan.IsDeferred()) {
    budget_.Set(layer, layer + 1, plan.IsDeferred() ? plan.Candidates() : plan.KeptOfPrompt(layer));
    return;
  }
  const int32_t base = plan.LayerBudget(layer) - plan.Protected();
  SelectArgs best = {.scores = scores,
                     .score_stride = arena_tokens_,
                     .num_kv_heads = heads,
                     .n = n,
                     .sinks = plan.rule.sinks,
                     .recent = plan.rule.recent,
                     .kept = kept_.data() + slice.arena_begin,
                     .kept_stride = arena_tokens_,
                     .counts = keep,
                     .total = heads * plan.LayerBudget(layer)};
  backend_->Select(best);
  backend_->ShareBudget({.best = keep,
                         .counted = plan.Protected(),
                         .heads = heads,
                         .base = base,
                         .floor_ppm = plan.floor_ppm,
                         .guarded = plan.Protected(),
                         .keep = keep});
  backend_->DealPages({.keep = keep,
                       .block_size = limits_.block_size,
                       .slot = slice.slot,
                       .layer = layer,
                       .tables = kv.tables(),
                       .blocks = kv.blocks()});
}

void PromptCompressor::Select(int layer, const PrefillSlice& slice, const float* scores,
                              const CachePlan& plan) {
  // Without scores the protected are all there is to keep.
  backend_->Select({.scores = scores != nullptr ? scores : sums_.data() + slice.arena_begin,
                    .score_stride = arena_tokens_,
                    .num_kv_heads = limits_.num_kv_heads,
                    .n = PromptTokens(plan),
                    .sinks = plan.rule.sinks,
                    .recent = plan.rule.recent,
                    .keep = budget_.keep(layer),
                    .kept = kept_.data() + slice.arena_begin,
                    .kept_stride = arena_tokens_});
}

void PromptCompressor::Compress(int layer, const PrefillSlice& slice, const LayerKv& layer_kv,
                                const KvState& kv) {
  const CachePlan& plan = kv.plan(slice.slot);
  const int n = PromptTokens(plan);
  if (plan.rule.weighted && plan.Compresses()) {
    backend_->SubGenBuild({.k = layer_kv.k,
                           .v = layer_kv.v,
                           .kv_head_stride = layer_kv.head_stride,
                           .n = n,
                           .rule = plan.subgen,
                           .slot = slice.slot,
                           .layer = layer,
                           .pages = kv.pages(),
                           .tables = kv.tables()});
    return;
  }
  const float* scores = Score(layer, slice, layer_kv, plan);
  Budget(layer, slice, scores, kv);
  const bool everything = !plan.IsRagged() && plan.KeptOfPrompt(layer) == n;
  if (!everything) Select(layer, slice, scores, plan);
  const float* noted = NotesMass(plan)        ? window_.data() + slice.arena_begin
                       : NotesCounts(plan)    ? sums_.data() + slice.arena_begin
                       : plan.tuning.IsOpen() ? late_.data() + slice.arena_begin
                                              : nullptr;
  const bool decided = plan.IsRagged() && !plan.IsDeferred() && plan.Growth() != kNoCap;
  backend_->WritePages({.k = layer_kv.k,
                        .v = layer_kv.v,
                        .kv_head_stride = layer_kv.head_stride,
                        .scores = scores,
                        .score_stride = arena_tokens_,
                        .score_scale = plan.mean_scores ? 1.0f / static_cast<float>(n) : 1.0f,
                        .kept = everything ? nullptr : kept_.data() + slice.arena_begin,
                        .kept_stride = arena_tokens_,
                        .keep = budget_.keep(layer),
                        .growth = decided ? plan.Growth() : -1,
                        .window_sums = noted,
                        .window_stride = arena_tokens_,
                        .n = n,
                        .rotary = layer_kv.rotary,
                        .slot = slice.slot,
                        .layer = layer,
                        .pages = kv.pages(),
                        .tables = kv.tables()});
}

void PromptCompressor::Finish(const PrefillSlice& slice, const KvState& kv) {
  const CachePlan& plan = kv.plan(slice.slot);
  if (plan.IsDeferred()) {
    const SlotPages cache = {.slot = slice.slot,
                             .tokens = PromptTokens(plan),
                             .max_length = plan.Candidates(),
                             .pages = kv.pages(),
                             .tables = kv.tables()};
    ShareInPages(plan, cache);
    budget_.Compact(plan, cache, plan.Growth());
  }
  if (!NotesMass(plan)) return;
  backend_->RetainedMass({.slot = slice.slot,
                          .queries = MassQueries(plan),
                          .max_length = plan.WidestKeep(),
                          .pages = kv.pages(),
                          .tables = kv.tables(),
                          .mass = mass_.data() + slice.slot * NumHeads()});
}

// What the heads of all layers keep, from the candidates.
void PromptCompressor::ShareInPages(const CachePlan& plan, const SlotPages& cache) {
  if (plan.scope != BudgetScope::kHead) {
    budget_.Share(plan, cache);
  } else {
    for (int layer = 0; layer < limits_.num_layers; ++layer)
      budget_.Set(layer, layer + 1, plan.KeptOfPrompt(layer));
  }
  if (plan.min_retained_mass <= 0.0f) return;
  backend_->KeepForMass({.slot = cache.slot,
                         .queries = MassQueries(plan),
                         .min_mass = plan.min_retained_mass,
                         .most = plan.most_for_mass,
                         .sinks = plan.rule.sinks,
                         .recent = plan.rule.recent,
                         .next_position = cache.tokens,
                         .max_length = cache.max_length,
                         .pages = cache.pages,
                         .tables = cache.tables,
                         .keep = budget_.keep(0)});
}

}  // namespace hydrant
