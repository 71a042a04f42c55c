#include "engine/prefill.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hydrant {

absl::StatusOr<std::unique_ptr<PrefillRunner>> PrefillRunner::Create(Backend* backend,
                                                                     const LlamaModel* model,
                                                                     const Activations* act,
                                                                     int arena_tokens,
                                                                     int max_rows) {
  std::unique_ptr<PrefillRunner> runner(
      new PrefillRunner(backend, model, act, arena_tokens, max_rows));
  if (absl::Status status = runner->Allocate(); !status.ok()) return status;
  return runner;
}

absl::Status PrefillRunner::Allocate() {
  const ModelConfig& config = model_->config();
  const size_t tokens = arena_tokens_;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
  };
  allocate(ids_, tokens);
  allocate(positions_, tokens);
  allocate(hidden_, tokens * config.hidden_size);
  allocate(k_, tokens * config.KvDim());
  allocate(v_, tokens * config.KvDim());
  allocate(column_sums_, tokens * config.num_kv_heads);
  allocate(pooled_, tokens * config.num_kv_heads);
  allocate(kept_, tokens * config.num_kv_heads);
  allocate(keep_, config.num_kv_heads);
  return status;
}

void PrefillRunner::Run(std::span<const PrefillSlice> slices, const KvState& kv) {
  if (slices.empty()) return;
  int first_layer = model_->config().num_layers;
  int last_layer = 0;
  for (const PrefillSlice& slice : slices) {
    if (slice.layer_begin == 0) Begin(slice);
    first_layer = std::min(first_layer, slice.layer_begin);
    last_layer = std::max(last_layer, slice.layer_end);
  }
  std::vector<const PrefillSlice*> by_place;
  for (const PrefillSlice& slice : slices) by_place.push_back(&slice);
  std::sort(by_place.begin(), by_place.end(), [](const PrefillSlice* a, const PrefillSlice* b) {
    return a->arena_begin < b->arena_begin;
  });
  std::vector<const PrefillSlice*> at_layer;
  for (int layer = first_layer; layer < last_layer; ++layer) {
    at_layer.clear();
    for (const PrefillSlice* slice : by_place) {
      if (slice->layer_begin <= layer && layer < slice->layer_end) at_layer.push_back(slice);
    }
    RunLayer(layer, at_layer, kv);
  }
}

const float* PrefillRunner::LastHidden(const PrefillSlice& slice) const {
  const size_t row = slice.arena_begin + slice.prompt.size() - 1;
  return hidden_.data() + row * model_->config().hidden_size;
}

// The slice's tokens enter the arena: ids, positions, embeddings.
void PrefillRunner::Begin(const PrefillSlice& slice) {
  const int rows = slice.token_end - slice.token_begin;
  const size_t row = slice.arena_begin + slice.token_begin;
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), slice.token_begin);
  ids_.Write(*backend_, row, slice.prompt.subspan(slice.token_begin, rows));
  positions_.Write(*backend_, row, positions);
  model_->Embed(ids_.data() + row, rows, hidden_.data() + row * model_->config().hidden_size);
}

void PrefillRunner::RunLayer(int layer, std::span<const PrefillSlice* const> slices,
                             const KvState& kv) {
  for (const PrefillSlice* slice : slices) {
    if (slice->token_begin == 0) ClearColumnSums(*slice, kv.plan(slice->slot));
  }
  for (const std::vector<Piece>& run : SplitIntoRuns(slices)) RunRows(layer, run, kv);
  for (const PrefillSlice* slice : slices) {
    if (slice->token_end == static_cast<int>(slice->prompt.size())) Compress(layer, *slice, kv);
  }
}

