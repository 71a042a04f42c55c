// Converts a stream of token ids to text without ever emitting a partial UTF-8 character. Not
// thread safe; one per stream. Borrows the tokenizer.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_DETOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_DETOKENIZER_H_

#include <string>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

class IncrementalDetokenizer {
 public:
  // `continues`: the ids follow a prompt (a leading space of the first token is then kept).
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special, bool continues);

  // The text completed by this id; "" while a character is incomplete.
  std::string Push(TokenId id);
  // The remaining text at the end of the stream: an incomplete character becomes U+FFFD.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool first_;
  std::string pending_;  // bytes of an incomplete character, at most 3
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_DETOKENIZER_H_
