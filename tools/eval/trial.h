// A context to compress and the dialogues behind it, the caches that are compared on it, and what
// each of them answered. Plain data.
#ifndef HYDRANT_TOOLS_EVAL_TRIAL_H_
#define HYDRANT_TOOLS_EVAL_TRIAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_spec.h"
#include "engine/run/step/kept_entries.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {

// A cache configuration to evaluate.
struct Arm {
  std::string name;
  CacheSpec cache;
  // The upper bound: entries are chosen by the attention of the continuation, C per head, or over
  // all heads if the params' budget_scope says so. `cache` then only gives C.
  bool is_oracle = false;
  std::string idea = {};  // "idea-NAME" (tools/eval/ideas.h); "": none. `cache` is of its policy
  // At most as many tokens of earlier passages are read again before each question that is read
  // (engine/text/passages/passages.h).
  int recall_tokens = 0;
};

// A step of a dialogue: its fields in this order. Empty or 0: left out.
struct Exchange {
  std::vector<TokenId> read = {};  // a question or another turn, read as one run
  // Tokens of the chat template at the beginning and the end of `read`. Recall looks passages up
  // with the tokens between these, and reads them again before them.
  int opening = 0;
  int closing = 0;
  std::vector<TokenId> foreseen = {};  // given to every cache one by one
  int follow = 0;                      // as many tokens that the full cache generates, given alike
  int generate = 0;                    // at most as many tokens that each cache generates
  std::string stop = {};               // ends the generated text, beside the model's end of text
  std::vector<TokenId> expected = {};  // the right answer, for the oracle
};
using Dialogue = std::vector<Exchange>;

struct Trial {
  std::vector<TokenId> context;  // is compressed
  bool question_later = false;   // the cache plans know that a question comes behind the context
  // Each goes on from the compressed context, whatever the others said. If there are several, each
  // begins with `read`.
  std::vector<Dialogue> dialogues = {};
  bool traced = false;              // fill in Outcome::held
  std::optional<bool> append = {};  // overrides the options' value
};

// The result of an exchange. The numbers are of the tokens that every cache was given.
struct Answer {
  double nll = 0;         // mean, nats
  double agreement = 0;   // share with the full cache's top token
  double divergence = 0;  // KL(full cache || this one), mean, nats
  std::string text = {};  // generated, without the stop
};

// The result of an arm on a trial.
struct Outcome {
  absl::Status refused;  // PlanCache's error; the other fields are then unset
  std::vector<std::vector<Answer>> answers = {};  // [dialogues][exchanges]
  int64_t entries = 0;             // of all heads, after the compaction of the context
  double retained_mass = 1;        // mean over the heads
  std::vector<int32_t> kept = {};  // [layers * KV heads] entries of each head at that time
  KeptEntries kept_entries = {};   // of the context, at that time
  // For a traced trial: the positions held by each head, ascending, after the compaction of the
  // context and after each foreseen token (the entries its query attended to); only the first
  // moment if nothing is evicted later. Empty if entries are samples. [moments][layers * KV heads]
  std::vector<std::vector<std::vector<int32_t>>> held = {};

  const Answer& first() const { return answers.at(0).at(0); }
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TRIAL_H_
