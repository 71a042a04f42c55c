#include "engine/text/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/bytes_per_token_bound.h"
#include "engine/text/tokenizer/json_components.h"
#include "engine/text/tokenizer/json_fields.h"
#include "engine/text/tokenizer/split_patterns.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

// Parses and reports duplicate keys in the object at `object_path` (the parser silently keeps the
// last one).
absl::StatusOr<Json> ParseWithUniqueKeys(std::string_view text,
                                         const std::vector<std::string>& object_path) {
  std::vector<std::string> path;
  absl::flat_hash_set<std::string> seen;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key || depth < 1) return true;
    path.resize(static_cast<size_t>(depth) - 1);
    if (path == object_path && !seen.insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    if (path.size() < 3) path.push_back(parsed.get<std::string>());
    return true;
  };
  Json root = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (root.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  if (!root.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (!twice.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary: ", Quoted(twice), " is listed twice"));
  return root;
}

absl::Status ReadVocab(const Json& vocab, TokenizerSpec* spec) {
  if (!vocab.is_object()) return absl::InvalidArgumentError("model.vocab: not an object");
  for (const auto& [text, value] : vocab.items()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxVocabSize) {
      return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", Quoted(text), " has the id ",
                                                     value.dump(), "; ids are 0 to ",
                                                     kMaxVocabSize - 1));
    }
    const auto id = value.get<size_t>();
    if (id >= spec->vocab.size()) spec->vocab.resize(id + 1);
    VocabEntry& entry = spec->vocab[id];
    if (entry.kind != TokenKind::kAbsent) {
      return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", Quoted(text), " and ",
                                                     Quoted(entry.text), " have the same id ", id));
    }
    entry = {text, TokenKind::kNormal, 0};
  }
  return absl::OkStatus();
}

absl::Status AddMerge(std::string_view line, size_t rank, TokenizerSpec* spec) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merges: entry ", rank, " is not two texts with a space between: ", Quoted(line)));
  }
  spec->merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  return absl::OkStatus();
}

absl::Status ReadMerges(const Json& merges, TokenizerSpec* spec) {
  if (!merges.is_array()) return absl::InvalidArgumentError("model.merges: not a list");
  for (const Json& merge : merges) {
    const size_t rank = spec->merges.size();
    if (merge.is_string()) {
      HYDRANT_RETURN_IF_ERROR(AddMerge(merge.get_ref<const std::string&>(), rank, spec));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      spec->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("model.merges: entry ", rank, " is not a pair of texts"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& model, TokenizerSpec* spec) {
  JsonFields fields(model, "model");
  const std::string type = fields.String("type", "BPE");
  if (type != "BPE")
    return absl::UnimplementedError(absl::StrCat("model.type ", Quoted(type), " is not supported"));
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.String(affix, "").empty()) {
      return absl::UnimplementedError(absl::StrCat("model.", affix, " is not supported"));
    }
  }
  if (const auto dropout = model.find("dropout");
      dropout != model.end() && !dropout->is_null() &&
      !(dropout->is_number() && dropout->get<double>() == 0)) {
    return absl::UnimplementedError("model.dropout is not supported: encoding would be random");
  }
  spec->byte_fallback = fields.Bool("byte_fallback", false);
  spec->ignore_merges = fields.Bool("ignore_merges", false);
  spec->fuse_unknown = fields.Bool("fuse_unk", false);
  const std::string unknown = fields.String("unk_token", "");
  HYDRANT_RETURN_IF_ERROR(fields.status());
  if (!model.contains("vocab")) return absl::InvalidArgumentError("model.vocab: missing");
  if (!model.contains("merges")) return absl::InvalidArgumentError("model.merges: missing");
  HYDRANT_RETURN_IF_ERROR(ReadVocab(model["vocab"], spec));
  HYDRANT_RETURN_IF_ERROR(ReadMerges(model["merges"], spec));
  if (unknown.empty()) return absl::OkStatus();
  for (size_t id = 0; id < spec->vocab.size(); ++id) {
    if (spec->vocab[id].text == unknown) spec->unknown_id = static_cast<int64_t>(id);
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& list, TokenizerSpec* spec) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return absl::InvalidArgumentError("added_tokens: not a list");
  for (const Json& item : list) {
    const std::string where = absl::StrCat("added_tokens[", spec->added.size(), "]");
    JsonFields fields(item, where);
    AddedToken token;
    const int64_t id = fields.Int("id", -1);
    token.content = fields.String("content", "");
    token.special = fields.Bool("special", false);
    token.single_word = fields.Bool("single_word", false);
    token.lstrip = fields.Bool("lstrip", false);
    token.rstrip = fields.Bool("rstrip", false);
    token.normalized = fields.Bool("normalized", !token.special);
    HYDRANT_RETURN_IF_ERROR(fields.status());
    if (id < 0 || id >= kMaxVocabSize) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".id is ", id, "; ids are 0 to ", kMaxVocabSize - 1));
    }
    token.id = static_cast<TokenId>(id);
    if (token.id < spec->vocab.size() && spec->vocab[token.id].kind != TokenKind::kAbsent &&
        spec->vocab[token.id].text != token.content) {
      return absl::InvalidArgumentError(absl::StrCat(where, " ", Quoted(token.content),
                                                     " has the id of ",
                                                     Quoted(spec->vocab[token.id].text), ", ", id));
    }
    spec->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json) {
  HYDRANT_ASSIGN_OR_RETURN(auto root, ParseWithUniqueKeys(json, {"model", "vocab"}));
  const auto part = [&](const char* name) {
    const auto found = root.find(name);
    return found == root.end() ? Json() : *found;
  };
  TokenizerSpec spec;
  HYDRANT_RETURN_IF_ERROR(ReadModel(part("model"), &spec));
  HYDRANT_RETURN_IF_ERROR(ReadAddedTokens(part("added_tokens"), &spec));
  HYDRANT_RETURN_IF_ERROR(ReadNormalizer(part("normalizer"), &spec));
  HYDRANT_RETURN_IF_ERROR(ReadPreTokenizer(part("pre_tokenizer"), &spec));
  HYDRANT_RETURN_IF_ERROR(ReadPostProcessor(part("post_processor"), &spec));
  HYDRANT_RETURN_IF_ERROR(ReadDecoder(part("decoder"), &spec));
  if (spec.byte_level && spec.unknown_id >= 0 && !AllBytesHaveTokens(spec)) {
    // The reference would map unknown bytes to this id.
    return absl::UnimplementedError(
        "model.unk_token with a ByteLevel pre_tokenizer is not supported where bytes have no "
        "token");
  }
  return spec;
}

absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(std::string_view vocab_json,
                                                  std::string_view merges) {
  HYDRANT_ASSIGN_OR_RETURN(auto vocab, ParseWithUniqueKeys(vocab_json, {}));
  TokenizerSpec spec;
  HYDRANT_RETURN_IF_ERROR(ReadVocab(vocab, &spec));
  size_t line_number = 0;
  while (!merges.empty()) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const bool header = line_number++ == 0 && line.substr(0, 8) == "#version";
    if (line.empty() || header) continue;
    HYDRANT_RETURN_IF_ERROR(AddMerge(line, spec.merges.size(), &spec));
  }
  spec.byte_level = true;
  spec.decoder.byte_alphabet = true;
  PreTokenizerSpec split;
  split.regex = std::string(kGpt2Pattern);
  spec.pre_tokenizers.push_back(split);
  return spec;
}

}  // namespace hydrant
