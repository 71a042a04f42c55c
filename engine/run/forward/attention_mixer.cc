#include "engine/run/forward/attention_mixer.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<AttentionMixer>> AttentionMixer::Create(
    Backend* backend, const Transformer* model, const Activations* act, const EngineLimits& limits,
    DType page_dtype, const ScorePredictor* predictor) {
  std::unique_ptr<AttentionMixer> mixer(
      new AttentionMixer(backend, model, act, limits, page_dtype));
  HYDRANT_RETURN_IF_ERROR(mixer->Allocate(limits, predictor));
  return mixer;
}

absl::Status AttentionMixer::Allocate(const EngineLimits& limits, const ScorePredictor* predictor) {
  const ModelConfig& config = model_->config();
  const size_t tokens = arena_tokens_;
  const size_t rows = limits.max_num_seqs;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
  };
  allocate(k_, BytesOf(dtype_, tokens * config.KvDim()));
  allocate(v_, BytesOf(dtype_, tokens * config.KvDim()));
  allocate(decoded_k_, rows * config.KvDim());
  allocate(decoded_v_, rows * config.KvDim());
  allocate(later_positions_, tokens);
  allocate(later_q_, BytesOf(dtype_, tokens * config.QDim()));
  if (predictor != nullptr) {
    allocate(predictor_weights_, predictor->weights.size());
    allocate(predictor_biases_, predictor->biases.size());
    allocate(decoded_scores_, rows * config.num_kv_heads);
    if (!status.ok()) return status;
    predictor_weights_.Write(*backend_, 0, predictor->weights);
    predictor_biases_.Write(*backend_, 0, predictor->biases);
  }
  if (status.ok()) status = prefix_.Allocate(backend_, limits);
  if (status.ok())
    status = held_.Allocate(backend_, limits, config.num_heads, config.head_dim, dtype_);
  if (!status.ok()) return status;
  HYDRANT_ASSIGN_OR_RETURN(compressor_, PromptCompressor::Create(backend_, limits));
  return absl::OkStatus();
}

void AttentionMixer::Begin(const TokenRun& run, const KvState& kv) {
  if (run.BeginsLayer()) prefix_.Begin(run, kv);
  const int64_t end = run.BuildsCache() ? kv.plan(run.slot).prompt.tokens
                                        : int64_t{run.first_position} + run.NumTokens();
  const auto after = static_cast<int32_t>(std::min<int64_t>(end, max_positions_ - 1));
  // Cached tokens are not computed, but the echo rotates their queries.
  const int begin = run.BeginsLayer() ? 0 : run.part.token_begin;
  later_positions_.Write(*backend_, run.arena_begin + begin,
                         std::vector<int32_t>(run.part.token_end - begin, after));
}

void AttentionMixer::End(const TokenRun& run, const KvState& kv) { compressor_->Finish(run, kv); }

// Loads the data of cached tokens from prefix blocks.
void AttentionMixer::BeginLayer(int layer, const TokenRun& run, const KvState& kv) {
  prefix_.LoadKv(layer, run, KvRows(k_, run), KvRows(v_, run), kv);
  compressor_->Begin(layer, run, kv);
  if (Echoes(layer, run, kv)) RotateCachedQueries(layer, run, kv);
}

void AttentionMixer::EndLayer(int layer, const TokenRun& run, const KvState& kv) {
  const LayerKv layer_kv = ArenaKv(layer, run);
  switch (run.commit) {
    case Commit::kCompress:
      prefix_.SaveKv(layer, run, KvRows(k_, run), KvRows(v_, run), kv);
      Echo(layer, run, kv);
      compressor_->Compress(layer, run, layer_kv, kv);
      break;
    case Commit::kAppend:
      Echo(layer, run, kv);
      compressor_->Append(layer, run, layer_kv, kv);
      break;
    case Commit::kLater:
      held_.SaveKv(layer, run.slot, run.NumTokens(), layer_kv);
      if (float* const scores = compressor_->PredictedScores(kv.At(layer).group, run))
        held_.SaveScores(layer, run.slot, run.NumTokens(), scores, arena_tokens_);
      break;
    case Commit::kDecode:
      HYDRANT_CHECK(false);  // never in the arena
  }
}

LayerKv AttentionMixer::ArenaKv(int layer, const TokenRun& run) const {
  const int head_dim = model_->config().head_dim;
  const int64_t start = int64_t{run.arena_begin} * head_dim;
  return {.k = At(k_, start),
          .v = At(v_, start),
          .head_stride = static_cast<int64_t>(arena_tokens_) * head_dim,
          .head_dim = head_dim,
          .rotary = model_->RotaryOf(layer)};
}

