#include "engine/text/chat/chat_template_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/model/config_json.h"
#include "engine/model/gguf.h"
#include "engine/model/small_file.h"
#include "engine/model/text.h"
#include "engine/text/jinja/limits.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uintmax_t kMaxConfigBytes = 64u << 20;  // of tokenizer_config.json, with its added tokens
constexpr size_t kMaxTemplates = 64;
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// "bos_token": a text or {"content": a text}. Keeps tokens that are set already.
void AddSpecialTokens(const Json& config, std::map<std::string, std::string>* tokens) {
  for (const char* name : kSpecialTokens) {
    auto found = config.find(name);
    if (found == config.end()) continue;
    const Json& token =
        found->is_object() && found->contains("content") ? (*found)["content"] : *found;
    if (token.is_string()) tokens->try_emplace(name, token.get<std::string>());
  }
}

absl::Status AddJinjaFiles(const fs::path& folder, std::map<std::string, std::string>* templates) {
  const uintmax_t max_bytes = jinja::Limits().max_template_bytes;
  const absl::StatusOr<std::string> text = ReadSmallFile(folder / "chat_template.jinja", max_bytes);
  if (!text.ok()) return absl::IsNotFound(text.status()) ? absl::OkStatus() : text.status();
  (*templates)["default"] = *text;
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder / "additional_chat_templates", error)) {
    if (entry.path().extension() != ".jinja" || templates->size() >= kMaxTemplates) continue;
    HYDRANT_ASSIGN_OR_RETURN((*templates)[entry.path().stem().string()],
                             ReadSmallFile(entry.path(), max_bytes));
  }
  return absl::OkStatus();
}

void AddConfigTemplates(const Json& config, std::map<std::string, std::string>* templates) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return;
  if (found->is_string()) (*templates)["default"] = found->get<std::string>();
  if (!found->is_array()) return;
  for (const Json& item : *found) {
    const bool named = item.is_object() && item.contains("name") && item["name"].is_string() &&
                       item.contains("template") && item["template"].is_string();
    if (named && templates->size() < kMaxTemplates)
      (*templates)[item["name"].get<std::string>()] = item["template"].get<std::string>();
  }
}

absl::Status AddSpecialTokens(const GgufFile& file, std::map<std::string, std::string>* tokens) {
  if (!file.Has("tokenizer.ggml.tokens")) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(const auto texts, file.GetStrings("tokenizer.ggml.tokens"));
  for (const auto& [field, name] :
       {std::pair("bos", "bos_token"), std::pair("eos", "eos_token"),
        std::pair("unknown", "unk_token"), std::pair("padding", "pad_token")}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", field, "_token_id");
    if (!file.Has(key)) continue;
    HYDRANT_ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
    if (id >= 0 && static_cast<uint64_t>(id) < texts.size())
      (*tokens)[name] = texts[static_cast<size_t>(id)];
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTemplateSource> ReadChatTemplates(const GgufFile& file) {
  const std::string key = "tokenizer.chat_template";
  ChatTemplateSource source;
  if (file.Has(key)) {
    HYDRANT_ASSIGN_OR_RETURN(source.templates["default"], file.GetString(key));
  }
  if (file.Has("tokenizer.chat_templates")) {
    HYDRANT_ASSIGN_OR_RETURN(const auto names, file.GetStrings("tokenizer.chat_templates"));
    if (names.size() > kMaxTemplates) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.chat_templates: ", names.size(),
                                                     " templates; at most ", kMaxTemplates));
    }
    for (const auto& name : names) {
      HYDRANT_ASSIGN_OR_RETURN(source.templates[name],
                               file.GetString(absl::StrCat(key, ".", name)));
    }
  }
  if (source.templates.empty()) return absl::NotFoundError("the file has no chat template");
  HYDRANT_RETURN_IF_ERROR(AddSpecialTokens(file, &source.special_tokens));
  return source;
}

absl::StatusOr<ChatTemplateSource> ReadChatTemplates(const std::string& folder) {
  ChatTemplateSource source;
  HYDRANT_ASSIGN_OR_RETURN(
      const Json config,
      ReadConfigJson(fs::path(folder) / "tokenizer_config.json", kMaxConfigBytes));
  HYDRANT_ASSIGN_OR_RETURN(
      const Json map,
      ReadConfigJson(fs::path(folder) / "special_tokens_map.json", kMaxConfigBytes));
  HYDRANT_RETURN_IF_ERROR(AddJinjaFiles(folder, &source.templates));
  if (source.templates.empty()) AddConfigTemplates(config, &source.templates);
  if (source.templates.empty())
    return absl::NotFoundError(absl::StrCat(folder, ": no chat template"));
  AddSpecialTokens(config, &source.special_tokens);
  AddSpecialTokens(map, &source.special_tokens);
  return source;
}

}  // namespace hydrant
