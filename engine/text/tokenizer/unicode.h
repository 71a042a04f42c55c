// The character classes and normal forms that Hugging Face tokenizers rely on. Pure functions,
// thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_UNICODE_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_UNICODE_H_

#include <string>
#include <string_view>

namespace hydrant {

bool IsWhiteSpace(char32_t c);  // property White_Space
bool IsWordCharacter(
    char32_t c);  // UTS 18 \w: letters, marks, decimal numbers, connectors, joiners

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Time O(n log n) on any text. REQUIRES: `text` is valid UTF-8.
std::string Normalize(NormalForm form, std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_UNICODE_H_
