#include "engine/run/compress/prompt_compressor.h"

#include <algorithm>
#include <utility>

#include "engine/cache/state_slabs.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

bool SameNumbers(const std::optional<ColumnStatistic>& a, const std::optional<ColumnStatistic>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
  return a->kind == b->kind && a->reduce == b->reduce && a->end_query == b->end_query &&
         std::max(a->first_query, 0) == std::max(b->first_query, 0);
}

// Whether the run is a turn with scores of its own; how they are made, if by an echo.
bool IsScoredTurn(const GroupState& group, const TokenRun& run) {
  return run.turn.has_value() && group.IsBudget();
}
std::optional<EchoScore> TurnScoreOf(const GroupState& group, const TokenRun& run) {
  return IsScoredTurn(group, run) ? group.plan(run.slot).scorer->TurnScore() : std::nullopt;
}

// The queries' total and largest attention to each key.
std::array<ColumnStatistic, 2> EchoStatistics(GroupReduce reduce) {
  return {ColumnStatistic{.reduce = reduce},
          ColumnStatistic{.kind = ColumnStatistic::Kind::kMax, .reduce = GroupReduce::kMax}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<PromptCompressor>> PromptCompressor::Create(
    Backend* backend, const EngineLimits& limits) {
  std::unique_ptr<PromptCompressor> compressor(new PromptCompressor(backend, limits));
  HYDRANT_RETURN_IF_ERROR(compressor->Allocate());
  return compressor;
}

absl::Status PromptCompressor::Allocate() {
  const size_t per_arena = static_cast<size_t>(arena_tokens_) * limits_.num_kv_heads;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
  };
  for (DeviceArray<float>& array : statistics_) allocate(array, per_arena);
  shared_.resize(limits_.max_shared_statistics);
  for (DeviceArray<float>& array : shared_) allocate(array, per_arena);
  allocate(scores_, per_arena);
  for (DeviceArray<float>& array : entry_scores_)
    allocate(array, static_cast<size_t>(limits_.max_model_len) * limits_.num_kv_heads);
  allocate(kept_, per_arena);
  allocate(mass_, NumHeads() * limits_.max_num_seqs);
  allocate(observations_, NumHeads() * limits_.max_num_seqs * kMaxObservations);
  if (status.ok()) status = page_compactor_.Allocate(backend_, limits_);
  return status;
}

bool PromptCompressor::SameNumbers(const PromptStatistic& a, const PromptStatistic& b) {
  return hydrant::SameNumbers(a.reading, b.reading) && hydrant::SameNumbers(a.echo, b.echo) &&
         a.predicted == b.predicted;
}

// The distinct statistics of the run's slots; the i-th is gathered in shared_[i].
std::vector<PromptCompressor::Gathered> PromptCompressor::Shared(const GroupState& group,
                                                                 const TokenRun& run) const {
  std::vector<Gathered> distinct;
  for (const int slot : run.Slots()) {
    for (const PromptStatistic& one :
         StatisticsOf(group.plan(slot), static_cast<int>(run.tokens.size()))) {
      const auto same = [&](const Gathered& other) { return SameNumbers(one, other); };
      if (std::any_of(distinct.begin(), distinct.end(), same)) continue;
      distinct.push_back({one, shared_.at(distinct.size()).data() + run.arena_begin});
    }
  }
  return distinct;
}

// For an appended run: the attention that each new entry receives, if it ranks entries.
std::vector<PromptCompressor::Gathered> PromptCompressor::ReceivedBy(const GroupState& group,
                                                                     const TokenRun& run) const {
  const DecodeRule& rule = group.plan(run.slot).rule;
  std::vector<Gathered> received;
  if (rule.predicted) {
    received.push_back(
        {{.place = kPredictedScores, .predicted = true}, ArrayOf(kPredictedScores, run)});
  }
  if (run.commit != Commit::kAppend) return received;
  if (TurnScoreOf(group, run).has_value()) {
    int place = 0;
    for (const ColumnStatistic& statistic : EchoStatistics(rule.reduce)) {
      received.push_back({{.place = place, .echo = statistic}, ArrayOf(place, run)});
      ++place;
    }
  }
  if (!received.empty()) return received;
  const bool is_turn = IsScoredTurn(group, run);
  if (!is_turn && (!rule.scored || rule.by_position)) return {};
  ColumnStatistic sum = {.reduce = rule.reduce};
  if (is_turn) sum.first_query = static_cast<int32_t>(run.tokens.size()) - kMassQueries;
  return {{{.reading = sum}, ArrayOf(0, run)}};
}

// All statistics to gather for the run, with their arrays.
std::vector<PromptCompressor::Gathered> PromptCompressor::GatheredBy(const GroupState& group,
                                                                     const TokenRun& run) const {
  if (!run.BuildsCache()) return ReceivedBy(group, run);
  if (!run.prompt.sharing_slots.empty()) return Shared(group, run);
  std::vector<Gathered> all;
  for (const PromptStatistic& one :
       StatisticsOf(group.plan(run.slot), static_cast<int>(run.tokens.size())))
    all.push_back({one, ArrayOf(one.place, run)});
  return all;
}

std::vector<PromptCompressor::Statistics> PromptCompressor::PassesOf(const GroupState& group,
                                                                     const TokenRun& run,
                                                                     bool of_echo) const {
  std::vector<Statistics> passes;
  size_t count = 0;
  for (const Gathered& one : GatheredBy(group, run)) {
    std::optional<ColumnStatistic> statistic = of_echo ? one.echo : one.reading;
    if (!statistic.has_value()) continue;
    statistic->out = one.out;
    statistic->stride = arena_tokens_;
    if (count % kMaxColumnStatistics == 0) passes.emplace_back();
    passes.back()[count++ % kMaxColumnStatistics] = *statistic;
  }
  return passes;
}

std::vector<PromptCompressor::Statistics> PromptCompressor::Passes(const GroupState& group,
                                                                   const TokenRun& run) const {
  std::vector<Statistics> passes = PassesOf(group, run, false);
  if (passes.empty()) passes.emplace_back();
  return passes;
}

std::vector<PromptCompressor::Statistics> PromptCompressor::EchoPasses(const GroupState& group,
                                                                       const TokenRun& run) const {
  return PassesOf(group, run, true);
}

float* PromptCompressor::PredictedScores(const GroupState& group, const TokenRun& run) const {
  for (const Gathered& one : GatheredBy(group, run)) {
    if (one.predicted) return one.out;
  }
  return nullptr;
}

void PromptCompressor::Begin(int layer, const TokenRun& run, const KvState& kv) {
  const GroupState& group = kv.At(layer).group;
  for (const Gathered& one : GatheredBy(group, run)) {
    for (int head = 0; head < limits_.num_kv_heads; ++head) {
      const size_t row = static_cast<size_t>(head) * arena_tokens_;
      backend_->Zero(one.out + row, run.tokens.size() * sizeof(float));
    }
  }
  if (run.prompt.first_token == 0) return;
  const PrefixLayout layout = LayoutOf(group, run);
  if (layout.sums().empty()) return;
  const size_t tokens = run.prompt.first_token / kPrefixBlockTokens * layout.parts();
  ForSums(
      layer, run.prompt.cached_blocks.subspan(tokens), layout, run.prompt.first_token, run, kv,
      [&](float* sums, float* kept, size_t bytes) { backend_->CopyOnDevice(sums, kept, bytes); });
}

void PromptCompressor::KeepSums(int layer, const TokenRun& run, int token, const KvState& kv) {
  if (!std::binary_search(run.prompt.checkpoints.begin(), run.prompt.checkpoints.end(), token))
    return;
  const PrefixLayout layout = LayoutOf(kv.At(layer).group, run);
  if (layout.sums().empty()) return;
  const int64_t blocks = kv.plan(run.slot).prompt.tokens / kPrefixBlockTokens;
  size_t first = (blocks - run.prompt.first_token / kPrefixBlockTokens) * layout.parts();
  for (const int32_t checkpoint : run.prompt.checkpoints) {
    if (checkpoint < token) first += layout.SumBlocks(checkpoint);
  }
  if (first >= run.prompt.new_blocks.size()) return;
  ForSums(
      layer, run.prompt.new_blocks.subspan(first), layout, token, run, kv,
      [&](float* sums, float* kept, size_t bytes) { backend_->CopyOnDevice(kept, sums, bytes); });
}

PrefixLayout PromptCompressor::LayoutOf(const GroupState& group, const TokenRun& run) const {
  return {group.plan(run.slot), static_cast<int>(run.tokens.size()), limits_};
}

// Calls move(sums of a head, their place in a block, bytes) for all sums over the first `tokens`
// tokens. `blocks`: their sum blocks, or the first part of these.
template <typename Move>
void PromptCompressor::ForSums(int layer, std::span<const int32_t> blocks,
                               const PrefixLayout& layout, int tokens, const TokenRun& run,
                               const KvState& kv, const Move& move) const {
  const int a_block = kv.prefix().SumsAHead();
  size_t next = 0;
  for (const PromptStatistic& one : layout.sums()) {
    float* const sums = ArrayOf(one.place, run);
    for (int begin = 0; begin < tokens; begin += a_block) {
      if (next == blocks.size()) return;
      float* const kept = kv.prefix().SumsAt(blocks[next++], layer);
      const size_t bytes = std::min(a_block, tokens - begin) * sizeof(float);
      for (int64_t head = 0; head < limits_.num_kv_heads; ++head)
        move(sums + head * arena_tokens_ + begin, kept + head * a_block, bytes);
    }
  }
}

// Copies a slot's statistics from the shared ones, because a scorer may change its arrays.
void PromptCompressor::TakeShared(const GroupState& group, const TokenRun& run, int slot) {
  const std::vector<Gathered> shared = Shared(group, run);
  for (const PromptStatistic& one :
       StatisticsOf(group.plan(slot), static_cast<int>(run.tokens.size()))) {
    const auto same = [&](const Gathered& other) { return SameNumbers(one, other); };
    const float* from = std::find_if(shared.begin(), shared.end(), same)->out;
    float* to = ArrayOf(one.place, run);
    for (int head = 0; head < limits_.num_kv_heads; ++head) {
      const size_t row = static_cast<size_t>(head) * arena_tokens_;
      backend_->CopyOnDevice(to + row, from + row, run.tokens.size() * sizeof(float));
    }
  }
}

PromptLayer PromptCompressor::LayerOf(int slot, const GroupLayer& at, const TokenRun& run,
                                      const LayerKv& layer_kv) const {
  const CachePlan& plan = at.group.plan(slot);
  const size_t head = static_cast<size_t>(at.layer) * limits_.num_kv_heads;
  float* const observations = observations_.data() + slot * kMaxObservations * NumHeads() + head;
  const auto place = [&](const auto& array) { return array.data() + run.arena_begin; };
  return {.backend = backend_,
          .plan = &plan,
          .slot = slot,
          .layer = at.layer,
          .num_kv_heads = limits_.num_kv_heads,
          .n = static_cast<int>(plan.prompt.tokens),
          .kv = layer_kv,
          .stride = arena_tokens_,
          .statistics = {place(statistics_[0]), place(statistics_[1]), place(statistics_[2])},
          .scores = place(scores_),
          .kept = place(kept_),
          .keep = page_compactor_.budgets().keep(at.layer),
          .observations = at.group.IsBudget() ? observations : nullptr,
          .observation_stride = static_cast<int64_t>(NumHeads())};
}

void PromptCompressor::Compress(int layer, const TokenRun& run, const LayerKv& layer_kv,
                                const KvState& kv) {
  const GroupLayer at = kv.At(layer);
  for (const int slot : run.Slots()) {
    if (!run.prompt.sharing_slots.empty()) TakeShared(at.group, run, slot);
    CompressSlot(slot, at, run, layer_kv, kv);
  }
}

void PromptCompressor::Append(int layer, const TokenRun& run, const LayerKv& layer_kv,
                              const KvState& kv) {
  const GroupLayer at = kv.At(layer);
  const std::optional<EchoScore> echo = TurnScoreOf(at.group, run);
  const bool predicted = at.group.plan(run.slot).rule.predicted;
  const float* scores = echo.has_value() ? ScoreTurn(*echo, at, run, layer_kv)
                                         : ArrayOf(predicted ? kPredictedScores : 0, run);
  backend_->AppendPages({.k = layer_kv.k,
                         .v = layer_kv.v,
                         .kv_head_stride = layer_kv.head_stride,
                         .sums = scores,
                         .sum_stride = arena_tokens_,
                         .write_scores = predicted || IsScoredTurn(at.group, run),
                         .num_tokens = static_cast<int>(run.tokens.size()),
                         .first_position = run.first_position,
                         .slot = run.slot,
                         .layer = at.layer,
                         .pages = at.group.PagesOf(run.slot),
                         .tables = at.group.tables()});
}

void PromptCompressor::BeginTurnEcho(const PagedPrefix& entries, Statistics* pass) {
  const int64_t stride = limits_.max_model_len;
  for (size_t i = 0; i < entry_scores_.size(); ++i) {
    float* const rows = entry_scores_[i].data();
    for (int head = 0; head < limits_.num_kv_heads; ++head)
      backend_->Zero(rows + head * stride, entries.max_entries * sizeof(float));
    (*pass)[i].prefix_out = rows;
    (*pass)[i].prefix_stride = stride;
  }
}

// Adds the scores of the turn's echo to those of the entries, and returns those of its own tokens.
const float* PromptCompressor::ScoreTurn(const EchoScore& score, const GroupLayer& at,
                                         const TokenRun& run, const LayerKv& layer_kv) {
  const CachePlan& plan = at.group.plan(run.slot);
  const ScoreRowsArgs rows = EntryScores({.pages = at.group.PagesOf(run.slot),
                                          .tables = at.group.tables(),
                                          .slot = run.slot,
                                          .layer = at.layer,
                                          .max_entries = plan.EntriesAfter(run.first_position)});
  DeriveScoresArgs add = {.a = rows.rows,
                          .b = entry_scores_[1].data(),
                          .weight_a = score.sum,
                          .weight_b = score.max,
                          .num_kv_heads = limits_.num_kv_heads,
                          .n = rows.max_length,
                          .out = rows.rows,
                          .stride = rows.stride};
  backend_->DeriveScores(add);
  if (score.value_norms) backend_->TimesValueLengths(rows);
  ScoreRowsArgs earned = rows;
  earned.rows = entry_scores_[1].data();
  earned.scored_end = run.turn->scored_end;
  backend_->GatherScores(earned);
  add.weight_a = add.weight_b = 1.0f;
  backend_->DeriveScores(add);
  backend_->ScatterScores(rows);
  PromptLayer turn = LayerOf(run.slot, at, run, layer_kv);
  turn.n = run.NumTokens();
  return plan.scorer->Score(turn);
}

ScoreRowsArgs PromptCompressor::EntryScores(const PagedPrefix& entries) {
  return {.rows = entry_scores_[0].data(),
          .stride = limits_.max_model_len,
          .max_length = entries.max_entries,
          .slot = entries.slot,
          .layer = entries.layer,
          .pages = entries.pages,
          .tables = entries.tables};
}

void PromptCompressor::CompressSlot(int slot, const GroupLayer& at, const TokenRun& run,
                                    const LayerKv& layer_kv, const KvState& kv) {
  const CachePlan& plan = at.group.plan(slot);
  const PromptLayer prompt = LayerOf(slot, at, run, layer_kv);
  const LayerCompaction compaction = plan.retention->CompactLayer(plan, at.layer);
  if (compaction.samples != nullptr) {
    page_compactor_.samples().BuildLayer(*compaction.samples, prompt, kv);
    return;
  }
  const float* scores = plan.scorer->Score(prompt);
  if (compaction.shared) {
    page_compactor_.budgets().ShareLayer(prompt, scores, compaction.keep);
  } else {
    page_compactor_.budgets().SetEqually(at.layer, compaction.keep);
  }
  page_compactor_.budgets().AssignPages(prompt, kv);
  const bool everything = !compaction.shared && compaction.keep == prompt.n;
  if (!everything) Select(prompt, scores);
  Write(prompt, scores, compaction, everything, at.group);
  const std::optional<PageCompaction> of_pages =
      plan.retention->PromptCompaction(plan, at.layer + 1);
  if (of_pages.has_value()) page_compactor_.Compact(plan, *of_pages, slot, prompt.n, kv);
}

void PromptCompressor::Select(const PromptLayer& layer, const float* scores) {
  // Without scores only protected entries are kept, so the score values do not matter.
  backend_->Select({.scores = scores != nullptr ? scores : layer.statistics[0],
                    .score_stride = layer.stride,
                    .num_kv_heads = layer.num_kv_heads,
                    .n = layer.n,
                    .sinks = layer.plan->rule.sinks,
                    .recent = layer.plan->rule.recent,
                    .keep = layer.keep,
                    .kept = layer.kept,
                    .kept_stride = layer.stride});
}

void PromptCompressor::Write(const PromptLayer& layer, const float* scores,
                             const LayerCompaction& compaction, bool everything,
                             const GroupState& group) {
  const CachePlan& plan = *layer.plan;
  const float* beside =
      MeasuresMassInPages(plan) ? layer.statistics[kMassStatistic] : plan.scorer->Second(layer);
  HYDRANT_CHECK(beside == nullptr || plan.state_lines == kAllStateLines);
  backend_->WritePages({.k = layer.kv.k,
                        .v = layer.kv.v,
                        .kv_head_stride = layer.kv.head_stride,
                        .scores = scores,
                        .score_stride = layer.stride,
                        .score_scale = plan.scorer->Scale(plan),
                        .kept = everything ? nullptr : layer.kept,
                        .kept_stride = layer.stride,
                        .keep = layer.keep,
                        .growth = compaction.shared && plan.Growth() != kNoCap ? plan.Growth() : -1,
                        .beside = beside,
                        .beside_stride = layer.stride,
                        .n = layer.n,
                        .num_written = group.shared_tokens(layer.slot),
                        .rotary = layer.kv.rotary,
                        .slot = layer.slot,
                        .layer = layer.layer,
                        .pages = group.PagesOf(layer.slot),
                        .tables = group.tables()});
  if (!MeasuresMass(plan) || MeasuresMassInPages(plan)) return;
  backend_->KeptMass({.window_sums = layer.statistics[kMassStatistic],
                      .window_stride = layer.stride,
                      .kept = everything ? nullptr : layer.kept,
                      .kept_stride = layer.stride,
                      .keep = layer.keep,
                      .num_kv_heads = layer.num_kv_heads,
                      .queries = plan.MassQueries(),
                      .mass = mass_.data() + layer.slot * NumHeads() +
                              static_cast<size_t>(layer.layer) * layer.num_kv_heads});
}

void PromptCompressor::Finish(const TokenRun& run, const KvState& kv) {
  if (!run.BuildsCache()) return page_compactor_.CompactTurn(run, kv);
  for (const int slot : run.Slots()) FinishSlot(slot, kv);
}

void PromptCompressor::FinishSlot(int slot, const KvState& kv) {
  const CachePlan& plan = kv.plan(slot);
  if (!MeasuresMassInPages(plan)) return;
  backend_->RetainedMass({.slot = slot,
                          .queries = plan.MassQueries(),
                          .max_length = plan.retention->MaxKeep(plan),
                          .pages = kv.pages(),
                          .tables = kv.tables(),
                          .mass = mass_.data() + slot * NumHeads()});
}

}  // namespace hydrant
