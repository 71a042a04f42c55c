// How a text and a question about it are put to a model: as plain text, or as messages of its chat
// template. Plain data; texts of a chat hold special tokens.
#ifndef HYDRANT_TOOLS_EVAL_PROMPT_FORM_H_
#define HYDRANT_TOOLS_EVAL_PROMPT_FORM_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/text/chat/chat_template.h"

namespace hydrant::eval {

struct PromptForm {
  std::string opening;  // before the first text
  std::string before_question = "\n\nQuestion: ";
  std::string before_answer = "\nAnswer:";
  // After an answer:
  std::string before_next_text = "\n\n";
  std::string before_next_question = "\n\nQuestion: ";
  std::string stop = "\n";          // ends an answer, beside the model's end of text
  bool has_special_tokens = false;  // in the fields above

  static PromptForm Plain() { return {}; }
  // A text and its question are one message of the user. InvalidArgument: the template does not
  // render a conversation of three messages, or changes their texts.
  static absl::StatusOr<PromptForm> Chat(const ChatTemplate& chat);
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_PROMPT_FORM_H_
