// The byte alphabet of GPT-2: every byte has a printable code point, and vocabularies are written
// in those. Printable Latin-1 bytes map to themselves; the 68 others are numbered from U+0100
// upwards. Source: the byte encoder published with GPT-2 (Radford et al., 2019). Pure functions,
// thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_BYTE_ALPHABET_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

// The bytes of a vocabulary entry; nullopt if it has a character outside the alphabet.
std::optional<std::string> BytesFromAlphabet(std::string_view entry);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_BYTE_ALPHABET_H_
