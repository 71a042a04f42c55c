// UTF-8 by the standard (Unicode 15, table 3-7): validation, decoding, and replacement of
// ill-formed parts. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_UNICODE_UTF8_H_
#define HYDRANT_ENGINE_TEXT_UNICODE_UTF8_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace hydrant {

// The front of a non-empty string.
struct Utf8Front {
  enum class Kind { kCharacter, kIllFormed, kIncomplete };
  Kind kind;
  int length;           // bytes of the character, or of the maximal ill-formed part
  char32_t code_point;  // of a character; else 0
};
// kIncomplete: all of `text` is the beginning of a character that more bytes could complete.
Utf8Front ReadUtf8(std::string_view text);

// InvalidArgument with the byte offset of the first ill-formed part.
absl::Status ValidateUtf8(std::string_view text);

// REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

// Moves the decided part of `*pending` to `*out`: characters unchanged, every maximal ill-formed
// part as one U+FFFD (Unicode 3.9, "U+FFFD substitution of maximal subparts"; the rule of Python's
// errors="replace"). An incomplete character stays pending unless `at_end`.
void DrainUtf8(bool at_end, std::string* pending, std::string* out);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_UNICODE_UTF8_H_
