// The chat templates that are known, and how each writes a conversation. Immutable tables, thread
// safe.
#ifndef HYDRANT_ENGINE_TOKENIZER_CHAT_FAMILIES_H_
#define HYDRANT_ENGINE_TOKENIZER_CHAT_FAMILIES_H_

#include <span>
#include <string>
#include <string_view>

#include "engine/tokenizer/chat_template.h"

namespace hydrant {

struct ChatContext {
  std::string bos, eos;
  std::string default_system;  // captured from the template
};

struct ChatFamily {
  std::string_view name;
  // Jinja. @SYSTEM@ stands for the text of a default system message, @TOOLS@ for parts that only
  // matter to tools.
  std::string_view source;
  bool
      alternates;  // user, assistant, user, ...; after a first system message where those are taken
  bool takes_system;
  std::string (*render)(const ChatContext& context, std::span<const ChatMessage> messages,
                        bool add_generation_prompt);
};

std::span<const ChatFamily> KnownChatFamilies();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TOKENIZER_CHAT_FAMILIES_H_
