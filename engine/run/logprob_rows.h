// Logprobs of a step: of what it draws, by the logits before anything is done to them, and of the
// tokens of prompts. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_LOGPROB_ROWS_H_
#define HYDRANT_ENGINE_RUN_LOGPROB_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/forward/transformer.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class LogprobRows {
 public:
  // Borrows backend and model. Tokens are ranked among the first `vocab` of the model's. max_rows:
  // that a step draws; max_prompt_tokens: of the prompts that it reads.
  absl::Status Allocate(Backend* backend, const Transformer* model, int vocab, int max_rows,
                        int max_prompt_tokens);

  // What the step wants of its rows, in the order of Batch::ForEachSampled().
  void Begin(const Batch& batch, int num_layers);
  // Of a slice: hidden states after the last layer, [tokens, hidden], of all of its prompt. `act`
  // is scratch.
  void ScorePrompt(const PrefillSlice& slice, const float* hidden, const Activations& act);

  // As many rows are drawn in one go as there is room for the logits of those that want logprobs:
  // from row `begin` to this.
  int EndOfGroup(int begin, int num_rows) const;
  // Before and after rows [begin, end) of such a group are drawn. logits: [rows, model vocab] and
  // tokens: [rows] of all rows.
  void Save(int begin, int end, const float* logits);
  void Score(int begin, int end, const TokenId* tokens);

  // On the device: of the drawn rows that want them, then of the prompts.
  const TokenLogprobs* results() const { return out_.data(); }
  int num_drawn() const { return static_cast<int>(wanted_.size()); }
  int num_of_prompts() const { return num_of_prompts_; }

 private:
  struct Part {
    int first;  // of wanted_
    int count;
  };
  Part PartOf(int begin, int end) const;

  Backend* backend_ = nullptr;
  const Transformer* model_ = nullptr;
  int vocab_ = 0;
  std::vector<int32_t> wanted_;  // rows that are drawn, ascending
  int num_of_prompts_ = 0;
  DeviceArray<float> logits_;    // [kRows, model vocab]
  DeviceArray<TokenId> tokens_;  // [kRows]
  DeviceArray<TokenLogprobs> out_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_LOGPROB_ROWS_H_