TokenRows AttentionMixer::KvRows(const DeviceArray<uint8_t>& array, const TokenRun& run) const {
  const int64_t head_dim = model_->config().head_dim;
  return {.x = At(array, run.arena_begin * head_dim),
          .head_stride = arena_tokens_ * head_dim,
          .row_stride = head_dim};
}

// row: a row of the activations.
TokenRows AttentionMixer::RawQueries(int row) const {
  const int64_t stride = model_->RawQueryStride();
  return {.x = Transformer::RawQueries(*act_) + row * stride,
          .head_stride = model_->config().head_dim,
          .row_stride = stride};
}

void AttentionMixer::Mix(int layer, const RowSet& rows, bool prepared, const KvState& kv) {
  if (rows.decoded != nullptr) return MixDecoded(layer, rows, prepared, kv);
  PredictPieces(layer, rows, kv);
  model_->ProjectQkv(layer, rows.hidden, rows.num_rows, *act_, prepared);
  int row = 0;
  for (const RunPiece& piece : rows.pieces) {
    Rotate(layer, piece, row, kv);
    row += piece.rows();
  }
  Attend(layer, rows.pieces, kv);
}

// scores: [kv_heads, stride]
void AttentionMixer::Predict(int layer, const float* hidden, int rows, float* scores,
                             int64_t stride) {
  const ModelConfig& config = model_->config();
  const int64_t head = int64_t{layer} * config.num_kv_heads;
  backend_->PredictScores({.x = hidden,
                           .num_rows = rows,
                           .width = config.hidden_size,
                           .weights = predictor_weights_.data() + head * config.hidden_size,
                           .biases = predictor_biases_.data() + head,
                           .num_kv_heads = config.num_kv_heads,
                           .out = scores,
                           .stride = stride});
}

// Predicts scores of the tokens of runs with a plan that ranks by them.
void AttentionMixer::PredictPieces(int layer, const RowSet& rows, const KvState& kv) {
  const GroupState& group = kv.At(layer).group;
  const float* hidden = rows.hidden;
  for (const RunPiece& piece : rows.pieces) {
    float* const scores = compressor_->PredictedScores(group, *piece.run);
    if (scores != nullptr)
      Predict(layer, hidden, piece.rows(), scores + piece.begin, arena_tokens_);
    hidden += static_cast<int64_t>(piece.rows()) * model_->config().hidden_size;
  }
}

void AttentionMixer::MixDecoded(int layer, const RowSet& rows, bool prepared, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const DecodedRows& decoded = *rows.decoded;
  const GroupLayer at = kv.At(layer);
  const GroupShape bounds = decoded.shape.Of(at.group.group().kind);
  model_->ProjectAndRotate(layer, rows.hidden, decoded.rope_positions, rows.num_rows, *act_,
                           prepared,
                           {.k = decoded_k_.data(),
                            .v = decoded_v_.data(),
                            .row_stride = config.KvDim(),
                            .head_stride = config.head_dim});
  if (bounds.predicted) {
    const int64_t stride = decoded_scores_.size() / config.num_kv_heads;
    Predict(layer, rows.hidden, rows.num_rows, decoded_scores_.data(), stride);
    backend_->StoreNewScores({.num_rows = rows.num_rows,
                              .slots = decoded.slots,
                              .layer = at.layer,
                              .scores = decoded_scores_.data(),
                              .stride = stride,
                              .pages = kv.pages(),
                              .tables = at.group.tables()});
  }
  if (bounds.weighted) {
    page_compactor().samples().Insert(rows.num_rows, decoded.slots, decoded.positions, at.layer,
                                      kv);
  }
  backend_->DecodeAttention({.num_rows = rows.num_rows,
                             .slots = decoded.slots,
                             .positions = decoded.positions,
                             .q = act_->q.data(),
                             .k = decoded_k_.data(),
                             .v = decoded_v_.data(),
                             .layer = at.layer,
                             .num_heads = config.num_heads,
                             .scale = static_cast<float>(config.AttentionScale()),
                             .softcap = static_cast<float>(config.attention_softcap),
                             .sink_logits = model_->SinkLogitsOf(layer),
                             .rotary = model_->RotaryOf(layer),
                             .pages = kv.pages(),
                             .tables = at.group.tables(),
                             .max_entries = bounds.max_entries,
                             .max_scored_entries = bounds.max_scored_entries,
                             .weighted = bounds.weighted,
                             .out = act_->attended.data(),
                             .out_dtype = act_->input_dtype,
                             .mean_entries = bounds.mean_entries});
  if (!bounds.revised) return;
  backend_->ReviseScores({.num_rows = rows.num_rows,
                          .slots = decoded.slots,
                          .positions = decoded.positions,
                          .layer = at.layer,
                          .pages = kv.pages(),
                          .tables = at.group.tables()});
}

