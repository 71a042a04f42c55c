// What a request says of single tokens: biases, tokens that are allowed, words that are not, no end
// before min_tokens, a grammar. Makes of it what the engine does to the logits of a row. One a
// sequence; used by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_
#define HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/grammar/token_constraint.h"
#include "engine/step/batch.h"
#include "scheduler/request.h"

namespace hydrant {

class LogitsProcessor {
 public:
  // Null where the request says nothing of single tokens. Copies what it needs; the tokenizer is
  // borrowed.
  static std::unique_ptr<LogitsProcessor> Create(const SamplingParams& sampling,
                                                 const StoppingParams& stopping,
                                                 const Tokenizer& tokenizer);

  // What follows depends on the tokens before: none can be drawn before these are known.
  bool NeedsOutput() const { return constraint_ != nullptr || longest_bad_word_ > 1; }
  // For the row that draws what follows num_output tokens. `output`: those that are known, all of
  // them where NeedsOutput(). What the row points to stays until the next call.
  void Edit(int64_t num_output, std::span<const TokenId> output, SampledRow* row);
  // By the last Edit(): the request has left no token that could be drawn.
  bool NoneMayFollow() const { return none_may_follow_; }
  // The next token of the output. kEnd: nothing follows it; kNone: it may not follow, or nothing
  // that may could end the text.
  NextTokens Accept(TokenId token);

 private:
  LogitsProcessor(const SamplingParams& sampling, const StoppingParams& stopping,
                  const Tokenizer& tokenizer);

  const TokenId vocab_;
  std::vector<TokenBias> biases_;
  std::vector<uint32_t> allowed_;  // [MaskWords(vocab)]; empty: all
  std::vector<std::vector<TokenId>> bad_words_;
  size_t longest_bad_word_ = 0;  // in tokens
  std::vector<TokenId> ends_;    // ids that end the text
  int64_t min_tokens_;           // they may not be drawn before
  std::unique_ptr<TokenConstraint> constraint_;
  NextTokens next_ = NextTokens::kAny;  // by the constraint
  std::vector<uint32_t> next_words_;    // [MaskWords(vocab)], where that is kSome
  bool none_may_follow_ = false;
  std::vector<uint32_t> mask_;  // of the row
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_
