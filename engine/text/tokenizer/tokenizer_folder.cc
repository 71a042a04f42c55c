// Finds the tokenizer files of a Hugging Face folder and applies the configuration files beside
// them: BOS, ends of generation.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/model/config_json.h"
#include "engine/model/small_file.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/sentencepiece_tokenizer.h"
#include "engine/text/tokenizer/tokenizer_json.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uintmax_t kMaxFileBytes = 256u << 20;

struct Configs {
  Json tokenizer, generation, model;
};

absl::StatusOr<Configs> ReadConfigs(const fs::path& folder) {
  Configs configs;
  for (const auto& [name, out] : {std::pair("tokenizer_config.json", &configs.tokenizer),
                                  std::pair("generation_config.json", &configs.generation),
                                  std::pair("config.json", &configs.model)}) {
    HYDRANT_ASSIGN_OR_RETURN(*out, ReadConfigJson(folder / name, kMaxFileBytes));
  }
  // Multimodal models have a separate text configuration.
  for (const char* field : {"bos_token_id", "eos_token_id"}) {
    const auto text = configs.model.find("text_config");
    if (text == configs.model.end() || !text->is_object()) break;
    if (text->contains(field) && !configs.model.contains(field))
      configs.model[field] = (*text)[field];
  }
  return configs;
}

// "bos_token": a text or {"content": a text}; "" if there is none.
std::string NamedToken(const Json& config, const char* field) {
  const auto found = config.find(field);
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  return "";
}

// "eos_token_id": one id or a list.
absl::Status AppendIds(const Json& config, const char* field, std::vector<TokenId>* ids) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  for (const Json& id : found->is_array() ? *found : Json::array({*found})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocabSize) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": ", Quoted(id.dump(-1, ' ', true, Json::error_handler_t::replace)),
                       " is not a token id"));
    }
    ids->push_back(id.get<TokenId>());
  }
  return absl::OkStatus();
}

int64_t FindToken(const TokenizerSpec& spec, const std::string& text) {
  if (text.empty()) return -1;
  for (const AddedToken& token : spec.added) {
    if (token.content == text) return token.id;
  }
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].kind != TokenKind::kAbsent && spec.vocab[id].text == text)
      return static_cast<int64_t>(id);
  }
  return -1;
}

// BOS and EOS come from tokenizer_config.json, otherwise from config.json's first ids.
absl::Status AddConfigs(const Configs& configs, TokenizerSpec* spec) {
  std::vector<TokenId> bos, eos;
  absl::Status status = AppendIds(configs.model, "bos_token_id", &bos);
  status.Update(AppendIds(configs.model, "eos_token_id", &eos));
  status.Update(AppendIds(configs.generation, "eos_token_id", &spec->eog_ids));
  if (!status.ok()) return status;
  spec->bos_id = FindToken(*spec, NamedToken(configs.tokenizer, "bos_token"));
  if (spec->bos_id < 0 && !bos.empty()) spec->bos_id = bos[0];
  spec->eos_id = FindToken(*spec, NamedToken(configs.tokenizer, "eos_token"));
  if (spec->eos_id < 0 && !eos.empty()) spec->eos_id = eos[0];
  if (spec->eos_id >= 0) eos.push_back(static_cast<TokenId>(spec->eos_id));
  spec->eog_ids.insert(spec->eog_ids.end(), eos.begin(), eos.end());
  return absl::OkStatus();
}

