// What a request says of single tokens: biases, tokens that are allowed, words that are not, no end
// before min_tokens, a grammar. Makes of it what the engine does to the logits of a row. One a
// sequence; used by the scheduler's thread, and by an engine thread while the scheduler waits.
#ifndef HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_
#define HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/step/batch.h"
#include "scheduler/next_mask.h"
#include "scheduler/request.h"

namespace hydrant {

class LogitsProcessor final : public RowMask {
 public:
  // Null where the request says nothing of single tokens. Copies what it needs; the tokenizer is
  // borrowed.
  static std::unique_ptr<LogitsProcessor> Create(const SamplingParams& sampling,
                                                 const StoppingParams& stopping,
                                                 const Tokenizer& tokenizer);

  // What follows depends on the tokens before: none can be drawn before these are known.
  bool NeedsOutput() const { return grammar_ != nullptr || longest_bad_word_ > 1; }
  // The mask of the next tokens by the grammar; null: the request has no grammar.
  const std::shared_ptr<NextMask>& grammar() const { return grammar_; }
  // For the row that draws what follows num_output tokens. `output`: those that are known, all of
  // them where NeedsOutput(); it stays until the mask is made. What the row points to stays until
  // the next call. Returns whether Make() is to make the mask yet.
  bool Edit(int64_t num_output, std::span<const TokenId> output, SampledRow* row);
  // Of a row that was edited last, and has a grammar.
  void Make() override;

  // By the last row: the text is complete, and nothing can follow it.
  bool IsComplete() const { return next_ == NextTokens::kEnd; }
  // By the last row: not ok where the request left no token that could be drawn at this position.
  absl::Status WhyNoneFollows(int64_t position) const;
  // The next token of the output, one that was allowed.
  void Accept(TokenId token);

 private:
  LogitsProcessor(const SamplingParams& sampling, const StoppingParams& stopping,
                  const Tokenizer& tokenizer);
  void Restrict();

  const TokenId vocab_;
  std::vector<TokenBias> biases_;
  std::vector<uint32_t> allowed_;  // [MaskWords(vocab)]; empty: all
  std::vector<std::vector<TokenId>> bad_words_;
  size_t longest_bad_word_ = 0;  // in tokens
  std::vector<TokenId> ends_;    // ids that end the text
  int64_t min_tokens_;           // they may not be drawn before
  std::shared_ptr<NextMask> grammar_;

  // Of the last row.
  int64_t num_output_ = 0;
  std::span<const TokenId> output_;
  NextTokens next_ = NextTokens::kAny;  // by the grammar
  std::vector<uint32_t> mask_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_
