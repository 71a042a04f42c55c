// A vocabulary for tests: every byte is a token, plus some that cross the boundaries of grammar
// elements, among them parts of UTF-8 characters.
#ifndef HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_SMALL_VOCABULARY_H_
#define HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_SMALL_VOCABULARY_H_

#include "engine/text/grammar/grammar_compiler.h"

namespace hydrant {

inline constexpr TokenId kSmallVocabularySpecial = 256;  // a control token
inline constexpr TokenId kSmallVocabularyEnd = 257;

inline GrammarVocabulary SmallVocabulary() {
  GrammarVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  }
  vocabulary.token_bytes.resize(258);
  vocabulary.eog_ids = {kSmallVocabularyEnd};
  for (const char* text : {"ab",
                           "ba",
                           "aa",
                           "bab",
                           "abab",
                           "bbab",
                           "abc",
                           "cab",
                           "bb",
                           "aaaa",
                           "a1",
                           "1a",
                           "12",
                           "00",
                           "0.",
                           "1e",
                           "{\"",
                           "\":",
                           "\": ",
                           "\",",
                           "\"}",
                           "\"]",
                           "\"a\"",
                           "{\"a\": ",
                           "}}",
                           "]]",
                           "},",
                           "],",
                           "[]",
                           "{}",
                           "[1",
                           "true",
                           "tru",
                           "false",
                           "alse",
                           "null",
                           ", ",
                           " \n",
                           "  ",
                           "\xC3",
                           "\xC3\xA9",
                           "\xA9",
                           "a\xC3",
                           "\251b",  // octal: \xA9b would be one number
                           "\xE4\xB8",
                           "\xE4\xB8\x96",
                           "\x96\xE7",
                           "a\xED",
                           "\xED\xA0",
                           "\xA0\x80",
                           "\xF0\x9F",
                           "\x91\x8D",
                           "\xF0\x9F\x91\x8D",
                           "\\n",
                           "\\u",
                           "\\u00",
                           "e9",
                           "\\\"",
                           "-",
                           "-1",
                           "\"b\"",
                           "\"c\"",
                           "ca",
                           "cc"}) {
    vocabulary.token_bytes.emplace_back(text);
  }
  return vocabulary;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_TEXT_GRAMMAR_SMALL_VOCABULARY_H_
