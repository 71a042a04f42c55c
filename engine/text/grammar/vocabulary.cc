#include <algorithm>

#include "engine/text/grammar/grammar_compiler.h"

namespace hydrant {

GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int64_t num_logits) {
  GrammarVocabulary vocabulary;
  vocabulary.token_bytes.resize(
      std::max<size_t>(num_logits > 0 ? num_logits : 0, tokenizer.VocabSize()));
  for (TokenId id = 0; id < tokenizer.VocabSize(); ++id) {
    if (tokenizer.IsSpecial(id)) continue;
    // Generated text continues a prompt, so it never opens the text.
    vocabulary.token_bytes[id] = tokenizer.TokenBytes(id, /*skip_special=*/true, /*first=*/false);
  }
  vocabulary.eog_ids = tokenizer.eog_ids();
  for (const TokenId id : vocabulary.eog_ids) vocabulary.token_bytes[id].clear();
  return vocabulary;
}

}  // namespace hydrant