// Runs of pieces that follow each other in the arena, at most max_rows_ rows each. A piece ends at
// its slice's end or at a multiple of kQueryTile, so that column sums do not depend on the cut.
std::vector<std::vector<PrefillRunner::Piece>> PrefillRunner::SplitIntoRuns(
    std::span<const PrefillSlice* const> slices) const {
  std::vector<std::vector<Piece>> runs;
  int next_row = -1;
  int room = 0;
  for (const PrefillSlice* slice : slices) {
    int begin = slice->token_begin;
    while (begin < slice->token_end) {
      const int left = slice->token_end - begin;
      const bool adjoins = slice->arena_begin + begin == next_row;
      if (!adjoins || (left > room && room < kQueryTile)) {
        runs.emplace_back();
        room = max_rows_;
      }
      const int rows = left <= room ? left : room / kQueryTile * kQueryTile;
      runs.back().push_back({slice, begin, begin + rows});
      begin += rows;
      room -= rows;
      next_row = slice->arena_begin + begin;
    }
  }
  return runs;
}

void PrefillRunner::RunRows(int layer, std::span<const Piece> pieces, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const int first = pieces.front().ArenaRow();
  const int rows = pieces.back().ArenaRow() + pieces.back().rows() - first;
  float* hidden = hidden_.data() + static_cast<size_t>(first) * config.hidden_size;
  const KvDestination destination = {
      .k = k_.data() + static_cast<size_t>(first) * config.head_dim,
      .v = v_.data() + static_cast<size_t>(first) * config.head_dim,
      .row_stride = config.head_dim,
      .head_stride = static_cast<int64_t>(arena_tokens_) * config.head_dim};
  model_->ProjectQkv(layer, hidden, positions_.data() + first, rows, *act_, destination);
  for (const Piece& piece : pieces) Attend(piece, piece.ArenaRow() - first, kv);
  model_->FinishLayer(layer, hidden, rows, *act_);
}

// `row`: where the piece begins in the activations of its run.
void PrefillRunner::Attend(const Piece& piece, int row, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const size_t start = piece.slice->arena_begin;
  const CachePlan& plan = kv.plan(piece.slice->slot);
  const int n = static_cast<int>(piece.slice->prompt.size());
  const bool windowed = plan.prompt_score == PromptScore::kWindow;
  backend_->PrefillAttention(
      {.q = act_->q.data() + static_cast<size_t>(row) * config.QDim(),
       .k = k_.data() + start * config.head_dim,
       .v = v_.data() + start * config.head_dim,
       .kv_head_stride = static_cast<int64_t>(arena_tokens_) * config.head_dim,
       .num_queries = piece.rows(),
       .first_position = piece.begin,
       .num_heads = config.num_heads,
       .num_kv_heads = config.num_kv_heads,
       .head_dim = config.head_dim,
       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
       .out = act_->At(act_->attended, static_cast<size_t>(row) * config.QDim()),
       .out_dtype = act_->input_dtype,
       .column_sums = plan.SumsColumns() ? column_sums_.data() + start : nullptr,
       .column_stride = arena_tokens_,
       .reduce = plan.rule.reduce,
       .first_summed_position = windowed ? std::max(0, n - plan.window.queries) : 0,
       .precision = kv.pages().layout.dtype});
}

void PrefillRunner::ClearColumnSums(const PrefillSlice& slice, const CachePlan& plan) {
  if (!plan.SumsColumns()) return;
  for (int head = 0; head < model_->config().num_kv_heads; ++head) {
    backend_->Zero(
        column_sums_.data() + static_cast<size_t>(head) * arena_tokens_ + slice.arena_begin,
        slice.prompt.size() * sizeof(float));
  }
}

