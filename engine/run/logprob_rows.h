// Logprobs of a step: of sampled tokens, from the unedited logits, and of prompt tokens. Used by
// the engine's thread.
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
  // sampled rows of a step; max_prompt_tokens: prompt tokens of a step.
  absl::Status Allocate(Backend* backend, const Transformer* model, int vocab, int max_rows,
                        int max_prompt_tokens);

  // Finds the sampled rows that request logprobs.
  void Begin(const Batch& batch);
  // Logprobs of a run's prompt tokens. hidden: [tokens, hidden] of its whole prompt, after the
  // last layer. `act` is scratch.
  void ScorePrompt(const TokenRun& run, const float* hidden, const Activations& act);

  // The end of the group of rows from `begin` on that are sampled together: room for logits limits
  // the rows in it that request logprobs.
  int EndOfGroup(int begin, int num_rows) const;
  // Called before and after rows [begin, end) of a group are sampled. logits: [rows, model vocab]
  // and tokens: [rows] of all sampled rows.
  void Save(int begin, int end, const float* logits);
  void Score(int begin, int end, const TokenId* tokens);

  // On the device: of the sampled rows that request them, then of the prompts.
  const TokenLogprobs* results() const { return out_.data(); }
  int num_drawn() const { return static_cast<int>(wanted_.size()); }
  int num_of_prompts() const { return num_of_prompts_; }

 private:
  struct Part {
    int first;  // index into wanted_
    int count;
  };
  Part PartOf(int begin, int end) const;

  Backend* backend_ = nullptr;
  const Transformer* model_ = nullptr;
  int vocab_ = 0;
  std::vector<int32_t> wanted_;  // sampled rows that request logprobs, ascending
  int num_of_prompts_ = 0;
  DeviceArray<float> logits_;    // [kRowsHeld, model vocab]
  DeviceArray<TokenId> tokens_;  // [kRowsHeld]
  DeviceArray<TokenLogprobs> out_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_LOGPROB_ROWS_H_
