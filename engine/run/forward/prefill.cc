#include "engine/run/forward/prefill.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/status_macros.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<PrefillRunner>> PrefillRunner::Create(Backend* backend,
                                                                     const Transformer* model,
                                                                     const Activations* act,
                                                                     const EngineLimits& limits,
                                                                     DType page_dtype) {
  std::unique_ptr<PrefillRunner> runner(new PrefillRunner(backend, model, act, limits, page_dtype));
  HYDRANT_RETURN_IF_ERROR(runner->Allocate(limits));
  return runner;
}

absl::Status PrefillRunner::Allocate(const EngineLimits& limits) {
  const ModelConfig& config = model_->config();
  const size_t tokens = arena_tokens_;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
  };
  allocate(ids_, tokens);
  allocate(positions_, tokens);
  allocate(hidden_, tokens * config.hidden_size);
  allocate(run_hidden_, static_cast<size_t>(max_rows_) * config.hidden_size);
  allocate(k_, BytesOf(dtype_, tokens * config.KvDim()));
  allocate(v_, BytesOf(dtype_, tokens * config.KvDim()));
  allocate(later_positions_, tokens);
  allocate(later_q_, BytesOf(dtype_, tokens * config.QDim()));
  if (status.ok()) status = prefix_.Allocate(backend_, limits);
  if (!status.ok()) return status;
  HYDRANT_ASSIGN_OR_RETURN(compressor_, PromptCompressor::Create(backend_, limits));
  return absl::OkStatus();
}

void PrefillRunner::Run(std::span<const PrefillSlice> slices, const KvState& kv) {
  if (slices.empty()) return;
  int first_layer = model_->config().num_layers;
  int last_layer = 0;
  for (const PrefillSlice& slice : slices) {
    if (slice.layer_begin == 0) Begin(slice, kv);
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

const float* PrefillRunner::LastHidden(const PrefillSlice& slice, const CachePlan& plan) const {
  const int64_t tokens =
      slice.Appends() ? static_cast<int64_t>(slice.prompt.size()) : plan.prompt.tokens;
  const size_t row = slice.arena_begin + tokens - 1;
  return hidden_.data() + row * model_->config().hidden_size;
}

// Writes the slice's ids, positions and embeddings to the arena.
void PrefillRunner::Begin(const PrefillSlice& slice, const KvState& kv) {
  const int rows = slice.token_end - slice.token_begin;
  const size_t row = slice.arena_begin + slice.token_begin;
  if (slice.BeginsLayer()) prefix_.Begin(slice, kv);
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), slice.num_seen + slice.token_begin);
  ids_.Write(*backend_, row, slice.prompt.subspan(slice.token_begin, rows));
  positions_.Write(*backend_, row, positions);
  const auto after = static_cast<int32_t>(
      std::min<int64_t>(kv.plan(slice.slot).prompt.tokens, max_positions_ - 1));
  // Cached tokens are not computed, but the echo rotates their queries.
  const int unread = slice.BeginsLayer() ? slice.first_token : 0;
  later_positions_.Write(*backend_, row - unread, std::vector<int32_t>(rows + unread, after));
  model_->Embed(ids_.data() + row, positions_.data() + row, rows,
                hidden_.data() + row * model_->config().hidden_size);
}

void PrefillRunner::RunLayer(int layer, std::span<const PrefillSlice* const> slices,
                             const KvState& kv) {
  for (const PrefillSlice* slice : slices) {
    if (slice->BeginsLayer()) BeginLayer(layer, *slice, kv);
  }
  for (const std::vector<Piece>& run : SplitIntoRuns(slices)) RunRows(layer, run, kv);
  for (const PrefillSlice* slice : slices) {
    if (slice->token_end == static_cast<int>(slice->prompt.size())) EndLayer(layer, *slice, kv);
  }
}