// Rotates the piece's queries and keys and writes keys and values to the arena. row: the piece's
// first row in the activations of its set.
void AttentionMixer::Rotate(int layer, const RunPiece& piece, int row, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const int64_t place = int64_t{piece.ArenaRow()} * config.head_dim;
  model_->RotateQkv(layer, piece.positions, row, piece.rows(), *act_,
                    {.k = At(k_, place),
                     .v = At(v_, place),
                     .row_stride = config.head_dim,
                     .head_stride = static_cast<int64_t>(arena_tokens_) * config.head_dim,
                     .precision = kv.pages().layout.dtype});
  if (piece.run->commit == Commit::kLater) {
    held_.SaveQueries(layer, piece.run->slot, piece.begin, piece.rows(),
                      Transformer::Queries(*act_, dtype_) + int64_t{row} * config.QDim());
  }
  if (Echoes(layer, *piece.run, kv)) RotateForEcho(layer, piece, row, kv);
}

// The arguments common to all attention to a layer's keys outside the pages.
PrefillAttentionArgs AttentionMixer::AttentionTo(int layer, const LayerKv& layer_kv,
                                                 const KvState& kv) const {
  const ModelConfig& config = model_->config();
  return {.k = layer_kv.k,
          .v = layer_kv.v,
          .kv_head_stride = layer_kv.head_stride,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = static_cast<float>(config.AttentionScale()),
          .softcap = static_cast<float>(config.attention_softcap),
          .sink_logits = model_->SinkLogitsOf(layer),
          .precision = backend_->AttentionDType(kv.pages().layout.dtype, model_->weight_dtype()),
          .byte_factors = model_->ByteFactorsOf(layer)};
}

// Attention of a set's pieces, which are of different runs or consecutive in one.
void AttentionMixer::Attend(int layer, std::span<const RunPiece> pieces, const KvState& kv) {
  std::vector<PrefillAttentionArgs> together;  // pieces without entries in pages, for one call
  std::vector<const RunPiece*> summed;         // pieces of `together` with sums to save
  const auto attend = [&] {
    backend_->PrefillAttentions(together);
    for (const RunPiece* piece : summed) compressor_->KeepSums(layer, *piece->run, piece->end, kv);
    together.clear();
    summed.clear();
  };
  const GroupLayer at = kv.At(layer);
  int row = 0;
  for (const RunPiece& piece : pieces) {
    const PrefillAttentionArgs args = AttentionOf(layer, piece, row, kv);
    row += piece.rows();
    if (!piece.run->BuildsCache()) {
      AttendToEntries(at, *piece.run, kv, args);
    } else {
      const std::vector<PromptCompressor::Statistics> passes =
          compressor_->Passes(at.group, *piece.run);
      const bool sums = passes.front().front().out != nullptr ||
                        compressor_->PredictedScores(at.group, *piece.run) != nullptr;
      // A piece's sums are saved before the next piece of its prompt adds to them.
      if (sums && !summed.empty() && summed.back()->run == piece.run) attend();
      for (const PromptCompressor::Statistics& pass : passes) {
        together.push_back(args);
        together.back().statistics = pass;
      }
      if (sums) summed.push_back(&piece);
    }
  }
  attend();
}

// row: the piece's first row in the activations of its set.
PrefillAttentionArgs AttentionMixer::AttentionOf(int layer, const RunPiece& piece, int row,
                                                 const KvState& kv) const {
  const size_t first = static_cast<size_t>(row) * model_->config().QDim();
  PrefillAttentionArgs args = AttentionTo(layer, ArenaKv(layer, *piece.run), kv);
  args.q = Transformer::Queries(*act_, dtype_) + static_cast<int64_t>(first);
  args.num_queries = piece.rows();
  args.first_position = piece.begin;
  args.out = act_->At(act_->attended, first);
  args.out_dtype = act_->input_dtype;
  const CacheGroup& group = kv.At(layer).group.group();
  if (group.kind == GroupKind::kWindow) args.window = group.window;
  return args;
}

// The slot's entries before an appended run.
PagedPrefix AttentionMixer::EntriesBefore(const GroupLayer& at, const TokenRun& run,
                                          const KvState& kv) const {
  return {.pages = kv.pages(),
          .tables = at.group.tables(),
          .slot = run.slot,
          .layer = at.layer,
          .max_entries = at.group.plan(run.slot).EntriesAfter(run.first_position),
          .next_position = run.first_position};
}