bool FlagOf(const Json& config, const char* field, bool otherwise) {
  const auto found = config.find(field);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromTokenizerJson(const fs::path& path) {
  HYDRANT_ASSIGN_OR_RETURN(auto text, ReadSmallFile(path, kMaxFileBytes));
  HYDRANT_ASSIGN_OR_RETURN(auto configs, ReadConfigs(path.parent_path()));
  HYDRANT_ASSIGN_OR_RETURN(auto spec, ParseTokenizerJson(text));
  HYDRANT_RETURN_IF_ERROR(AddConfigs(configs, &spec));
  if (spec.bos_id < 0 && spec.prefix.size() == 1) spec.bos_id = spec.prefix[0];
  return MakePipelineTokenizer(spec);
}

// The tokens with a role in tokenizer_config.json.
std::set<std::string> NamedSpecials(const Json& config) {
  std::set<std::string> names;
  for (const char* field : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
    names.insert(NamedToken(config, field));
  }
  const auto others = config.find("additional_special_tokens");
  if (others != config.end() && others->is_array()) {
    for (const Json& other : *others) names.insert(NamedToken({{"token", other}}, "token"));
  }
  names.erase("");
  return names;
}

// vocab.json and merges.txt do not mark special tokens: they are those named in
// tokenizer_config.json, otherwise the usual ones present in the vocabulary.
void AddSpecials(const Configs& configs, TokenizerSpec* spec) {
  std::set<std::string> names = NamedSpecials(configs.tokenizer);
  if (names.empty()) names = {"<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>"};
  for (const std::string& name : names) {
    const int64_t id = FindToken(*spec, name);
    if (id < 0) continue;
    AddedToken token;
    token.id = static_cast<TokenId>(id);
    token.content = name;
    token.special = true;
    spec->added.push_back(token);
  }
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromVocabAndMerges(const fs::path& folder) {
  HYDRANT_ASSIGN_OR_RETURN(auto vocab, ReadSmallFile(folder / "vocab.json", kMaxFileBytes));
  HYDRANT_ASSIGN_OR_RETURN(auto merges, ReadSmallFile(folder / "merges.txt", kMaxFileBytes));
  HYDRANT_ASSIGN_OR_RETURN(auto configs, ReadConfigs(folder));
  HYDRANT_ASSIGN_OR_RETURN(auto spec, ParseVocabAndMerges(vocab, merges));
  AddSpecials(configs, &spec);
  HYDRANT_RETURN_IF_ERROR(AddConfigs(configs, &spec));
  if (FlagOf(configs.tokenizer, "add_bos_token", false)) {
    if (spec.bos_id < 0)
      return absl::InvalidArgumentError("tokenizer_config.json: add_bos_token without a bos_token");
    spec.prefix = {static_cast<TokenId>(spec.bos_id)};
  }
  return MakePipelineTokenizer(spec);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromSentencePiece(const fs::path& path) {
  HYDRANT_ASSIGN_OR_RETURN(auto model, ReadSmallFile(path, kMaxFileBytes));
  HYDRANT_ASSIGN_OR_RETURN(auto configs, ReadConfigs(path.parent_path()));
  SentencePieceOptions options;
  options.add_bos = FlagOf(configs.tokenizer, "add_bos_token", true);
  options.add_eos = FlagOf(configs.tokenizer, "add_eos_token", false);
  options.prefix_first_only = !FlagOf(configs.tokenizer, "legacy", true);
  options.bos_token = NamedToken(configs.tokenizer, "bos_token");
  options.eos_token = NamedToken(configs.tokenizer, "eos_token");
  absl::Status status = AppendIds(configs.generation, "eos_token_id", &options.eog_ids);
  status.Update(AppendIds(configs.model, "eos_token_id", &options.eog_ids));
  if (!status.ok()) return status;
  return MakeSentencePieceTokenizer(model, options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromPath(const std::string& path) {
  const fs::path given(path);
  std::error_code error;
  if (!fs::exists(given, error))
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  if (!fs::is_directory(given, error)) {
    return given.extension() == ".json" ? FromTokenizerJson(given) : FromSentencePiece(given);
  }
  if (fs::exists(given / "tokenizer.json", error))
    return FromTokenizerJson(given / "tokenizer.json");
  if (fs::exists(given / "tokenizer.model", error))
    return FromSentencePiece(given / "tokenizer.model");
  if (fs::exists(given / "vocab.json", error)) return FromVocabAndMerges(given);
  return absl::NotFoundError(absl::StrCat(
      path, ": has no tokenizer.json, tokenizer.model, or vocab.json with merges.txt"));
}

}  // namespace hydrant
