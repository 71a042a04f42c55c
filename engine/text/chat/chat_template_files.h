// Reads chat templates and the texts of special tokens from a model's files. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_FILES_H_
#define HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/text/chat/chat_template.h"

namespace hydrant {

class GgufFile;

// tokenizer.chat_template, and tokenizer.chat_template.NAME for every NAME of
// tokenizer.chat_templates. NotFound if the file has none.
absl::StatusOr<ChatTemplateSource> ReadChatTemplates(const GgufFile& file);

// chat_template.jinja with additional_chat_templates/NAME.jinja, else chat_template of
// tokenizer_config.json: one text, or a list of {"name", "template"}. NotFound if the folder has
// none. Special tokens come from tokenizer_config.json and special_tokens_map.json.
absl::StatusOr<ChatTemplateSource> ReadChatTemplates(const std::string& folder);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_FILES_H_