// Loads the data of cached tokens from prefix blocks.
void PrefillRunner::BeginLayer(int layer, const PrefillSlice& slice, const KvState& kv) {
  prefix_.LoadKv(layer, slice, KvRows(k_, slice), KvRows(v_, slice), kv);
  compressor_->Begin(layer, slice, kv);
  if (Echoes(layer, slice, kv)) RotateCachedQueries(layer, slice, kv);
}

void PrefillRunner::EndLayer(int layer, const PrefillSlice& slice, const KvState& kv) {
  prefix_.SaveKv(layer, slice, KvRows(k_, slice), KvRows(v_, slice), kv);
  Keep(layer, slice, kv);
  if (layer + 1 == model_->config().num_layers && !slice.Appends()) compressor_->Finish(slice, kv);
}

TokenRows PrefillRunner::KvRows(const DeviceArray<uint8_t>& array,
                                const PrefillSlice& slice) const {
  const int64_t head_dim = model_->config().head_dim;
  return {.x = At(array, slice.arena_begin * head_dim),
          .head_stride = arena_tokens_ * head_dim,
          .row_stride = head_dim};
}

// row: a row of the activations.
TokenRows PrefillRunner::RawQueries(int row) const {
  const int64_t stride = model_->RawQueryStride();
  return {.x = Transformer::RawQueries(*act_) + row * stride,
          .head_stride = model_->config().head_dim,
          .row_stride = stride};
}

// Called after the slice's last token has run through the layer.
void PrefillRunner::Keep(int layer, const PrefillSlice& slice, const KvState& kv) {
  const int head_dim = model_->config().head_dim;
  const size_t start = static_cast<size_t>(slice.arena_begin) * head_dim;
  const LayerKv layer_kv = {.k = At(k_, start),
                            .v = At(v_, start),
                            .head_stride = static_cast<int64_t>(arena_tokens_) * head_dim,
                            .head_dim = head_dim,
                            .rotary = model_->RotaryOf(layer)};
  if (slice.Appends()) return compressor_->Append(layer, slice, layer_kv, kv);
  Echo(layer, slice, kv);
  compressor_->Compress(layer, slice, layer_kv, kv);
}

// Runs of at most max_rows_ rows. A piece ends at its slice's end, at a checkpoint, or at a
// multiple of kQueryTile, so that column sums do not depend on the split.
std::vector<std::vector<PrefillRunner::Piece>> PrefillRunner::SplitIntoRuns(
    std::span<const PrefillSlice* const> slices) const {
  std::vector<std::vector<Piece>> runs;
  int room = 0;
  for (const PrefillSlice* slice : slices) {
    int begin = slice->token_begin;
    while (begin < slice->token_end) {
      const int left = slice->token_end - begin;
      if (room == 0 || (left > room && room < kQueryTile)) {
        runs.emplace_back();
        room = max_rows_;
      }
      int rows = left <= room ? left : room / kQueryTile * kQueryTile;
      rows = std::min(rows, slice->NextCheckpoint(begin) - begin);
      runs.back().push_back({slice, begin, begin + rows});
      begin += rows;
      room -= rows;
    }
  }
  return runs;
}

void PrefillRunner::RunRows(int layer, std::span<const Piece> pieces, const KvState& kv) {
  const int first = pieces.front().ArenaRow();
  int rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows();
  const bool apart = pieces.back().ArenaRow() + pieces.back().rows() - first != rows;
  float* const hidden =
      apart ? run_hidden_.data()
            : hidden_.data() + static_cast<size_t>(first) * model_->config().hidden_size;
  if (apart) MoveHidden(pieces, Move::kGather);
  model_->ProjectQkv(layer, hidden, rows, *act_);
  int row = 0;
  for (const Piece& piece : pieces) {
    Rotate(layer, piece, row, kv);
    row += piece.rows();
  }
  Attend(layer, pieces, kv);
  model_->FinishLayer(layer, hidden, rows, *act_);
  if (apart) MoveHidden(pieces, Move::kScatter);
}

