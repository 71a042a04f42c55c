#include "engine/text/tokenizer/detokenizer.h"

#include "engine/text/unicode/utf8.h"

namespace hydrant {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special,
                                               bool continues)
    : tokenizer_(tokenizer), skip_special_(skip_special), first_(!continues) {}

std::string IncrementalDetokenizer::Push(TokenId id) {
  // A skipped token does not open the text: the next one is still first.
  if (skip_special_ && tokenizer_->IsSpecial(id)) return "";
  pending_ += tokenizer_->TokenBytes(id, skip_special_, first_);
  first_ = false;
  std::string text;
  DrainUtf8(/*at_end=*/false, &pending_, &text);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  DrainUtf8(/*at_end=*/true, &pending_, &text);
  return text;
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special) {
  IncrementalDetokenizer detokenizer(&tokenizer, skip_special, /*continues=*/false);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  text += detokenizer.Flush();
  return text;
}

}  // namespace hydrant
