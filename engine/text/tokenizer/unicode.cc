#include "engine/text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "engine/text/tokenizer/unicode_additions.h"
#include "engine/text/unicode/utf8.h"

namespace hydrant {
namespace {

// Whether a class of unicode_additions.h, such as "\\x{1C89}-\\x{1C8A}\\x{1E5F0}", has `c`.
bool HasMember(std::string_view members, char32_t c) {
  char32_t low = 0;
  bool range = false;
  while (!members.empty()) {
    const size_t close = members.find('}');
    char32_t value = 0;
    for (const char digit : members.substr(3, close - 3)) {
      value = value * 16 + static_cast<char32_t>(digit <= '9' ? digit - '0' : digit - 'A' + 10);
    }
    members.remove_prefix(close + 1);
    if (c == value || (range && c >= low && c <= value)) return true;
    low = value;
    range = !members.empty() && members[0] == '-';
    if (range) members.remove_prefix(1);
  }
  return false;
}

int CombiningClass(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// The canonical order (Unicode 3.11, D109): a stable sort of every run of marks. utf8proc's own
// insertion sort is quadratic, which an attacker could exploit.
void SortMarks(std::vector<utf8proc_int32_t>* code_points) {
  auto at = code_points->begin();
  while (at != code_points->end()) {
    if (CombiningClass(*at) == 0) {
      ++at;
      continue;
    }
    auto end =
        std::find_if(at, code_points->end(), [](char32_t c) { return CombiningClass(c) == 0; });
    if (end - at > 1) {
      std::stable_sort(
          at, end, [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); });
    }
    at = end;
  }
}

}  // namespace

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWordCharacter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_CN:  // perhaps newer than utf8proc
      return HasMember(kNewLetters, c) || HasMember(kNewNumbers, c);
    default:
      break;
  }
  // Join_Control, and the symbols that are Alphabetic (circled and squared letters).
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

std::string Normalize(NormalForm form, std::string_view text) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  // Below U+0300 everything is in NFC already, ASCII in every form.
  const unsigned char quick_limit = form == NormalForm::kNfc ? 0xCC : 0x80;
  if (std::all_of(text.begin(), text.end(),
                  [=](char c) { return static_cast<unsigned char>(c) < quick_limit; })) {
    return std::string(text);
  }

  const auto options =
      static_cast<utf8proc_option_t>((compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (compatibility ? UTF8PROC_COMPAT : 0) | UTF8PROC_STABLE);
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    utf8proc_int32_t parts[32];  // a decomposition has at most 18
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(front.code_point),
                                               parts, 32, options, &boundary);
    if (count > 0 && count <= 32) {
      code_points.insert(code_points.end(), parts, parts + count);
    } else {
      code_points.push_back(static_cast<utf8proc_int32_t>(front.code_point));
    }
    text.remove_prefix(front.length);
  }
  SortMarks(&code_points);
  auto count = static_cast<utf8proc_ssize_t>(code_points.size());
  if (compose) count = utf8proc_normalize_utf32(code_points.data(), count, options);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    AppendUtf8(static_cast<char32_t>(code_points[i]), &out);
  return out;
}

}  // namespace hydrant