// Copies hidden states between the arena and run_hidden_.
void PrefillRunner::MoveHidden(std::span<const Piece> pieces, Move move) {
  const size_t width = model_->config().hidden_size;
  float* in_run = run_hidden_.data();
  for (const Piece& piece : pieces) {
    float* const in_arena = hidden_.data() + piece.ArenaRow() * width;
    const size_t bytes = piece.rows() * width * sizeof(float);
    if (move == Move::kGather) {
      backend_->CopyOnDevice(in_run, in_arena, bytes);
    } else {
      backend_->CopyOnDevice(in_arena, in_run, bytes);
    }
    in_run += piece.rows() * width;
  }
}

// Rotates the piece's queries and keys and writes keys and values to the arena. row: the piece's
// first row in the activations of its run.
void PrefillRunner::Rotate(int layer, const Piece& piece, int row, const KvState& kv) {
  const int head_dim = model_->config().head_dim;
  const size_t place = static_cast<size_t>(piece.ArenaRow()) * head_dim;
  model_->RotateQkv(layer, positions_.data() + piece.ArenaRow(), row, piece.rows(), *act_,
                    {.k = At(k_, place),
                     .v = At(v_, place),
                     .row_stride = head_dim,
                     .head_stride = static_cast<int64_t>(arena_tokens_) * head_dim,
                     .precision = kv.pages().layout.dtype});
  if (Echoes(layer, *piece.slice, kv)) RotateForEcho(layer, piece, row, kv);
}

// The arguments common to all attention of a prompt's tokens to its keys.
PrefillAttentionArgs PrefillRunner::AttentionTo(const PrefillSlice& slice,
                                                const KvState& kv) const {
  const ModelConfig& config = model_->config();
  const size_t start = static_cast<size_t>(slice.arena_begin) * config.head_dim;
  return {.k = At(k_, start),
          .v = At(v_, start),
          .kv_head_stride = static_cast<int64_t>(arena_tokens_) * config.head_dim,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = static_cast<float>(config.AttentionScale()),
          .softcap = static_cast<float>(config.attention_softcap),
          .precision = backend_->AttentionDType(kv.pages().layout.dtype, model_->weight_dtype())};
}

// Attention of a run's pieces, which are of different prompts or consecutive in one.
void PrefillRunner::Attend(int layer, std::span<const Piece> pieces, const KvState& kv) {
  std::vector<PrefillAttentionArgs> together;  // pieces without entries in pages, for one call
  std::vector<const Piece*> summed;            // pieces of `together` with sums to save
  const auto attend = [&] {
    backend_->PrefillAttentions(together);
    for (const Piece* piece : summed) compressor_->KeepSums(layer, *piece->slice, piece->end, kv);
    together.clear();
    summed.clear();
  };
  const GroupLayer at = kv.At(layer);
  int row = 0;
  for (const Piece& piece : pieces) {
    const PrefillAttentionArgs args = AttentionOf(layer, piece, row, kv);
    row += piece.rows();
    if (piece.slice->Appends()) {
      AttendToEntries(at, *piece.slice, kv, args);
    } else {
      const std::vector<PromptCompressor::Statistics> passes =
          compressor_->Passes(at.group, *piece.slice);
      const bool sums = passes.front().front().out != nullptr;
      // A piece's sums are saved before the next piece of its prompt adds to them.
      if (sums && !summed.empty() && summed.back()->slice == piece.slice) attend();
      for (const PromptCompressor::Statistics& pass : passes) {
        together.push_back(args);
        together.back().statistics = pass;
      }
      if (sums) summed.push_back(&piece);
    }
  }
  attend();
}

// row: the piece's first row in the activations of its run.
PrefillAttentionArgs PrefillRunner::AttentionOf(int layer, const Piece& piece, int row,
                                                const KvState& kv) const {
  const size_t first = static_cast<size_t>(row) * model_->config().QDim();
  PrefillAttentionArgs args = AttentionTo(*piece.slice, kv);
  args.sink_logits = model_->SinkLogitsOf(layer);
  args.q = Transformer::Queries(*act_, dtype_) + static_cast<int64_t>(first);
  args.num_queries = piece.rows();
  args.first_position = piece.begin;
  args.out = act_->At(act_->attended, first);
  args.out_dtype = act_->input_dtype;
  const CacheGroup& group = kv.At(layer).group.group();
  if (group.kind == GroupKind::kWindow) args.window = group.window;
  return args;
}

