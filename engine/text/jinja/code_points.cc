#include "engine/text/jinja/code_points.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "engine/text/jinja/special_casing.h"
#include "engine/text/unicode/utf8.h"

namespace hydrant::jinja {
namespace {

constexpr char32_t kSigma = 0x3A3, kFinalSigma = 0x3C2, kDottedCapitalI = 0x130;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

utf8proc_category_t CategoryOf(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool Within(char32_t c, char32_t low, char32_t high) { return c >= low && c <= high; }

// Unicode's Case_Ignorable, except rare punctuation: characters skipped when the form of a sigma is
// decided.
bool IsCaseIgnorable(char32_t c) {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019;
  }
}

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

// Unicode 3.13, Final_Sigma.
bool IsFinalSigma(const std::vector<char32_t>& text, size_t at) {
  size_t before = at;
  while (before > 0 && IsCaseIgnorable(text[before - 1])) --before;
  if (before == 0 || !IsCased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && IsCaseIgnorable(text[after])) ++after;
  return after == text.size() || !IsCased(text[after]);
}

const SpecialCase* FindSpecial(char32_t c) {
  const auto* found = std::lower_bound(
      std::begin(kSpecialCasing), std::end(kSpecialCasing), c,
      [](const SpecialCase& row, char32_t value) { return row.code_point < value; });
  return found != std::end(kSpecialCasing) && found->code_point == c ? found : nullptr;
}

void AppendUpper(char32_t c, std::string* out) {
  if (const SpecialCase* special = FindSpecial(c)) {
    *out += special->upper;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  if (const SpecialCase* special = FindSpecial(c)) {
    *out += special->title;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void AppendLower(const std::vector<char32_t>& text, size_t at, std::string* out) {
  const char32_t c = text[at];
  if (c == kSigma && IsFinalSigma(text, at)) {
    AppendUtf8(kFinalSigma, out);
  } else if (c == kDottedCapitalI) {
    *out += "i\u0307";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

}  // namespace

int64_t CountCodePoints(std::string_view text) {
  return static_cast<int64_t>(text.size()) -
         std::count_if(text.begin(), text.end(), IsContinuation);
}

size_t ByteOffset(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!IsContinuation(text[at]) && index-- == 0) break;
  }
  return at;
}

size_t LastCharacter(std::string_view text) {
  size_t last = text.size() - 1;
  while (last > 0 && IsContinuation(text[last])) --last;
  return last;
}

std::vector<char32_t> CodePoints(std::string_view text) {
  std::vector<char32_t> points;
  points.reserve(text.size());
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    points.push_back(front.code_point);
    text.remove_prefix(static_cast<size_t>(front.length));
  }
  return points;
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    for (end = begin + 1; end < text.size() && IsContinuation(text[end]);) ++end;
    characters.push_back(text.substr(begin, end - begin));
  }
  return characters;
}

// Python's rule: bidirectional class WS, B or S, or category Zs.
bool IsSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || Within(c, 0x9, 0xD) || Within(c, 0x1C, 0x1F);
  const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->category == UTF8PROC_CATEGORY_ZS ||
         property->bidi_class == UTF8PROC_BIDI_CLASS_WS ||
         property->bidi_class == UTF8PROC_BIDI_CLASS_B ||
         property->bidi_class == UTF8PROC_BIDI_CLASS_S;
}

bool IsPrintable(char32_t c) {
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_ND; }

// Numeric_Type Decimal or Digit.
bool IsDigit(char32_t c) {
  return IsDecimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || c == 0x19DA ||
         c == 0x24EA || c == 0x24FF || Within(c, 0x1369, 0x1371) || Within(c, 0x2074, 0x2079) ||
         Within(c, 0x2080, 0x2089) || Within(c, 0x2460, 0x2468) || Within(c, 0x2474, 0x247C) ||
         Within(c, 0x2488, 0x2490) || Within(c, 0x24F5, 0x24FD) || Within(c, 0x2776, 0x277E) ||
         Within(c, 0x2780, 0x2788) || Within(c, 0x278A, 0x2792) || Within(c, 0x10A40, 0x10A43) ||
         Within(c, 0x10E60, 0x10E68) || Within(c, 0x11052, 0x1105A) || Within(c, 0x1F100, 0x1F10A);
}

// Lu and Other_Uppercase.
bool IsUpper(char32_t c) {
  return CategoryOf(c) == UTF8PROC_CATEGORY_LU || Within(c, 0x2160, 0x216F) ||
         Within(c, 0x24B6, 0x24CF) || Within(c, 0x1F130, 0x1F149) || Within(c, 0x1F150, 0x1F169) ||
         Within(c, 0x1F170, 0x1F189);
}

// Ll and the commoner part of Other_Lowercase.
bool IsLower(char32_t c) {
  return CategoryOf(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA || c == 0x345 ||
         c == 0x37A || c == 0x2071 || c == 0x207F || Within(c, 0x2B0, 0x2B8) ||
         Within(c, 0x2C0, 0x2C1) || Within(c, 0x2E0, 0x2E4) || Within(c, 0x1D2C, 0x1D6A) ||
         c == 0x1D78 || Within(c, 0x1D9B, 0x1DBF) || Within(c, 0x2090, 0x209C) ||
         Within(c, 0x2170, 0x217F) || Within(c, 0x24D0, 0x24E9);
}

bool IsTitle(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_LT; }

bool IsWord(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  return c == '_' || IsAlpha(c) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    if (!IsSpace(front.code_point)) break;
    text.remove_prefix(static_cast<size_t>(front.length));
  }
  return text;
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    const size_t last = LastCharacter(text);
    if (!IsSpace(ReadUtf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view Strip(std::string_view text) { return StripRight(StripLeft(text)); }

std::string_view StripLeft(std::string_view text, std::string_view characters) {
  while (!text.empty()) {
    const auto length = static_cast<size_t>(ReadUtf8(text).length);
    if (characters.find(text.substr(0, length)) == std::string_view::npos) break;
    text.remove_prefix(length);
  }
  return text;
}

std::string_view StripRight(std::string_view text, std::string_view characters) {
  while (!text.empty()) {
    const size_t last = LastCharacter(text);
    if (characters.find(text.substr(last)) == std::string_view::npos) break;
    text = text.substr(0, last);
  }
  return text;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  const auto is_end = [](char32_t c) {
    return Within(c, 0xA, 0xD) || Within(c, 0x1C, 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<std::string_view> lines;
  size_t begin = 0, at = 0;
  while (at < text.size()) {
    const Utf8Front front = ReadUtf8(text.substr(at));
    const size_t end = at;
    at += static_cast<size_t>(front.length);
    if (!is_end(front.code_point)) continue;
    if (front.code_point == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string Upper(std::string_view text) {
  std::string out;
  for (const char32_t c : CodePoints(text)) AppendUpper(c, &out);
  return out;
}

std::string Lower(std::string_view text) {
  const std::vector<char32_t> points = CodePoints(text);
  std::string out;
  for (size_t i = 0; i < points.size(); ++i) AppendLower(points, i, &out);
  return out;
}

std::string Title(std::string_view text) {
  const std::vector<char32_t> points = CodePoints(text);
  std::string out;
  bool inside = false;  // within a word
  for (size_t i = 0; i < points.size(); ++i) {
    if (inside) {
      AppendLower(points, i, &out);
    } else {
      AppendTitle(points[i], &out);
    }
    inside = IsCased(points[i]);
  }
  return out;
}

std::string Capitalize(std::string_view text) {
  const std::vector<char32_t> points = CodePoints(text);
  std::string out;
  if (!points.empty()) AppendTitle(points[0], &out);
  for (size_t i = 1; i < points.size(); ++i) AppendLower(points, i, &out);
  return out;
}

std::string SwapCase(std::string_view text) {
  const std::vector<char32_t> points = CodePoints(text);
  std::string out;
  for (size_t i = 0; i < points.size(); ++i) {
    if (IsUpper(points[i])) {
      AppendLower(points, i, &out);
    } else if (IsLower(points[i])) {
      AppendUpper(points[i], &out);
    } else {
      AppendUtf8(points[i], &out);
    }
  }
  return out;
}

}  // namespace hydrant::jinja
