// The part of a layer in which the tokens of a sequence see each other, between two matrix
// products: attention today. A kind of layer with another mixer, such as a recurrence, is another
// class with this interface. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_MIXER_H_
#define HYDRANT_ENGINE_RUN_FORWARD_MIXER_H_

#include <cstdint>
#include <span>

#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "engine/run/step/graph_shape.h"

namespace hydrant {

// Decoded tokens, a row each, in device memory at fixed addresses. Operations on them depend on
// `shape` alone, so that a device may record them.
struct DecodedRows {
  uint32_t* ids = nullptr;                  // [rows]
  const int32_t* slots = nullptr;           // [rows]; -1: padding
  const int32_t* positions = nullptr;       // [rows]
  const int32_t* rope_positions = nullptr;  // [rows]
  GraphShape shape = {};
};

// Tokens [begin, end) of a run in the arena, within one layer.
struct RunPiece {
  const TokenRun* run = nullptr;
  int begin = 0;
  int end = 0;
  const int32_t* positions = nullptr;  // [rows()], on the device

  int ArenaRow() const { return run->arena_begin + begin; }
  int rows() const { return end - begin; }
};

// Rows that go through the matrix products of a layer together: decoded tokens, or pieces of runs.
struct RowSet {
  float* hidden = nullptr;  // [num_rows, hidden], on the device
  int num_rows = 0;
  const DecodedRows* decoded = nullptr;  // null: pieces
  std::span<const RunPiece> pieces = {};
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Called before the first token of a run in the arena enters the layer, and after the last one
  // has left it.
  virtual void BeginLayer(int layer, const TokenRun& run, const KvState& kv) = 0;
  virtual void EndLayer(int layer, const TokenRun& run, const KvState& kv) = 0;
  // Reads rows.hidden and writes the same rows of Activations::attended, the input of
  // Transformer::FinishLayer(). prepared: as for Transformer::ProjectQkv().
  virtual void Mix(int layer, const RowSet& rows, bool prepared, const KvState& kv) = 0;
  // Appends the first tokens of a run with Commit::kLater, which has gone through all layers.
  // run: these tokens, with Commit::kAppend.
  virtual void CommitHeld(int layer, const TokenRun& run, const KvState& kv) = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_MIXER_H_
