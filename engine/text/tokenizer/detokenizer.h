// Turns a growing list of token ids into text, piece by piece, and never emits half a UTF-8
// character. Not thread safe; one per stream. Borrows the tokenizer.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_DETOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_DETOKENIZER_H_

#include <string>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

class IncrementalDetokenizer {
 public:
  // `continues`: the ids follow a prompt (a leading space of the first token is then kept).
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special, bool continues);

  // The text that became complete with this id; "" while a character is still open.
  std::string Push(TokenId id);
  // What is left when the stream ends: an open character becomes U+FFFD.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool first_;
  std::string pending_;  // bytes of an open character, at most 3
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_DETOKENIZER_H_
