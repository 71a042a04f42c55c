// A tokenizer of 1000 ids with predictable texts: ids 0..255 are single bytes, the others are their
// number and a space ("300 "); id 999 ends a text.
#ifndef HYDRANT_TESTS_SCHEDULER_FAKE_TOKENIZER_H_
#define HYDRANT_TESTS_SCHEDULER_FAKE_TOKENIZER_H_

#include <map>
#include <string>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

class FakeTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kVocab = 1000;
  static constexpr TokenId kEog = 999;

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions&) const override {
    return std::vector<TokenId>(text.begin(), text.end());
  }
  std::string TokenBytes(TokenId id, bool skip_special, bool) const override {
    if (id == kEog) return skip_special ? "" : "<eog>";
    const auto it = texts.find(id);
    if (it != texts.end()) return it->second;
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::to_string(id) + " ";
  }
  TokenId VocabSize() const override { return kVocab; }
  bool IsSpecial(TokenId id) const override { return id == kEog; }
  int64_t bos_id() const override { return -1; }
  const std::vector<TokenId>& eog_ids() const override { return eog_; }
  std::string TokenText(TokenId id) const override { return id == kEog ? "<eog>" : ""; }

  std::map<TokenId, std::string> texts;  // set before use; overrides the rule above

 private:
  std::vector<TokenId> eog_ = {kEog};
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_FAKE_TOKENIZER_H_
