// Drives an Engine without the scheduler, for hydrant-eval and for tests: allocates slots, arena
// room and pages for sequences as the scheduler does (KvCacheManager, page ids shuffled), and runs
// steps assembled by the caller. Allocation failures and engine errors end the process.
#ifndef HYDRANT_TOOLS_EVAL_ENGINE_DRIVER_H_
#define HYDRANT_TOOLS_EVAL_ENGINE_DRIVER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/turns.h"
#include "engine/run/engine.h"

namespace hydrant::eval {

class EngineDriver {
 public:
  // `seed`: for the order of page ids.
  EngineDriver(Engine* engine, uint64_t seed);
  ~EngineDriver();

  // Takes the next slot, with pages for the prompt; `new_tokens` tokens are expected after it.
  // Prefill*() computes the prompt.
  int Add(std::vector<TokenId> prompt, const CachePlan& plan, int new_tokens,
          const SampledRow& sampling = Greedy(), bool prompt_logprobs = false);

  // Takes the next slot for another cache of the same prefill as `slot`, which must not have begun:
  // both plans have the same prompt length (PromptRun::sharing_slots).
  int AddSharing(int slot, const CachePlan& plan, int new_tokens);

  // Takes a slot for a copy of the slot's cache as it is now.
  int Fork(int slot, int new_tokens);
  // Frees the slot and its pages.
  void Release(int slot);

  // Adds the prompt's run to the step being built; all layers and tokens, or the given part.
  void PrefillAll(int slot);
  void PrefillPart(int slot, int layer_begin, int layer_end, int token_begin, int token_end);
  // Adds a decoded token. Without a token: the newest sampled one.
  void Decode(int slot);
  void DecodeToken(int slot, TokenId token, int position);

  // Adds a run that appends `tokens` to the slot's sequence (Commit::kAppend); or begins one in
  // parts, which AppendPart() adds.
  void Append(int slot, std::vector<TokenId> tokens, std::optional<TurnRun> turn = {});
  void BeginRun(int slot, std::vector<TokenId> tokens, std::optional<TurnRun> turn = {});
  void AppendPart(int slot, int layer_begin, int layer_end, int token_begin, int token_end);
  // Adds a run as the scheduler does for the next turn of a conversation: of a later turn the
  // budget is counted anew. spec: of the slot's plan. REQUIRES: plan.AppendsRuns()
  void AppendTurn(int slot, const CacheSpec& spec, std::vector<TokenId> tokens);

  // Adds a run of `tokens` that is committed later (Commit::kLater), with a sampled row after each
  // of them; then keeps the first `count` before the slot's next run. HeldSamples(): the sampled
  // tokens, after Step().
  void Hold(int slot, std::vector<TokenId> tokens);
  void CommitHeld(int slot, int count);
  const std::vector<TokenId>& HeldSamples(int slot) const { return sequences_[slot].held_samples; }
  // Logits after the i-th token of the run, as LogitsRow().
  std::span<const float> HeldLogits(int slot, int i);

  // Shrinks the slot's cache to `mean` entries per head before its next token. REQUIRES: as
  // hydrant::Shrink
  void Shrink(int slot, int32_t mean);

  // Executes the step. REQUIRES: it is not empty
  void Step();

  // Prefill of one sequence and `count` greedy tokens, alone.
  std::vector<TokenId> Generate(int slot, int count);

  // Tokens that the slot's cache has seen, after the step being built.
  int position(int slot) const { return sequences_[slot].position; }
  TokenId last_token(int slot) const { return sequences_[slot].newest; }
  // Entries kept by each head at compaction, if the slot's plan is then ragged.
  const std::vector<int32_t>& Entries(int slot) const { return sequences_[slot].entries; }
  // Observations of the scorer of an open plan, and the slot's plan resolved with them.
  const std::vector<float>& Observations(int slot) const { return sequences_[slot].observations; }
  const CachePlan& Plan(int slot) const { return sequences_[slot].plan; }
  // Retained mass of the slot's heads ([layers * KV heads]); empty: nothing was evicted.
  const std::vector<float>& RetainedMass(int slot) const { return sequences_[slot].retained_mass; }
  // Logits of the slot in the last step; valid until the next step.
  std::span<const float> LogitsRow(int slot);
  std::vector<float> Logits(int slot) {
    const std::span<const float> row = LogitsRow(slot);
    return {row.begin(), row.end()};
  }

  // StepResult::logprobs of the last step.
  const std::vector<TokenLogprobs>& logprobs() const { return result_.logprobs; }
  const std::vector<TokenLogprobs>& prompt_logprobs() const { return result_.prompt_logprobs; }

  const std::vector<KeptEntries>& kept_entries() const { return result_.kept_entries; }

  static SamplingRow Greedy() { return {.temperature = 0.0f}; }

 private:
  struct Sequence {
    std::vector<TokenId> prompt = {};
    std::vector<TokenId> run = {};  // tokens to append or to hold
    TokenId decoded = kNoToken;     // input of the decoded run
    std::vector<TokenId> held_samples = {};
    std::vector<int32_t> keep = {};  // of `turn`
    SampledRow sampling = {};
    bool prompt_logprobs = false;
    int position = 0;  // of the next input token
    TokenId newest = kNoToken;
    int logits_row = -1;
    CachePlan plan = {};
    SequenceBlocks blocks = {};
    std::vector<float> retained_mass = {};
    std::vector<float> observations = {};
    std::vector<int> sharing_slots = {};
    std::vector<int32_t> entries = {};   // kept by each head, if its plan is ragged
    std::vector<TokenRange> turns = {};  // appended ranges
    std::optional<TurnRun> turn = {};    // of the run
  };
  void Compact(int position, Sequence* sequence);
  std::optional<TurnRun> BeginTurn(const TokenRange& range, const CacheSpec& spec,
                                   Sequence* sequence);
  int Put(Sequence sequence);
  int Open(const CachePlan& plan, int64_t arena_tokens, int new_tokens);
  void AddRun(const TokenRun& run, const SampledRow& sampling);
  std::span<const float> LogitsAt(int row);
  void AddDecoded();
  void TakeTokens(const Batch& ran);
  void CloseArenas(const Batch& ran);
  void TakeReport(int slot, const CacheReport& report);

  Engine* engine_;
  KvCacheManager kv_cache_;
  std::deque<Sequence> sequences_;  // by slot
  Batch batch_;
  std::vector<std::pair<TokenRun, SampledRow>> decoded_;  // of the step being built
  StepResult result_;                                     // of the last step
  std::vector<float> logits_;                             // of the last step, copied on demand
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_ENGINE_DRIVER_H_
