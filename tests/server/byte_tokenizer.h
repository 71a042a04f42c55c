// A tokenizer with the bytes as ids 0..255; 256 is "<s>" (BOS), 257 "</s>" (EOS), 258 a text of 4
// KiB. And a chat template of one line a message, which requires a user message. Immutable once it
// is used.
#ifndef HYDRANT_TESTS_SERVER_BYTE_TOKENIZER_H_
#define HYDRANT_TESTS_SERVER_BYTE_TOKENIZER_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/unicode/utf8.h"

namespace hydrant {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr TokenId kBos = 256, kEos = 257, kLong = 258, kVocab = 259;

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override {
    if (before_encode) before_encode(text);
    if (absl::Status valid = ValidateUtf8(text); !valid.ok()) return valid;
    std::vector<TokenId> ids;
    if (options.add_special_tokens) ids.push_back(kBos);
    while (!text.empty()) {
      if (options.parse_special_tokens && text.starts_with("<s>")) {
        ids.push_back(kBos);
        text.remove_prefix(3);
      } else {
        ids.push_back(static_cast<unsigned char>(text[0]));
        text.remove_prefix(1);
      }
    }
    return ids;
  }
  std::string TokenBytes(TokenId id, bool skip_special, bool) const override {
    if (id < 256) return std::string(1, static_cast<char>(id));
    if (id == kLong) return std::string(4096, 'x');
    return skip_special ? "" : TokenText(id);
  }
  TokenId VocabSize() const override { return kVocab; }
  bool IsSpecial(TokenId id) const override { return id == kBos || id == kEos; }
  int64_t bos_id() const override { return kBos; }
  const std::vector<TokenId>& eog_ids() const override { return eog_; }
  std::optional<int64_t> MaxBytesPerToken() const override { return 3; }  // "<s>"
  std::string TokenText(TokenId id) const override {
    return id == kBos ? "<s>" : id == kEos ? "</s>" : "";
  }

  // Set before use; may block.
  std::function<void(std::string_view text)> before_encode;

 private:
  std::vector<TokenId> eog_ = {kEos};
};

class LineTemplate final : public ChatTemplate {
 public:
  std::string_view Names() const override { return "lines"; }
  absl::StatusOr<std::string> Render(const Conversation& conversation) const override {
    std::string text = "<s>";
    bool asked = false;
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      const ChatMessage& message = conversation.messages[i];
      if (message.role != "user" && message.role != "assistant") {
        return absl::InvalidArgumentError(
            absl::StrCat("messages: message ", i, ": role ", message.role, " is not allowed"));
      }
      asked = asked || message.role == "user";
      absl::StrAppend(&text, message.role, ":", message.content.value_or(""), "\n");
    }
    if (!asked) return absl::InvalidArgumentError("messages: a user message is missing");
    return conversation.add_generation_prompt ? text + "assistant:" : text;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_BYTE_TOKENIZER_H_
