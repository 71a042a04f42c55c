#include "tools/eval/prompt_form.h"

#include "kernels/status_macros.h"

namespace hydrant::eval {

absl::StatusOr<PromptForm> PromptForm::Chat(const ChatTemplate& chat) {
  constexpr char kFirst[] = "FirstMessage", kAnswer[] = "ItsAnswer", kNext[] = "NextMessage";
  Conversation conversation;
  conversation.messages = {{.role = "user", .content = kFirst},
                           {.role = "assistant", .content = kAnswer},
                           {.role = "user", .content = kNext}};
  HYDRANT_ASSIGN_OR_RETURN(const std::string all, chat.Render(conversation));
  conversation.messages.resize(1);
  HYDRANT_ASSIGN_OR_RETURN(const std::string one, chat.Render(conversation));
  const size_t first = one.find(kFirst), answer = all.find(kAnswer), next = all.find(kNext);
  if (first == std::string::npos || answer == std::string::npos || next == std::string::npos)
    return absl::InvalidArgumentError("the chat template changes the texts of messages");
  const size_t answer_end = answer + sizeof(kAnswer) - 1;
  return PromptForm{.opening = one.substr(0, first),
                    .before_question = "\n\n",
                    .before_answer = one.substr(first + sizeof(kFirst) - 1),
                    .before_next_text = all.substr(answer_end, next - answer_end),
                    .before_next_question = all.substr(answer_end, next - answer_end),
                    .stop = "",
                    .has_special_tokens = true};
}

}  // namespace hydrant::eval
