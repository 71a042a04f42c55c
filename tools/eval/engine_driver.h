// Drives an Engine without the scheduler, for the laboratory and for tests: sequences get slots,
// arena room and pages as the scheduler's would (CacheSpace, page ids shuffled), and it runs steps
// of the caller's making. What does not fit, or an engine that fails, ends the process.
#ifndef HYDRANT_TOOLS_EVAL_ENGINE_DRIVER_H_
#define HYDRANT_TOOLS_EVAL_ENGINE_DRIVER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/cache_space.h"
#include "engine/run/engine.h"

namespace hydrant::eval {

class EngineDriver {
 public:
  // `seed`: of the order of page ids.
  EngineDriver(Engine* engine, uint64_t seed);
  ~EngineDriver();

  // Takes the next slot, with pages for the prompt; `new_tokens` are expected after it. The prompt
  // is read by Prefill*().
  int Add(std::vector<TokenId> prompt, const CachePlan& plan, int new_tokens,
          const SampledRow& sampling = Greedy(), bool prompt_logprobs = false);

  // Takes the next slot for another cache of the reading of `slot`, which has not begun: its plan
  // is of as long a prompt (PrefillSlice::sharing_slots).
  int AddSharing(int slot, const CachePlan& plan, int new_tokens);

  // Adds a slice to the step being built; all layers and tokens, or the given part.
  void PrefillAll(int slot);
  void PrefillPart(int slot, int layer_begin, int layer_end, int token_begin, int token_end);
  // Adds a decode row. Without a token: the newest sampled one.
  void Decode(int slot);
  void DecodeToken(int slot, TokenId token, int position);

  // Adds a slice that reads `tokens` after all that the slot has seen (PrefillSlice::num_seen); or
  // begins such a run, whose slices AppendPart() adds. keep: PrefillSlice::keep.
  void Append(int slot, std::vector<TokenId> tokens, std::vector<int32_t> keep = {});
  void BeginRun(int slot, std::vector<TokenId> tokens, std::vector<int32_t> keep = {});
  void AppendPart(int slot, int layer_begin, int layer_end, int token_begin, int token_end);

  // The slot's cache is cut to `mean` entries a head when its next token comes. REQUIRES: as
  // hydrant::Shrink
  void Shrink(int slot, int32_t mean);

  // Executes the step. REQUIRES: it has work
  void Step();

  // Prefill of one sequence and `count` greedy tokens, alone.
  std::vector<TokenId> Generate(int slot, int count);

  TokenId last_token(int slot) const { return sequences_[slot].newest; }
  // Entries that each head kept when the slot's cache was cut, where its plan is ragged then.
  const std::vector<int32_t>& Entries(int slot) const { return sequences_[slot].entries; }
  // What the scorer of an open plan observed, and the slot's plan, decided by it.
  const std::vector<float>& Observations(int slot) const { return sequences_[slot].observations; }
  const CachePlan& Plan(int slot) const { return sequences_[slot].plan; }
  // What the slot's heads retained ([layers * KV heads]); empty: nothing has left.
  const std::vector<float>& RetainedMass(int slot) const { return sequences_[slot].retained_mass; }
  // Logits that the last step computed for the slot; the span until the next step.
  std::span<const float> LogitsRow(int slot);
  std::vector<float> Logits(int slot) {
    const std::span<const float> row = LogitsRow(slot);
    return {row.begin(), row.end()};
  }

  // StepResult's own, of the last step.
  const std::vector<TokenLogprobs>& logprobs() const { return result_.logprobs; }
  const std::vector<TokenLogprobs>& prompt_logprobs() const { return result_.prompt_logprobs; }

  static SamplingRow Greedy() { return {.temperature = 0.0f}; }

 private:
  struct Sequence {
    std::vector<TokenId> prompt = {};
    std::vector<TokenId> run = {};  // that is appended
    std::vector<int32_t> keep = {};
    SampledRow sampling = {};
    bool prompt_logprobs = false;
    int position = 0;  // of the next input token
    TokenId newest = kNoToken;
    int logits_row = -1;
    CachePlan plan = {};
    SequenceSpace space = {};
    std::vector<float> retained_mass = {};
    std::vector<float> observations = {};
    std::vector<int> sharing_slots = {};
    std::vector<int32_t> entries = {};  // kept by each head, where its plan is ragged
  };
  int Open(const CachePlan& plan, int64_t arena_tokens, int new_tokens);
  void TakeReport(int slot, const CacheReport& report);

  Engine* engine_;
  CacheSpace space_;
  std::vector<Sequence> sequences_;
  Batch batch_;
  StepResult result_;          // of the last step
  std::vector<float> logits_;  // of the last step, once asked for
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_ENGINE_DRIVER_H_
