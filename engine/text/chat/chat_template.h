// Renders a conversation into prompt text with the model's own Jinja template, as transformers'
// apply_chat_template does. Immutable, thread safe.
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
  std::string arguments_json;  // a JSON object; "": no members
};

// Templates see an unset field as undefined.
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool", or another role of the template
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
  // InvalidArgument begins with the invalid field: "messages[1].tool_calls[0].arguments_json: ...",
  // or "messages: the chat template ...", with the template's own message. The text contains BOS if
  // the template writes it; encode with parse_special_tokens.
  virtual absl::StatusOr<std::string> Render(const Conversation& conversation) const = 0;
};

// Chat templates and special tokens from a model's files.
struct ChatTemplateSource {
  std::map<std::string, std::string> templates;       // Jinja sources by name
  std::map<std::string, std::string> special_tokens;  // texts of "bos_token" and so on
};

using ChatClock = std::function<std::tm()>;
std::tm LocalTime();

// With several templates, "tool_use" is used if tools are given, else "default"; a single template
// is always used. `clock` provides the date for templates that print it. An error names the
// template and the line.
absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(const ChatTemplateSource& source,
                                                               ChatClock clock = LocalTime);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_
