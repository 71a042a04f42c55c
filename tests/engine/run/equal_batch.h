// A batch of equal sequences, for benchmarks of the engine without the scheduler: random prompts,
// then steps that decode one token per sequence. Ends the process if the engine fails.
#ifndef HYDRANT_TESTS_ENGINE_RUN_EQUAL_BATCH_H_
#define HYDRANT_TESTS_ENGINE_RUN_EQUAL_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/run/engine.h"

namespace hydrant {

class EqualBatch {
 public:
  // Policies other than "full" get a cache of 20 % of the prompt. new_tokens: limit of decoded
  // tokens. shuffled: pages in random order, as in a pool that has been in use.
  EqualBatch(Engine* engine, const std::string& policy, int count, int prompt_tokens,
             int new_tokens, bool shuffled = false);

  // Upper bound of the pages of `count` sequences, including pages for their entries' state.
  static int64_t Pages(const EngineLimits& limits, const std::string& policy, int count,
                       int prompt_tokens, int new_tokens);

  // Entries of a head after `tokens` tokens of prompt and output.
  int Entries(int tokens) const { return plan_.EntriesAfter(tokens); }

  // Both return seconds.
  double Prefill(int prompt_tokens);
  double Decode(int first_position, int steps);

 private:
  void AddSequence(int slot, int width);
  int32_t TakeBlock();
  void Execute();

  Engine* engine_;
  CachePlan plan_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<int32_t> blocks_;  // free pages; the last is taken next
  Batch batch_;
  StepResult result_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_RUN_EQUAL_BATCH_H_
