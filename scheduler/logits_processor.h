// Applies a request's constraints on single tokens: biases, allowed tokens, bad words, min_tokens,
// a grammar. Produces the logit edits for the engine's sampling rows. One per sequence; used by the
// scheduler's thread, and by an engine thread while the scheduler waits.
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
  // Null if the request has no such constraints. Copies what it needs; the tokenizer is borrowed.
  static std::unique_ptr<LogitsProcessor> Create(const SamplingParams& sampling,
                                                 const StoppingParams& stopping,
                                                 const Tokenizer& tokenizer);

  // Whether the edits depend on the preceding tokens, so that sampling must wait for them.
  bool NeedsOutput() const { return grammar_ != nullptr || longest_bad_word_ > 1; }
  // The grammar's mask of the next tokens; null: no grammar.
  const std::shared_ptr<NextMask>& grammar() const { return grammar_; }
  // Edits the row that samples the token after num_output tokens. `output`: the known tokens, all
  // of them if NeedsOutput(); valid until the mask is made. The row's pointers are valid until the
  // next call. Returns whether Make() must still make the mask.
  bool Edit(int64_t num_output, std::span<const TokenId> output, SampledRow* row);
  // Makes the mask of the last edited row, which has a grammar.
  void Make() override;

  // Whether the last row showed that the text is complete and nothing can follow.
  bool IsComplete() const { return next_ == NextTokens::kEnd; }
  // Not OK if the last row left no token that could be sampled at this position.
  absl::Status CheckSomeTokenAllowed(int64_t position) const;
  // Adds the next token of the output, which the mask allowed.
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
  int64_t min_tokens_;           // ends_ are masked before
  std::shared_ptr<NextMask> grammar_;

  // State of the last row.
  int64_t num_output_ = 0;
  std::span<const TokenId> output_;
  NextTokens next_ = NextTokens::kAny;  // result of the grammar
  std::vector<uint32_t> mask_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_LOGITS_PROCESSOR_H_
