#include "server/apis/tokenizer_archive.h"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/gguf.h"
#include "engine/model/small_file.h"
#include "engine/text/chat/chat_template_files.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr uintmax_t kMaxFileBytes = 64 << 20;
constexpr const char* kNames[] = {
    "tokenizer.json",     "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",  "tokenizer.model",       "vocab.json",
    "merges.txt",         "config.json",           "generation_config.json",
    "chat_template.jinja"};

constexpr uint16_t kVersion = 20;  // minimum version to extract: 2.0
constexpr uint16_t kUtf8Names = 1 << 11;
constexpr uint16_t kFirstDay = 0x21;  // 1980-01-01, the earliest date

void Put16(uint16_t value, std::string* to) {
  to->push_back(static_cast<char>(value & 0xFF));
  to->push_back(static_cast<char>(value >> 8));
}

void Put32(uint32_t value, std::string* to) {
  Put16(static_cast<uint16_t>(value & 0xFFFF), to);
  Put16(static_cast<uint16_t>(value >> 16), to);
}

// The fields common to a file's header and its directory entry.
void PutEntry(const std::string& name, const std::string& bytes, std::string* to) {
  const auto size = static_cast<uint32_t>(bytes.size());
  Put16(kVersion, to);
  Put16(kUtf8Names, to);
  Put16(0, to);  // stored
  Put16(0, to);  // time
  Put16(kFirstDay, to);
  Put32(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), size)), to);
  Put32(size, to);  // compressed size
  Put32(size, to);
  Put16(static_cast<uint16_t>(name.size()), to);
  Put16(0, to);  // no extra field
}

using Files = std::map<std::string, std::string>;

absl::StatusOr<Files> FromFolder(const std::string& folder) {
  Files files;
  for (const char* name : kNames) {
    absl::StatusOr<std::string> bytes =
        ReadSmallFile(std::filesystem::path(folder) / name, kMaxFileBytes);
    if (absl::IsNotFound(bytes.status())) continue;
    HYDRANT_RETURN_IF_ERROR(bytes.status());
    files.emplace(name, *std::move(bytes));
  }
  if (files.empty()) return absl::NotFoundError(absl::StrCat(folder, " has none"));
  return files;
}

// A single template as its text, several as a list with names.
nlohmann::json TemplatesOf(const ChatTemplateSource& chat) {
  if (chat.templates.size() == 1) return chat.templates.begin()->second;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, text] : chat.templates)
    list.push_back({{"name", name}, {"template", text}});
  return list;
}

// The fields of tokenizer_config.json that transformers reads.
std::string ConfigOf(const ServedModel& model, const GgufFile& file) {
  nlohmann::json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false},
                           {"model_max_length", model.limits.max_model_len}};
  const auto name = [&](const char* key, int64_t id) {
    if (id >= 0) config[key] = model.tokenizer->TokenText(static_cast<TokenId>(id));
  };
  name("bos_token", model.tokenizer->bos_id());
  name("eos_token", model.tokenizer->eos_id());
  const absl::StatusOr<ChatTemplateSource> chat = ReadChatTemplates(file);
  if (chat.ok()) config["chat_template"] = TemplatesOf(*chat);
  return config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<Files> FromGguf(const ServedModel& model) {
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(model.path));
  HYDRANT_ASSIGN_OR_RETURN(std::string tokenizer, TokenizerJsonFromGguf(*file));
  return Files{{"tokenizer.json", std::move(tokenizer)},
               {"tokenizer_config.json", ConfigOf(model, *file)}};
}

}  // namespace

std::string ZipOf(const std::map<std::string, std::string>& files) {
  std::string archive, directory;
  for (const auto& [name, bytes] : files) {
    const auto begin = static_cast<uint32_t>(archive.size());
    Put32(0x04034b50, &archive);
    PutEntry(name, bytes, &archive);
    archive += name;
    archive += bytes;
    Put32(0x02014b50, &directory);
    Put16(kVersion, &directory);  // made by
    PutEntry(name, bytes, &directory);
    Put16(0, &directory);  // no comment
    Put16(0, &directory);  // disk number
    Put16(0, &directory);  // internal attributes
    Put32(0, &directory);
    Put32(begin, &directory);
    directory += name;
  }
  const auto begin = static_cast<uint32_t>(archive.size());
  archive += directory;
  Put32(0x06054b50, &archive);
  Put32(0, &archive);  // disk numbers
  Put16(static_cast<uint16_t>(files.size()), &archive);
  Put16(static_cast<uint16_t>(files.size()), &archive);
  Put32(static_cast<uint32_t>(directory.size()), &archive);
  Put32(begin, &archive);
  Put16(0, &archive);  // no comment
  return archive;
}

absl::StatusOr<std::map<std::string, std::string>> TokenizerFiles(const ServedModel& model) {
  absl::StatusOr<Files> files =
      model.tokenizer_folder.empty() ? FromGguf(model) : FromFolder(model.tokenizer_folder);
  if (files.ok()) return files;
  return absl::FailedPreconditionError(
      absl::StrCat("the tokenizer's files: ", files.status().message(),
                   "; hydrantd --tokenizer FOLDER names one that has tokenizer.json"));
}

}  // namespace hydrant
