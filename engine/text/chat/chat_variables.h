// Converts a conversation to template variables in transformers' form: messages, tools, documents,
// add_generation_prompt, special tokens, and the client's own variables. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_CHAT_CHAT_VARIABLES_H_
#define HYDRANT_ENGINE_TEXT_CHAT_CHAT_VARIABLES_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/value.h"

namespace hydrant {

// Limit of JSON bytes in a conversation: a parsed value takes many times its text.
inline constexpr size_t kMaxChatJsonBytes = 4 << 20;

// InvalidArgument begins with the field.
absl::StatusOr<jinja::Dict> ChatVariables(const Conversation& conversation,
                                          const std::map<std::string, std::string>& special_tokens,
                                          const jinja::Limits& limits);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_CHAT_CHAT_VARIABLES_H_
