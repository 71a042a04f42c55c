// Python's view of strings, as sequences of code points, on UTF-8. Pure functions, thread safe.
// REQUIRES of every text: it is valid UTF-8.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_CODE_POINTS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_CODE_POINTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant::jinja {

int64_t CountCodePoints(std::string_view text);
// The byte offset of code point `index`; text.size() if there are fewer.
size_t ByteOffset(std::string_view text, int64_t index);
// The byte offset of the last code point. REQUIRES: `text` is not empty.
size_t LastCharacter(std::string_view text);
std::vector<char32_t> CodePoints(std::string_view text);
std::vector<std::string_view> Characters(std::string_view text);  // one view a code point

// str.isspace, str.isprintable, ... of one code point.
bool IsSpace(char32_t c);
bool IsPrintable(char32_t c);
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsWord(char32_t c);  // \w of Python's regular expressions

// `text` without white space at its ends, as str.strip() removes it.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
std::string_view Strip(std::string_view text);
// The same for the code points of `characters`.
std::string_view StripLeft(std::string_view text, std::string_view characters);
std::string_view StripRight(std::string_view text, std::string_view characters);

// str.splitlines().
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// str.upper() and so on, with Unicode's special casing (one code point may become several).
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Title(std::string_view text);
std::string Capitalize(std::string_view text);
std::string SwapCase(std::string_view text);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_CODE_POINTS_H_
