// Converts a request's sampled tokens to client output, and detects the end of the text:
// end-of-generation ids, stop token ids, stop strings. The scheduler handles length limits. Not
// thread safe; borrows the tokenizer.
//
// The id that ends the text (end-of-generation or stop_token_ids) is not delivered, neither as id
// nor as text: Finished names it. The id that completes a stop string is delivered; its text is cut
// at the match. Before min_tokens nothing ends the text; ids that would end it are not sampled
// (LogitsProcessor), or are ordinary tokens if a client resumes with them.
#ifndef HYDRANT_SCHEDULER_OUTPUT_PROCESSOR_H_
#define HYDRANT_SCHEDULER_OUTPUT_PROCESSOR_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/request.h"
#include "scheduler/stop_matcher.h"

namespace hydrant {

class OutputProcessor {
 public:
  OutputProcessor(const Tokenizer* tokenizer, const StoppingParams& stopping,
                  bool skip_special_tokens);

  struct Output {
    bool deliver_id = true;
    bool ends = false;
    std::string text;  // whole UTF-8 characters
  };
  Output Push(TokenId id);
  // Text held back so far, when the stream ends for another reason.
  std::string Finish();

  // pushed so far, including the one that ends the text
  int num_tokens() const { return num_tokens_; }
  // The reason for the end; "" and nullopt if there is none.
  std::string matched_stop() const;
  std::optional<TokenId> matched_token_id() const { return matched_token_id_; }

 private:
  bool EndsText(TokenId id) const;

  IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
  std::span<const TokenId> eog_ids_;  // the tokenizer's; empty: they are ignored
  std::vector<TokenId> stop_ids_;     // sorted
  int64_t min_tokens_;
  int num_tokens_ = 0;
  std::optional<TokenId> matched_token_id_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OUTPUT_PROCESSOR_H_
