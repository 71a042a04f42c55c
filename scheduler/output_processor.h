// Turns a request's sampled tokens into what the client gets, and says when they end the text:
// end-of-generation ids, stop token ids, stop strings. Lengths are the scheduler's business. Not
// thread safe; borrows the tokenizer.
//
// The id that ends the text (end-of-generation or stop_token_ids) is not delivered, neither as id
// nor as text: Finished names it. The id that completes a stop string is delivered; its text is cut
// at the match. Before min_tokens nothing ends the text; ids that would are not drawn
// (LogitsProcessor), or are ordinary ones where a client resumes with them.
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
  // Text still held back when the stream ends for another reason.
  std::string Finish();

  int num_tokens() const { return num_tokens_; }  // pushed so far, ending one included
  // What ended the text; "" and nullopt where it did not.
  std::string matched_stop() const;
  std::optional<TokenId> matched_token_id() const { return matched_token_id_; }

 private:
  bool EndsText(TokenId id) const;

  IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
  std::span<const TokenId> eog_ids_;  // the tokenizer's, which all share; empty: they end nothing
  std::vector<TokenId> stop_ids_;     // sorted
  int64_t min_tokens_;
  int num_tokens_ = 0;
  std::optional<TokenId> matched_token_id_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OUTPUT_PROCESSOR_H_
