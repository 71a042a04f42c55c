// Chat messages to the prompt text a model was trained on. Known template families are recognised
// in the model's own template; an unknown one is refused by name, never guessed. Immutable, thread
// safe.
#ifndef HYDRANT_ENGINE_TOKENIZER_CHAT_TEMPLATE_H_
#define HYDRANT_ENGINE_TOKENIZER_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  virtual std::string_view Family() const = 0;  // "chatml", "llama3", ...
  // InvalidArgument names the message index and what the family does not allow (a role, an order).
  // The text already contains BOS where the template writes it; encode with parse_special_tokens.
  virtual absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                             bool add_generation_prompt) const = 0;
};

// `source` is the Jinja text of the model's template; bos/eos are the literal texts of those tokens
// ("" = none). Unimplemented where the template is of no known family; the message quotes its
// beginning.
absl::StatusOr<std::unique_ptr<ChatTemplate>> RecogniseChatTemplate(std::string_view source,
                                                                    std::string_view bos,
                                                                    std::string_view eos);

class GgufFile;
// The template of a model's own files: GGUF metadata, or tokenizer_config.json /
// chat_template.jinja of a folder. NotFound where the model has none.
absl::StatusOr<std::string> ChatTemplateSourceFromGguf(const GgufFile& file);
absl::StatusOr<std::string> ChatTemplateSourceFromFolder(const std::string& folder);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TOKENIZER_CHAT_TEMPLATE_H_
