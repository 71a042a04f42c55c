#include "engine/text/grammar/ebnf_text.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/unicode/utf8.h"

namespace hydrant {
namespace {

// Writes one character in a form that has the same meaning within quotes and brackets.
void AppendCharacter(char32_t code_point, std::string* out) {
  constexpr std::u32string_view kSpecial = U"\"\\-^[]";
  if (code_point > 0xFFFF) {
    absl::StrAppendFormat(out, "\\U%08X", static_cast<uint32_t>(code_point));
  } else if (code_point < 0x20 || code_point >= 0x7F ||
             kSpecial.find(code_point) != kSpecial.npos) {
    absl::StrAppendFormat(out, "\\u%04X", static_cast<uint32_t>(code_point));
  } else {
    out->push_back(static_cast<char>(code_point));
  }
}

}  // namespace

std::string EbnfString(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    AppendCharacter(front.code_point, &out);
    text.remove_prefix(front.length);
  }
  return out + '"';
}

std::string EbnfClass(const CodePointSet& set) {
  std::string out = "[";
  for (const CodePointRange& range : set) {
    AppendCharacter(range.first, &out);
    if (range.last == range.first) continue;
    out.push_back('-');
    AppendCharacter(range.last, &out);
  }
  return out + ']';
}

std::string EbnfRepetition(const Repetition& repetition) {
  const auto [least, most] = repetition;
  if (most < 0) {
    if (least == 0) return "*";
    return least == 1 ? "+" : absl::StrCat("{", least, ",}");
  }
  if (least == 0 && most == 1) return "?";
  if (least == 1 && most == 1) return "";
  return absl::StrCat("{", least, ",", most, "}");
}

}  // namespace hydrant
