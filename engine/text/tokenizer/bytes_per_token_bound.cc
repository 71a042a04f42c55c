#include "engine/text/tokenizer/bytes_per_token_bound.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/text/tokenizer/byte_alphabet.h"
#include "engine/text/tokenizer/subword_model.h"

namespace hydrant {
namespace {

// Maximum shrinkage by Unicode's normal forms: U+1FBE U+0308 U+0301, seven bytes, become the two of
// U+0390; the four bytes of a mathematical letter become one ASCII letter.
constexpr int64_t kUnicodeShrinkage = 4;
constexpr int64_t kMaxBytesPerTokenByte = 1 << 20;  // useless beyond, and avoids overflow

std::optional<int64_t> ShrinkageOf(const NormalizerSpec& step) {
  using Kind = NormalizerSpec::Kind;
  const auto pattern = static_cast<int64_t>(step.pattern.size());
  const auto content = static_cast<int64_t>(step.content.size());
  switch (step.kind) {
    case Kind::kNfc:
    case Kind::kNfd:
    case Kind::kNfkc:
    case Kind::kNfkd:
      return kUnicodeShrinkage;
    case Kind::kPrepend:
      return 1;
    case Kind::kReplace:
      if (content == 0) return std::nullopt;
      return std::max<int64_t>(1, (pattern + content - 1) / content);
    case Kind::kReplaceRegex:
      return std::nullopt;  // a match may have any length
  }
  return std::nullopt;
}

bool OccursInUtf8(int byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }

bool EveryByteFallsBack(const TokenizerSpec& spec) {
  if (!spec.byte_fallback) return false;
  const std::vector<int64_t> ids = FindByteTokens(spec);
  for (int byte = 0; byte < 256; ++byte) {
    if (OccursInUtf8(byte) && ids[byte] < 0) return false;
  }
  return true;
}

// Whether unknown text becomes tokens in proportion to its length.
bool KeepsUnknownText(const TokenizerSpec& spec) {
  switch (spec.algorithm) {
    case TokenizerSpec::Algorithm::kMergeRanks:
      if (spec.byte_level) return AllBytesHaveTokens(spec);
      return EveryByteFallsBack(spec) || (spec.unknown_id >= 0 && !spec.fuse_unknown);
    case TokenizerSpec::Algorithm::kMergeScores:
      return EveryByteFallsBack(spec);  // else neighbours are fused
    case TokenizerSpec::Algorithm::kSentencePiece:
      return false;  // the library's normalizer may remove any text
  }
  return false;
}

}  // namespace

bool AllBytesHaveTokens(const TokenizerSpec& spec) {
  std::array<bool, 256> known{};
  for (const VocabEntry& entry : spec.vocab) {
    if (entry.kind == TokenKind::kAbsent || entry.kind == TokenKind::kControl) continue;
    const std::optional<std::string> bytes = BytesFromAlphabet(entry.text);
    if (bytes.has_value() && bytes->size() == 1) known[static_cast<uint8_t>((*bytes)[0])] = true;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (OccursInUtf8(byte) && !known[byte]) return false;
  }
  return true;
}

std::optional<int64_t> BytesPerTokenBound(const TokenizerSpec& spec) {
  const bool strips =
      std::any_of(spec.added.begin(), spec.added.end(),
                  [](const AddedToken& token) { return token.lstrip || token.rstrip; });
  const bool removes = std::any_of(spec.pre_tokenizers.begin(), spec.pre_tokenizers.end(),
                                   [](const PreTokenizerSpec& step) {
                                     return step.kind == PreTokenizerSpec::Kind::kSplit &&
                                            step.behavior == SplitBehavior::kRemoved;
                                   });
  if (strips || removes || !KeepsUnknownText(spec)) return std::nullopt;
  int64_t shrinkage = 1;
  for (const NormalizerSpec& step : spec.normalizers) {
    const std::optional<int64_t> factor = ShrinkageOf(step);
    if (!factor.has_value()) return std::nullopt;
    shrinkage *= *factor;
    if (shrinkage > kMaxBytesPerTokenByte) return std::nullopt;
  }
  return shrinkage;
}

}  // namespace hydrant
