// Reads the entries of an engine's caches, and logits, for tests, the laboratory and
// StepResult::kept_entries. Each call copies from the device and waits for it. Borrows the engine; called by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_ENGINE_PROBE_H_
#define HYDRANT_ENGINE_RUN_ENGINE_PROBE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/run/engine.h"

namespace hydrant {

// The entries of one head, in slot order.
struct HeadState {
  std::vector<int32_t> positions;  // [entries]
  std::vector<float> scores;       // [entries], zeros in a slot without scores
  std::vector<float> log_weights;  // [entries, 2], where the slot's rule is weighted
  std::vector<float> keys;         // [entries, head_dim], without KeyScaling
  std::vector<float> values;       // [entries, head_dim]
  int32_t victim = -1;
};

class EngineProbe {
 public:
  explicit EngineProbe(const Engine& engine) : EngineProbe(engine.Parts()) {}
  explicit EngineProbe(const EngineParts& parts) : parts_(parts) {}

  // Layers are the model's.
  HeadState ReadHead(int slot, int layer, int head) const;
  // The positions of ReadHead() alone.
  std::vector<int32_t> ReadPositions(int slot, int layer, int head) const;
  // The entries of the first `num_tokens` tokens.
  KeptEntries ReadKeptEntries(int slot, int num_tokens) const;
  // [layers * KV heads] entries
  std::vector<int32_t> ReadLengths(int slot) const;
  // The scores of a head by position, [tokens]; `missing` where it holds no entry.
  std::vector<float> ReadScores(int slot, int layer, int head, int tokens, float missing) const;
  // Replaces the observer of layer inputs; null: none (Forward::SetObserver).
  using LayerObserver = std::function<void(int layer, const TokenRun& run, const float* hidden)>;
  void ObserveLayers(LayerObserver observer) const;
  // Logits of the step enqueued last, after biases, masks and penalties: of Batch::sampled.
  std::vector<float> ReadLogits() const;

 private:
  // A head's length, victim and block table, read from the device.
  struct Rows {
    int32_t length = 0;
    int32_t victim = -1;
    std::vector<PageIds> blocks;
  };
  Rows RowsOf(int slot, int layer, int head) const;

  EngineParts parts_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_ENGINE_PROBE_H_
