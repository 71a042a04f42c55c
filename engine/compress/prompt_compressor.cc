#include "engine/compress/prompt_compressor.h"

#include <algorithm>
#include <utility>

#include "engine/compress/prompt_budget.h"

namespace hydrant {
namespace {

// The last: what the last queries pay, by which retained mass is measured.
constexpr int kMassStatistic = kMaxColumnStatistics - 1;

// Whether that is kept beside the entries. A weighted slot has its own use for the place.
bool NotesMass(const CachePlan& plan) { return plan.Compresses() && !plan.rule.weighted; }

bool SameNumbers(const std::optional<ColumnStatistic>& a, const std::optional<ColumnStatistic>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
  return a->kind == b->kind && a->reduce == b->reduce && a->end_query == b->end_query &&
         std::max(a->first_query, 0) == std::max(b->first_query, 0);
}

std::vector<int> SlotsOf(const PrefillSlice& slice) {
  std::vector<int> slots = {slice.slot};
  slots.insert(slots.end(), slice.listeners.begin(), slice.listeners.end());
  return slots;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PromptCompressor>> PromptCompressor::Create(
    Backend* backend, const EngineLimits& limits) {
  std::unique_ptr<PromptCompressor> compressor(new PromptCompressor(backend, limits));
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
  shared_.resize(limits_.max_shared_statistics);
  for (DeviceArray<float>& array : shared_) allocate(array, per_arena);
  allocate(scores_, per_arena);
  allocate(kept_, per_arena);
  allocate(mass_, NumHeads() * limits_.max_num_seqs);
  allocate(trials_, NumHeads() * limits_.max_num_seqs * kTrials);
  if (status.ok()) status = budget_.Allocate(backend_, limits_);
  return status;
}

// Where `read` tokens are read.
std::vector<PromptCompressor::Note> PromptCompressor::NotesFor(const CachePlan& plan, int read) {
  const std::vector<ColumnStatistic> reading = plan.prompt_score->Statistics(plan, read);
  const std::vector<ColumnStatistic> echo = plan.prompt_score->Echo(plan);
  std::vector<Note> notes(std::max(reading.size(), echo.size()));
  for (size_t i = 0; i < notes.size(); ++i) {
    notes[i].place = static_cast<int>(i);
    if (i < reading.size()) notes[i].reading = reading[i];
    if (i < echo.size()) notes[i].echo = echo[i];
  }
  if (!NotesMass(plan)) return notes;
  Note mass = {.place = kMassStatistic};
  const auto n = static_cast<int32_t>(plan.prompt.tokens);
  if (plan.echo_mass) {
    mass.echo = ColumnStatistic();  // of all its queries
  } else {
    mass.reading = {.first_query = n - plan.MassQueries(), .end_query = n};
  }
  notes.push_back(mass);
  return notes;
}

bool PromptCompressor::SameNumbers(const Note& a, const Note& b) {
  return hydrant::SameNumbers(a.reading, b.reading) && hydrant::SameNumbers(a.echo, b.echo);
}

// What the slice's slots want, each once; the i-th has a place in shared_[i].
std::vector<PromptCompressor::Note> PromptCompressor::Shared(const PrefillSlice& slice,
                                                             const KvState& kv) const {
  std::vector<Note> distinct;
  for (const int slot : SlotsOf(slice)) {
    for (const Note& note : NotesFor(kv.plan(slot), static_cast<int>(slice.prompt.size()))) {
      const auto same = [&](const Note& other) { return SameNumbers(note, other); };
      if (std::any_of(distinct.begin(), distinct.end(), same)) continue;
      distinct.push_back(note);
      distinct.back().out = shared_.at(distinct.size() - 1).data() + slice.arena_begin;
    }
  }
  return distinct;
}

// All that is noted for the slice, and where.
std::vector<PromptCompressor::Note> PromptCompressor::Noted(const PrefillSlice& slice,
                                                            const KvState& kv) const {
  if (!slice.listeners.empty()) return Shared(slice, kv);
  std::vector<Note> notes = NotesFor(kv.plan(slice.slot), static_cast<int>(slice.prompt.size()));
  for (Note& note : notes) note.out = noted_[note.place].data() + slice.arena_begin;
  return notes;
}

std::vector<PromptCompressor::Statistics> PromptCompressor::PassesOf(const PrefillSlice& slice,
                                                                     const KvState& kv,
                                                                     bool of_echo) const {
  std::vector<Statistics> passes;
  size_t count = 0;
  for (const Note& note : Noted(slice, kv)) {
    std::optional<ColumnStatistic> statistic = of_echo ? note.echo : note.reading;
    if (!statistic.has_value()) continue;
    statistic->out = note.out;
    statistic->stride = arena_tokens_;
    if (count % kMaxColumnStatistics == 0) passes.emplace_back();
    passes.back()[count++ % kMaxColumnStatistics] = *statistic;
  }
  return passes;
}

std::vector<PromptCompressor::Statistics> PromptCompressor::Passes(const PrefillSlice& slice,
                                                                   const KvState& kv) const {
  std::vector<Statistics> passes = PassesOf(slice, kv, false);
  if (passes.empty()) passes.emplace_back();
  return passes;
}

std::vector<PromptCompressor::Statistics> PromptCompressor::EchoPasses(const PrefillSlice& slice,
                                                                       const KvState& kv) const {
  return PassesOf(slice, kv, true);
}

void PromptCompressor::Begin(const PrefillSlice& slice, const KvState& kv) {
  for (const Note& note : Noted(slice, kv)) {
    for (int head = 0; head < limits_.num_kv_heads; ++head) {
      const size_t row = static_cast<size_t>(head) * arena_tokens_;
      backend_->Zero(note.out + row, slice.prompt.size() * sizeof(float));
    }
  }
}

// A slot's notes, from those of all. A scorer may change its own.
void PromptCompressor::TakeShared(const PrefillSlice& slice, int slot, const KvState& kv) {
  const std::vector<Note> shared = Shared(slice, kv);
  for (const Note& note : NotesFor(kv.plan(slot), static_cast<int>(slice.prompt.size()))) {
    const auto same = [&](const Note& other) { return SameNumbers(note, other); };
    const float* from = std::find_if(shared.begin(), shared.end(), same)->out;
    float* to = noted_[note.place].data() + slice.arena_begin;
    for (int head = 0; head < limits_.num_kv_heads; ++head) {
      const size_t row = static_cast<size_t>(head) * arena_tokens_;
      backend_->CopyOnDevice(to + row, from + row, slice.prompt.size() * sizeof(float));
    }
  }
}

PromptLayer PromptCompressor::LayerOf(int slot, int layer, const PrefillSlice& slice,
                                      const LayerKv& layer_kv, const CachePlan& plan) const {
  const size_t head = static_cast<size_t>(layer) * limits_.num_kv_heads;
  const auto place = [&](const auto& array) { return array.data() + slice.arena_begin; };
  return {.backend = backend_,
          .plan = &plan,
          .slot = slot,
          .layer = layer,
          .num_kv_heads = limits_.num_kv_heads,
          .n = static_cast<int>(plan.prompt.tokens),
          .kv = layer_kv,
          .stride = arena_tokens_,
          .noted = {place(noted_[0]), place(noted_[1]), place(noted_[2])},
          .scores = place(scores_),
          .kept = place(kept_),
          .keep = budget_.keep(layer),
          .trial_masses = trials_.data() + slot * kTrials * NumHeads() + head,
          .trial_stride = static_cast<int64_t>(NumHeads())};
}

void PromptCompressor::Compress(int layer, const PrefillSlice& slice, const LayerKv& layer_kv,
                                const KvState& kv) {
  for (const int slot : SlotsOf(slice)) {
    if (!slice.listeners.empty()) TakeShared(slice, slot, kv);
    CompressSlot(slot, layer, slice, layer_kv, kv);
  }
}

void PromptCompressor::CompressSlot(int slot, int layer, const PrefillSlice& slice,
                                    const LayerKv& layer_kv, const KvState& kv) {
  const CachePlan& plan = kv.plan(slot);
  const PromptLayer prompt = LayerOf(slot, layer, slice, layer_kv, plan);
  if (plan.rule.weighted && plan.Compresses()) {
    backend_->SubGenBuild({.k = layer_kv.k,
                           .v = layer_kv.v,
                           .kv_head_stride = layer_kv.head_stride,
                           .n = prompt.n,
                           .rule = plan.subgen,
                           .slot = slot,
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
  for (const int slot : SlotsOf(slice)) FinishSlot(slot, kv);
}

void PromptCompressor::FinishSlot(int slot, const KvState& kv) {
  const CachePlan& plan = kv.plan(slot);
  BudgetOf(plan).OfPrompt(plan, kv, slot, &budget_);
  if (!NotesMass(plan)) return;
  backend_->RetainedMass({.slot = slot,
                          .queries = plan.MassQueries(),
                          .max_length = plan.WidestKeep(),
                          .pages = kv.pages(),
                          .tables = kv.tables(),
                          .mass = mass_.data() + slot * NumHeads()});
}

}  // namespace hydrant
