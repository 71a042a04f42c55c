// A conversation to the prompt text a model was trained on, by the model's own Jinja template, as
// transformers' apply_chat_template does it. Immutable, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_
#define HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant {

struct ToolCall {
  std::string id;  // "": none
  std::string name;
  std::string arguments_json;  // a JSON object; "": one without members
};

// Templates see a field that is not given as undefined.
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool", or what else the template takes
  std::optional<std::string> content;
  std::optional<std::string> reasoning = {};  // "reasoning_content" and "thinking" in templates
  std::vector<ToolCall> tool_calls = {};
  std::optional<std::string> tool_call_id = {}, name = {};  // of a tool's result
};

struct Conversation {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::optional<std::string> tools_json = {};            // a JSON array of objects
  std::optional<std::string> template_kwargs_json = {};  // a JSON object: further variables
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  // The names of the model's templates: "default", or "default, tool_use".
  virtual std::string_view Names() const = 0;
  // InvalidArgument begins with the field that is wrong: "messages[1].tool_calls[0].arguments_json:
  // ...", or "messages: the chat template ...", with the words of the template that refuses them.
  // The text already contains BOS where the template writes it; encode with parse_special_tokens.
  virtual absl::StatusOr<std::string> Render(const Conversation& conversation) const = 0;
};

// What a model's files say of its chats.
struct ChatTemplateSource {
  std::map<std::string, std::string> templates;       // Jinja texts by name
  std::map<std::string, std::string> special_tokens;  // "bos_token" and so on to their texts
};

using ChatClock = std::function<std::tm()>;
std::tm LocalTime();

// Of several templates "tool_use" is taken where tools are given, else "default"; one that stands
// alone is taken always. `clock` is asked where a template writes the date. An error names the
// template and the line.
absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(const ChatTemplateSource& source,
                                                               ChatClock clock = LocalTime);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_
