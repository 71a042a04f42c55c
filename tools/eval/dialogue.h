// Carries several caches through the same dialogue, in one batch. They read the same, and each
// remembers its own answers.
#ifndef HYDRANT_TOOLS_EVAL_DIALOGUE_H_
#define HYDRANT_TOOLS_EVAL_DIALOGUE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/cache_spec.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tools/eval/engine_driver.h"
#include "tools/eval/trial.h"

namespace hydrant::eval {

// The most tokens that a cache sees in a dialogue, and in the longest of several, with a Speaker's
// recall_tokens.
int TokensOf(const Dialogue& dialogue, int recall_tokens);
int LongestDialogue(const std::vector<Dialogue>& dialogues, int recall_tokens);

// A cache in a dialogue.
struct Speaker {
  int slot = -1;
  CachePlan plan;
  CacheSpec spec;
  // At most as many tokens of the passages seen before that an exchange asks for are read before
  // its text.
  int recall_tokens = 0;
  std::vector<TokenId> seen = {};    // the cache's tokens, in order
  std::vector<float> logits = {};    // after the newest token; unset after a fork
  std::vector<TokenId> unread = {};  // are read before the next exchange's
  std::vector<Answer> answers = {};
};

class DialogueRunner {
 public:
  // Borrows both. arena_tokens: of the engine's limits. on_foreseen: called after each token that
  // every cache was given; may be null.
  DialogueRunner(EngineDriver* driver, const Tokenizer* tokenizer, int64_t arena_tokens,
                 std::function<void()> on_foreseen = nullptr)
      : driver_(driver),
        tokenizer_(tokenizer),
        arena_tokens_(arena_tokens),
        on_foreseen_(std::move(on_foreseen)) {}

  // Fills in the speakers' answers, one an exchange. speakers: the full cache first.
  void Run(const Dialogue& dialogue, std::span<Speaker> speakers);

 private:
  void Recall(std::span<const TokenId> question, Speaker* speaker);
  void ReadTurn(const Exchange& exchange, std::span<Speaker> speakers);
  void Read(const std::vector<TokenId>& tokens, std::span<Speaker> speakers);
  void ReadRuns(const std::vector<TokenId>& tokens, std::span<Speaker> speakers);
  void ReadOneByOne(const std::vector<TokenId>& tokens, std::span<Speaker> speakers);
  void Foresee(const Exchange& exchange, std::span<Speaker> speakers);
  void Generate(const Exchange& exchange, std::span<Speaker> speakers);
  void Step(std::span<Speaker* const> speakers);

  EngineDriver* driver_;
  const Tokenizer* tokenizer_;
  int64_t arena_tokens_;
  std::function<void()> on_foreseen_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_DIALOGUE_H_
