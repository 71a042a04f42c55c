#include "engine/text/unicode/utf8.h"

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  int length;         // 0: not a first byte
  uint8_t low, high;  // range of the second byte
};

Lead ReadLead(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Front ReadUtf8(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const Lead lead = ReadLead(first);
  if (lead.length == 0) return {Utf8Front::Kind::kIllFormed, 1, 0};
  if (lead.length == 1) return {Utf8Front::Kind::kCharacter, 1, first};
  char32_t code_point = first & (0xFF >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {Utf8Front::Kind::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Front::Kind::kIllFormed, i, 0};
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {Utf8Front::Kind::kCharacter, lead.length, code_point};
}

absl::Status ValidateUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Front front = ReadUtf8(text.substr(at));
    if (front.kind != Utf8Front::Kind::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", at));
    }
    at += front.length;
  }
  return absl::OkStatus();
}

void AppendUtf8(char32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    out->push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    out->push_back(static_cast<char>(0x80 | ((code_point >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
}

void DrainUtf8(bool at_end, std::string* pending, std::string* out) {
  const std::string_view text = *pending;
  size_t at = 0;
  while (at < text.size()) {
    size_t ascii = at;
    while (ascii < text.size() && static_cast<uint8_t>(text[ascii]) < 0x80) ++ascii;
    if (ascii > at) {
      out->append(text, at, ascii - at);
      at = ascii;
      continue;
    }
    const Utf8Front front = ReadUtf8(text.substr(at));
    if (front.kind == Utf8Front::Kind::kIncomplete && !at_end) break;
    if (front.kind == Utf8Front::Kind::kCharacter) {
      out->append(text.substr(at, front.length));
    } else {
      out->append(kReplacement);
    }
    at += front.length;
  }
  pending->erase(0, at);
}

}  // namespace hydrant
