#include "engine/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "engine/text/tokenizer/unicode.h"
#include "engine/text/unicode/utf8.h"

namespace hydrant {
namespace {

uint64_t Edge(uint32_t node, char byte) {
  return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
}

// The start of the last character of a non-empty text.
size_t LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool EndsInWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(ReadUtf8(text.substr(LastCharacter(text))).code_point);
}

bool StartsInWord(std::string_view text) {
  return !text.empty() && IsWordCharacter(ReadUtf8(text).code_point);
}

size_t StripEnd(std::string_view text) {
  while (!text.empty()) {
    const size_t last = LastCharacter(text);
    if (!IsWhiteSpace(ReadUtf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

size_t CountLeadingSpace(std::string_view text) {
  size_t count = 0;
  while (count < text.size()) {
    const Utf8Front front = ReadUtf8(text.substr(count));
    if (!IsWhiteSpace(front.code_point)) break;
    count += front.length;
  }
  return count;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), end_(1, -1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    if (content.empty()) continue;
    starts_[static_cast<uint8_t>(content[0])] = true;
    uint32_t node = 0;
    for (const char byte : content) {
      const auto [edge, added] =
          edges_.emplace(Edge(node, byte), static_cast<uint32_t>(end_.size()));
      node = edge->second;
      if (added) end_.push_back(-1);
    }
    if (end_[node] < 0) end_[node] = static_cast<int32_t>(i);
  }
}

const AddedToken* AddedTokenFinder::LongestAt(std::string_view text, size_t at) const {
  uint32_t node = 0;
  int32_t found = -1;
  for (; at < text.size(); ++at) {
    const auto edge = edges_.find(Edge(node, text[at]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (end_[node] >= 0) found = end_[node];
  }
  return found < 0 ? nullptr : &tokens_[static_cast<size_t>(found)];
}

std::vector<AddedTokenFinder::Section> AddedTokenFinder::Split(std::string_view text,
                                                               bool parse_special) const {
  std::vector<Section> sections;
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    const AddedToken* token =
        starts_[static_cast<uint8_t>(text[at])] ? LongestAt(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->special && !parse_special) continue;
    if (token->single_word && (EndsInWord(text.substr(0, begin)) || StartsInWord(text.substr(end))))
      continue;
    // White space stripped by the previous token stays with it.
    if (token->lstrip) begin = std::max(done, StripEnd(text.substr(0, begin)));
    if (token->rstrip) end += CountLeadingSpace(text.substr(end));
    if (done < begin) sections.push_back({done, begin, std::nullopt});
    sections.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) sections.push_back({done, text.size(), std::nullopt});
  return sections;
}

}  // namespace hydrant