// Attention of a slice that appends: also to the entries in the slot's pages.
void PrefillRunner::AttendToEntries(const GroupLayer& at, const PrefillSlice& slice,
                                    const KvState& kv, PrefillAttentionArgs args) {
  const PagedPrefix entries = {
      .pages = kv.pages(),
      .tables = at.group.tables(),
      .slot = slice.slot,
      .layer = at.layer,
      .max_entries = at.group.plan(slice.slot).EntriesAfter(slice.num_seen),
      .next_position = slice.num_seen};
  args.prefix = &entries;
  args.statistics = compressor_->Passes(at.group, slice).front();
  const ScoreRowsArgs scores = compressor_->EntryScores(entries);
  const bool summed = args.statistics[0].out != nullptr;
  if (summed) {
    // A run with slice.keep ranks entries by its own attention alone: their scores start at 0.
    if (slice.keep.empty() || args.first_position > 0) {
      backend_->GatherScores(scores);
    } else {
      backend_->Zero(scores.rows, scores.stride * model_->config().num_kv_heads * sizeof(float));
    }
    args.statistics[0].prefix_out = scores.rows;
    args.statistics[0].prefix_stride = scores.stride;
  }
  backend_->PrefillAttention(args);
  if (summed) backend_->ScatterScores(scores);
}

// Loads the queries of cached tokens into the activations and rotates them for the echo.
void PrefillRunner::RotateCachedQueries(int layer, const PrefillSlice& slice, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const int most = max_rows_ / kPrefixBlockTokens * kPrefixBlockTokens;
  for (int begin = 0; begin < slice.first_token; begin += most) {
    const int end = std::min(begin + most, slice.first_token);
    const size_t row = slice.arena_begin + begin;
    prefix_.LoadQueries(layer, slice, begin, end, config.num_heads, RawQueries(0), kv);
    model_->RotateQueries(layer, later_positions_.data() + row, 0, end - begin, *act_,
                          kv.pages().layout.dtype, At(later_q_, row * config.QDim()));
  }
}

// Rotates the piece's queries to the position of the echo, and saves them before RoPE for prompts
// with the same prefix.
void PrefillRunner::RotateForEcho(int layer, const Piece& piece, int row, const KvState& kv) {
  const size_t place = piece.ArenaRow();
  model_->RotateQueries(layer, later_positions_.data() + place, row, piece.rows(), *act_,
                        kv.pages().layout.dtype, At(later_q_, place * model_->config().QDim()));
  prefix_.SaveQueries(layer, *piece.slice, piece.begin, piece.end, model_->config().num_heads,
                      RawQueries(row), kv);
}

// Runs the layer's queries once more, after all keys are computed.
void PrefillRunner::Echo(int layer, const PrefillSlice& slice, const KvState& kv) {
  const auto n = static_cast<int>(kv.plan(slice.slot).prompt.tokens);
  PrefillAttentionArgs args = AttentionTo(slice, kv);
  args.sink_logits = model_->SinkLogitsOf(layer);
  args.q = At(later_q_, int64_t{slice.arena_begin} * model_->config().QDim());
  args.num_queries = n;
  args.first_position = (n + kQueryTile - 1) / kQueryTile * kQueryTile;
  args.end_key = n;
  args.precision = backend_->RankingDType(kv.pages().layout.dtype, model_->weight_dtype());
  for (const PromptCompressor::Statistics& pass :
       compressor_->EchoPasses(kv.At(layer).group, slice)) {
    args.statistics = pass;
    backend_->PrefillAttention(args);
  }
}

}  // namespace hydrant