// [kv_heads, arena] from the slice's first token on, null where nothing is ranked. A window's sums
// are pooled but for the window's own positions.
const float* PrefillRunner::PromptScores(const PrefillSlice& slice, const CachePlan& plan) {
  const size_t start = slice.arena_begin;
  const int n = static_cast<int>(slice.prompt.size());
  const float* sums = column_sums_.data() + start;
  if (plan.prompt_score == PromptScore::kNone) return nullptr;
  if (plan.prompt_score == PromptScore::kKCenter) return KCenterScores(slice, plan);
  if (plan.prompt_score == PromptScore::kColumnSums || n <= plan.window.queries) return sums;
  const int before = n - plan.window.queries;
  const int kv_heads = model_->config().num_kv_heads;
  float* pooled = pooled_.data() + start;
  backend_->PoolScores({.scores = sums,
                        .score_stride = arena_tokens_,
                        .num_kv_heads = kv_heads,
                        .n = before,
                        .kernel = plan.window.kernel,
                        .pooling = plan.window.pooling,
                        .out = pooled,
                        .out_stride = arena_tokens_});
  for (int head = 0; head < kv_heads; ++head) {
    const size_t tail = static_cast<size_t>(head) * arena_tokens_ + before;
    backend_->CopyOnDevice(pooled + tail, sums + tail, plan.window.queries * sizeof(float));
  }
  return pooled;
}

// Null where everything stays.
const float* PrefillRunner::KCenterScores(const PrefillSlice& slice, const CachePlan& plan) {
  const int n = static_cast<int>(slice.prompt.size());
  if (n <= plan.budget) return nullptr;
  const ModelConfig& config = model_->config();
  const size_t start = slice.arena_begin;
  backend_->KCenter({.k = k_.data() + start * config.head_dim,
                     .kv_head_stride = static_cast<int64_t>(arena_tokens_) * config.head_dim,
                     .num_kv_heads = config.num_kv_heads,
                     .head_dim = config.head_dim,
                     .n = n - plan.rule.recent,
                     .centres = plan.budget - plan.rule.recent,
                     .scores = pooled_.data() + start,
                     .score_stride = arena_tokens_});
  return pooled_.data() + start;
}

void PrefillRunner::BuildSubGen(int layer, const PrefillSlice& slice, const KvState& kv) {
  const int head_dim = model_->config().head_dim;
  const size_t first = static_cast<size_t>(slice.arena_begin) * head_dim;
  backend_->SubGenBuild({.k = k_.data() + first,
                         .v = v_.data() + first,
                         .kv_head_stride = static_cast<int64_t>(arena_tokens_) * head_dim,
                         .n = static_cast<int>(slice.prompt.size()),
                         .rule = kv.plan(slice.slot).subgen,
                         .slot = slice.slot,
                         .layer = layer,
                         .pages = kv.pages(),
                         .tables = kv.tables()});
}

void PrefillRunner::Compress(int layer, const PrefillSlice& slice, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const CachePlan& plan = kv.plan(slice.slot);
  if (plan.rule.weighted && plan.whole_until == 0) return BuildSubGen(layer, slice, kv);
  const int n = static_cast<int>(slice.prompt.size());
  const int32_t keep = plan.EntriesAfter(n);
  keep_.Write(*backend_, 0, std::vector<int32_t>(config.num_kv_heads, keep));
  const size_t start = slice.arena_begin;
  const float* scores = PromptScores(slice, plan);
  if (keep < n) {
    // Without scores the protected are all there is to keep.
    backend_->Select({.scores = scores != nullptr ? scores : column_sums_.data() + start,
                      .score_stride = arena_tokens_,
                      .num_kv_heads = config.num_kv_heads,
                      .n = n,
                      .sinks = plan.rule.sinks,
                      .recent = plan.rule.recent,
                      .keep = keep_.data(),
                      .kept = kept_.data() + start,
                      .kept_stride = arena_tokens_});
  }
  backend_->WritePages({.k = k_.data() + start * config.head_dim,
                        .v = v_.data() + start * config.head_dim,
                        .kv_head_stride = static_cast<int64_t>(arena_tokens_) * config.head_dim,
                        .scores = scores,
                        .score_stride = arena_tokens_,
                        .score_scale = plan.mean_scores ? 1.0f / static_cast<float>(n) : 1.0f,
                        .kept = keep < n ? kept_.data() + start : nullptr,
                        .kept_stride = arena_tokens_,
                        .keep = keep_.data(),
                        .n = n,
                        .slot = slice.slot,
                        .layer = layer,
                        .pages = kv.pages(),
                        .tables = kv.tables()});
}

}  // namespace hydrant
