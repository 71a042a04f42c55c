#include "engine/text/tokenizer/gguf_added_tokens.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer/space_escaping.h"

namespace hydrant {
namespace {

TokenKind KindOf(int64_t type) {
  switch (type) {
    case kGgufUnknown:
    case kGgufControl:
    case kGgufUserDefined:
      return TokenKind::kControl;
    case kGgufUnused:
      return TokenKind::kUnused;
    case kGgufByte:
      return TokenKind::kByte;
    default:
      return TokenKind::kNormal;
  }
}

// Gemma's runs of spaces. Converters write spaces or keep SentencePiece's U+2581.
bool HasSpaces(std::string_view text) {
  return text.find(' ') != std::string_view::npos ||
         text.find(kSpaceMark) != std::string_view::npos;
}

std::string WithMarks(std::string_view text) {
  std::string marked;
  for (const char c : text) {
    if (c == ' ') {
      marked += kSpaceMark;
    } else {
      marked += c;
    }
  }
  return marked;
}

}  // namespace

void AppendGgufToken(std::string_view text, int64_t type, float score, TokenizerSpec* spec) {
  const TokenKind kind = KindOf(type);
  const bool sentence_piece = spec->algorithm == TokenizerSpec::Algorithm::kMergeScores;
  if (kind == TokenKind::kControl) {
    AddedToken added;
    added.id = static_cast<TokenId>(spec->vocab.size());
    added.content = std::string(text);
    added.special = type != kGgufUserDefined;
    if (type == kGgufUserDefined && sentence_piece && HasSpaces(text)) {
      added.content = WithMarks(text);
      added.escaped = true;
    }
    spec->added.push_back(std::move(added));
  }
  spec->vocab.push_back({std::string(text), kind, score});
}

void AdmitMergedTokens(TokenizerSpec* spec) {
  absl::flat_hash_map<std::string, TokenId> own;
  for (const AddedToken& token : spec->added) {
    if (!token.special) own.emplace(token.content, token.id);
  }
  if (own.empty()) return;
  for (const auto& [left, right] : spec->merges) {
    const auto found = own.find(left + right);
    if (found != own.end()) spec->vocab[found->second].kind = TokenKind::kNormal;
  }
}

void SetGgufStripping(std::string_view architecture, std::string_view pre, TokenizerSpec* spec) {
  static constexpr std::array<std::string_view, 4> kPlain = {"<unk>", "<s>", "<|endoftext|>",
                                                             "<|endofprompt|>"};
  if (architecture != "phi3") return;
  const bool phi4 = pre == "dbrx";                           // strips on both sides of every token
  const bool phi3_or_mini = pre.empty() || pre == "gpt-4o";  // strips after all but kPlain
  for (AddedToken& token : spec->added) {
    const bool plain = std::ranges::find(kPlain, token.content) != kPlain.end();
    token.lstrip = phi4;
    token.rstrip = phi4 || (phi3_or_mini && !plain);
  }
}

}  // namespace hydrant
