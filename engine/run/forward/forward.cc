#include "engine/run/forward/forward.h"

#include <algorithm>
#include <numeric>

#include "kernels/status_macros.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(Backend* backend, const Transformer* model,
                                                         const Activations* act,
                                                         const EngineLimits& limits,
                                                         DType page_dtype,
                                                         const ScorePredictor* predictor) {
  std::unique_ptr<Forward> forward(new Forward(backend, model, act, limits));
  HYDRANT_RETURN_IF_ERROR(forward->Allocate(limits, page_dtype, predictor));
  return forward;
}

absl::Status Forward::Allocate(const EngineLimits& limits, DType page_dtype,
                               const ScorePredictor* predictor) {
  const size_t tokens = arena_tokens_;
  const size_t width = model_->config().hidden_size;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
  };
  allocate(ids_, tokens);
  allocate(positions_, tokens);
  allocate(hidden_, tokens * width);
  allocate(gathered_, max_rows_ * width);
  allocate(decoded_hidden_, limits.max_num_seqs * width);
  if (!status.ok()) return status;
  HYDRANT_ASSIGN_OR_RETURN(
      attention_, AttentionMixer::Create(backend_, model_, act_, limits, page_dtype, predictor));
  return absl::OkStatus();
}

void Forward::Decode(const DecodedRows& rows, const KvState& kv) {
  model_->Embed(rows.ids, rows.positions, rows.shape.rows, decoded_hidden_.data());
  RunLayers({.layer_end = model_->config().num_layers, .decoded = &rows}, kv);
}

void Forward::Read(std::span<const TokenRun> runs, const KvState& kv) {
  if (runs.empty()) return;
  int first_layer = model_->config().num_layers;
  int last_layer = 0;
  std::vector<const TokenRun*> by_place;
  for (const TokenRun& run : runs) {
    if (run.part.layer_begin == 0) Embed(run, kv);
    first_layer = std::min(first_layer, run.part.layer_begin);
    last_layer = std::max(last_layer, run.part.layer_end);
    by_place.push_back(&run);
  }
  std::ranges::sort(by_place, {}, [](const TokenRun* run) { return run->arena_begin; });
  RunLayers({.layer_begin = first_layer, .layer_end = last_layer, .runs = by_place}, kv);
  for (const TokenRun& run : runs) {
    if (run.Ends(model_->config().num_layers)) attention_->End(run, kv);
  }
}

void Forward::CommitHeld(const SlotCommit& commit, const KvState& kv) {
  if (commit.tokens.empty()) return;
  const TokenRun run = {.slot = commit.slot,
                        .commit = Commit::kAppend,
                        .tokens = commit.tokens,
                        .first_position = commit.first_position,
                        .arena_begin = commit.arena_begin};
  for (int layer = 0; layer < model_->config().num_layers; ++layer)
    MixerOf(layer).CommitHeld(layer, run, kv);
}

void Forward::RunLayers(const Pass& pass, const KvState& kv) {
  bool prepared = false;
  std::vector<const TokenRun*> at_layer;
  for (int layer = pass.layer_begin; layer < pass.layer_end; ++layer) {
    if (pass.decoded != nullptr) {
      const RowSet rows = {.hidden = decoded_hidden_.data(),
                           .num_rows = pass.decoded->shape.rows,
                           .decoded = pass.decoded};
      prepared = RunRows(layer, rows, prepared, kv);
      continue;
    }
    at_layer.clear();
    std::ranges::copy_if(pass.runs, std::back_inserter(at_layer), [&](const TokenRun* run) {
      return run->part.layer_begin <= layer && layer < run->part.layer_end;
    });
    for (const TokenRun* run : at_layer) {
      if (!run->BeginsLayer()) continue;
      if (observer_) observer_(layer, *run, Hidden(*run));
      MixerOf(layer).BeginLayer(layer, *run, kv);
    }
    for (const std::vector<RunPiece>& set : SplitIntoSets(at_layer)) RunPieces(layer, set, kv);
    for (const TokenRun* run : at_layer) {
      if (run->EndsLayer()) MixerOf(layer).EndLayer(layer, *run, kv);
    }
  }
}

// Decoded rows stay together through all layers, so a layer prepares the next one's input.
bool Forward::RunRows(int layer, const RowSet& rows, bool prepared, const KvState& kv) {
  MixerOf(layer).Mix(layer, rows, prepared, kv);
  return model_->FinishLayer(layer, rows.hidden, rows.num_rows, *act_, rows.decoded != nullptr);
}

// Writes the ids, positions and embeddings of the part to the arena.
void Forward::Embed(const TokenRun& run, const KvState& kv) {
  const int rows = run.part.token_end - run.part.token_begin;
  const size_t row = run.arena_begin + run.part.token_begin;
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), run.first_position + run.part.token_begin);
  ids_.Write(*backend_, row, run.tokens.subspan(run.part.token_begin, rows));
  positions_.Write(*backend_, row, positions);
  attention_->Begin(run, kv);
  model_->Embed(ids_.data() + row, positions_.data() + row, rows,
                hidden_.data() + row * model_->config().hidden_size);
}

// Sets of at most max_rows_ rows. A piece ends at its part's end, at a checkpoint, or at a multiple
// of kQueryTile, so that column sums do not depend on the split.
std::vector<std::vector<RunPiece>> Forward::SplitIntoSets(
    std::span<const TokenRun* const> runs) const {
  std::vector<std::vector<RunPiece>> sets;
  int room = 0;
  for (const TokenRun* run : runs) {
    int begin = run->part.token_begin;
    while (begin < run->part.token_end) {
      const int left = run->part.token_end - begin;
      if (room == 0 || (left > room && room < kQueryTile)) {
        sets.emplace_back();
        room = max_rows_;
      }
      int rows = left <= room ? left : room / kQueryTile * kQueryTile;
      rows = std::min(rows, run->prompt.NextCheckpoint(begin) - begin);
      sets.back().push_back(
          {run, begin, begin + rows, positions_.data() + run->arena_begin + begin});
      begin += rows;
      room -= rows;
    }
  }
  return sets;
}

void Forward::RunPieces(int layer, std::span<const RunPiece> pieces, const KvState& kv) {
  const int first = pieces.front().ArenaRow();
  int rows = 0;
  for (const RunPiece& piece : pieces) rows += piece.rows();
  const bool apart = pieces.back().ArenaRow() + pieces.back().rows() - first != rows;
  float* const hidden =
      apart ? gathered_.data()
            : hidden_.data() + static_cast<size_t>(first) * model_->config().hidden_size;
  if (apart) MoveHidden(pieces, Move::kGather);
  RunRows(layer, {.hidden = hidden, .num_rows = rows, .pieces = pieces}, false, kv);
  if (apart) MoveHidden(pieces, Move::kScatter);
}

// Copies hidden states between the arena and gathered_.
void Forward::MoveHidden(std::span<const RunPiece> pieces, Move move) {
  const size_t width = model_->config().hidden_size;
  float* gathered = gathered_.data();
  for (const RunPiece& piece : pieces) {
    float* const in_arena = hidden_.data() + piece.ArenaRow() * width;
    const size_t bytes = piece.rows() * width * sizeof(float);
    if (move == Move::kGather) {
      backend_->CopyOnDevice(gathered, in_arena, bytes);
    } else {
      backend_->CopyOnDevice(in_arena, gathered, bytes);
    }
    gathered += piece.rows() * width;
  }
}

}  // namespace hydrant