// Attention to the keys of `args`, of the run, and to the entries in the slot's pages.
void AttentionMixer::AttendToEntries(const GroupLayer& at, const TokenRun& run, const KvState& kv,
                                     PrefillAttentionArgs args) {
  const PagedPrefix entries = EntriesBefore(at, run, kv);
  args.prefix = &entries;
  args.statistics = compressor_->Passes(at.group, run).front();
  ScoreRowsArgs scores = compressor_->EntryScores(entries);
  // The first piece of a turn sets the scores of entries without one.
  if (run.turn.has_value() && args.first_position == 0) scores.scored_end = run.turn->scored_end;
  const bool summed = args.statistics[0].out != nullptr;
  if (summed) {
    backend_->GatherScores(scores);
    args.statistics[0].prefix_out = scores.rows;
    args.statistics[0].prefix_stride = scores.stride;
  }
  backend_->PrefillAttention(args);
  if (summed) backend_->ScatterScores(scores);
}

// Runs the attention of the committed tokens once more where the rule scores entries by it: sums
// over queries exclude the tokens that were rejected.
void AttentionMixer::CommitHeld(int layer, const TokenRun& run, const KvState& kv) {
  const GroupLayer at = kv.At(layer);
  const LayerKv layer_kv = held_.Kv(layer, run.slot, ArenaKv(layer, run));
  compressor_->Begin(layer, run, kv);
  if (compressor_->Passes(at.group, run).front().front().out != nullptr) {
    PrefillAttentionArgs args = AttentionTo(layer, layer_kv, kv);
    args.q = held_.Queries(layer, run.slot);
    args.num_queries = run.NumTokens();
    args.out = act_->attended.data();  // not read
    args.out_dtype = act_->input_dtype;
    const CacheGroup& group = at.group.group();
    if (group.kind == GroupKind::kWindow) args.window = group.window;
    AttendToEntries(at, run, kv, args);
  }
  if (float* const scores = compressor_->PredictedScores(at.group, run))
    held_.LoadScores(layer, run.slot, run.NumTokens(), scores, arena_tokens_);
  compressor_->Append(layer, run, layer_kv, kv);
}

// Loads the queries of cached tokens into the activations and rotates them for the echo.
void AttentionMixer::RotateCachedQueries(int layer, const TokenRun& run, const KvState& kv) {
  const ModelConfig& config = model_->config();
  const int most = max_rows_ / kPrefixBlockTokens * kPrefixBlockTokens;
  for (int begin = 0; begin < run.prompt.first_token; begin += most) {
    const int end = std::min(begin + most, run.prompt.first_token);
    const size_t row = run.arena_begin + begin;
    prefix_.LoadQueries(layer, run, begin, end, config.num_heads, RawQueries(0), kv);
    model_->RotateQueries(layer, later_positions_.data() + row, 0, end - begin, *act_,
                          kv.pages().layout.dtype, At(later_q_, row * config.QDim()));
  }
}

// Rotates the piece's queries to the position of the echo, and saves them before RoPE for prompts
// with the same prefix.
void AttentionMixer::RotateForEcho(int layer, const RunPiece& piece, int row, const KvState& kv) {
  const size_t place = piece.ArenaRow();
  model_->RotateQueries(layer, later_positions_.data() + place, row, piece.rows(), *act_,
                        kv.pages().layout.dtype, At(later_q_, place * model_->config().QDim()));
  prefix_.SaveQueries(layer, *piece.run, piece.begin, piece.end, model_->config().num_heads,
                      RawQueries(row), kv);
}

// Runs the layer's queries once more, after all keys are computed.
void AttentionMixer::Echo(int layer, const TokenRun& run, const KvState& kv) {
  std::vector<PromptCompressor::Statistics> passes =
      compressor_->EchoPasses(kv.At(layer).group, run);
  if (passes.empty()) return;
  const PagedPrefix entries = EntriesBefore(kv.At(layer), run, kv);
  const int n =
      run.BuildsCache() ? static_cast<int>(kv.plan(run.slot).prompt.tokens) : run.NumTokens();
  PrefillAttentionArgs args = AttentionTo(layer, ArenaKv(layer, run), kv);
  args.q = At(later_q_, int64_t{run.arena_begin} * model_->config().QDim());
  args.num_queries = n;
  args.first_position = (n + kQueryTile - 1) / kQueryTile * kQueryTile;
  args.end_key = n;
  args.precision = backend_->RankingDType(kv.pages().layout.dtype, model_->weight_dtype());
  if (!run.BuildsCache()) {
    args.prefix = &entries;
    compressor_->BeginTurnEcho(entries, &passes.front());
  }
  for (const PromptCompressor::Statistics& pass : passes) {
    args.statistics = pass;
    backend_->PrefillAttention(args);
  }
}

}  // namespace hydrant
