// The last step of encoding: the ids of one piece of text. Immutable, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SUBWORD_MODEL_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SUBWORD_MODEL_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  // Appends the ids of `piece`. Time O(n log n) for any text. REQUIRES: `piece` is valid UTF-8, or
  // was cut from it.
  virtual void Encode(std::string_view piece, std::vector<TokenId>* ids) const = 0;
};

// Byte-pair encoding: the pair of lowest merge rank is merged first (Sennrich et al., 2016).
// InvalidArgument names a merge with parts or a result missing in the vocabulary.
absl::StatusOr<std::unique_ptr<SubwordModel>> MakeRankedBpe(const TokenizerSpec& spec);

// SentencePiece's BPE: merges the adjacent pieces with the highest score of their concatenation.
absl::StatusOr<std::unique_ptr<SubwordModel>> MakeScoredBpe(const TokenizerSpec& spec);

// The ids of "<0x00>".."<0xFF>" (-1: none).
std::vector<int64_t> FindByteTokens(const TokenizerSpec& spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SUBWORD_MODEL_H_
