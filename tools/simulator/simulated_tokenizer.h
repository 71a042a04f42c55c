// A tokenizer without text for its tokens.
#ifndef HYDRANT_TOOLS_SIMULATOR_SIMULATED_TOKENIZER_H_
#define HYDRANT_TOOLS_SIMULATOR_SIMULATED_TOKENIZER_H_

#include <string>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::sim {

class SimulatedTokenizer final : public Tokenizer {
 public:
  explicit SimulatedTokenizer(TokenId vocab_size) : vocab_size_(vocab_size) {}

  // About the token density of English.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions&) const override {
    constexpr size_t kBytesPerToken = 4;
    return std::vector<TokenId>((text.size() + kBytesPerToken - 1) / kBytesPerToken, 0);
  }
  std::string TokenBytes(TokenId, bool, bool) const override { return ""; }
  TokenId VocabSize() const override { return vocab_size_; }
  bool IsSpecial(TokenId) const override { return false; }
  int64_t bos_id() const override { return -1; }
  const std::vector<TokenId>& eog_ids() const override { return none_; }
  std::string TokenText(TokenId) const override { return ""; }

 private:
  const TokenId vocab_size_;
  const std::vector<TokenId> none_;
};

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_SIMULATED_TOKENIZER_H_
