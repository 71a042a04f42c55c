#include "engine/text/chat/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/text.h"
#include "engine/text/chat/chat_variables.h"
#include "engine/text/jinja/template.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr char kDefault[] = "default", kToolUse[] = "tool_use";

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::map<std::string, std::unique_ptr<jinja::Template>> templates,
                    std::map<std::string, std::string> special_tokens, ChatClock clock)
      : templates_(std::move(templates)),
        special_tokens_(std::move(special_tokens)),
        clock_(std::move(clock)),
        names_(absl::StrJoin(templates_, ", ", [](std::string* out, const auto& entry) {
          absl::StrAppend(out, entry.first);
        })) {}

  std::string_view Names() const override { return names_; }

  absl::StatusOr<std::string> Render(const Conversation& conversation) const override {
    if (conversation.messages.empty())
      return absl::InvalidArgumentError("messages: is empty; a chat needs at least one message");
    HYDRANT_ASSIGN_OR_RETURN(const jinja::Dict variables,
                             ChatVariables(conversation, special_tokens_, jinja::Limits()));
    absl::StatusOr<std::string> text =
        Choose(conversation.tools_json.has_value()).Render(variables, clock_());
    if (text.ok()) return text;
    return absl::InvalidArgumentError(absl::StrCat(
        "messages: the model's chat template refuses them: ", text.status().message()));
  }

 private:
  const jinja::Template& Choose(bool has_tools) const {
    auto found = templates_.find(kToolUse);
    if (!has_tools || found == templates_.end()) found = templates_.find(kDefault);
    return *found->second;
  }

  const std::map<std::string, std::unique_ptr<jinja::Template>> templates_;  // has kDefault
  const std::map<std::string, std::string> special_tokens_;
  const ChatClock clock_;
  const std::string names_;
};

}  // namespace

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return local;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(const ChatTemplateSource& source,
                                                               ChatClock clock) {
  std::map<std::string, std::unique_ptr<jinja::Template>> templates;
  for (const auto& [name, text] : source.templates) {
    absl::StatusOr<std::unique_ptr<jinja::Template>> parsed = jinja::Template::Parse(text);
    if (!parsed.ok())
      return WithContext(parsed.status(), absl::StrCat("the chat template ", Quoted(name)));
    templates[name] = *std::move(parsed);
  }
  if (!templates.contains(kDefault)) {
    return absl::NotFoundError(
        absl::StrCat("the model has chat templates, but none is named \"", kDefault, "\""));
  }
  for (const auto& [name, text] : source.special_tokens) {
    if (!ValidateUtf8(text).ok())
      return absl::InvalidArgumentError(absl::StrCat(name, " is not valid UTF-8"));
  }
  return std::make_unique<JinjaChatTemplate>(std::move(templates), source.special_tokens,
                                             std::move(clock));
}

}  // namespace hydrant
