// Finds added and special tokens in text before normalization: leftmost, then longest, with the
// stripping and whole-word rules of Hugging Face's AddedToken. Immutable, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_ADDED_TOKENS_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

class AddedTokenFinder {
 public:
  struct Section {
    size_t begin, end;          // bytes of the text
    std::optional<TokenId> id;  // nullopt: ordinary text
  };

  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // The text as sections in order; only a token swallowed by a neighbour's stripping is empty.
  // `parse_special` false: special tokens are ordinary text.
  std::vector<Section> Split(std::string_view text, bool parse_special) const;

 private:
  // The longest token that starts at text[at]; nullptr if there is none.
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) -> node, node 0 is the root; end_[node] is an index into tokens_ or -1.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> end_;
  std::array<bool, 256> starts_{};  // first bytes of the tokens
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_ADDED_TOKENS_H_
