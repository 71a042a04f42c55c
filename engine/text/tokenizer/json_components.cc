#include "engine/text/tokenizer/json_components.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/json_fields.h"
#include "engine/text/tokenizer/split_patterns.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

absl::Status Unsupported(const std::string& what, const std::string& type) {
  return absl::UnimplementedError(absl::StrCat(what, " ", Quoted(type), " is not supported"));
}

// Calls `read(component, type)` for a component or, in order, for the members of a (nested)
// Sequence.
absl::Status ForEachComponent(
    const Json& component, const std::string& where, const char* list_name,
    const std::function<absl::Status(const Json&, const std::string&)>& read, int depth = 0) {
  if (component.is_null()) return absl::OkStatus();
  if (depth > 8)
    return absl::InvalidArgumentError(absl::StrCat(where, ": nested more than 8 deep"));
  JsonFields fields(component, where);
  const std::string type = fields.String("type", "");
  HYDRANT_RETURN_IF_ERROR(fields.status());
  if (type != "Sequence") return read(component, type);
  const Json* members = fields.Find(list_name);
  if (members == nullptr || !members->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ".", list_name, " is not a list"));
  }
  for (const Json& member : *members) {
    HYDRANT_RETURN_IF_ERROR(ForEachComponent(member, where, list_name, read, depth + 1));
  }
  return absl::OkStatus();
}

// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  std::string text;
  bool is_regex = false;
};

absl::StatusOr<Pattern> ReadPattern(const Json& component, const std::string& where) {
  const auto found = component.find("pattern");
  if (found == component.end() || !found->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ".pattern is not an object"));
  }
  for (const char* kind : {"String", "Regex"}) {
    const auto text = found->find(kind);
    if (text == found->end()) continue;
    if (!text->is_string())
      return absl::InvalidArgumentError(absl::StrCat(where, ".pattern is not a string"));
    return Pattern{text->get<std::string>(), kind == std::string("Regex")};
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ".pattern is neither String nor Regex"));
}

std::string QuoteForRegex(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       static_cast<unsigned char>(c) >= 0x80 ||
                       static_cast<unsigned char>(c) < 0x20;
    if (!plain) quoted.push_back('\\');
    quoted.push_back(c);
  }
  return quoted;
}

absl::Status ReadOneNormalizer(const Json& component, const std::string& type,
                               TokenizerSpec* spec) {
  using Kind = NormalizerSpec::Kind;
  JsonFields fields(component, "normalizer");
  NormalizerSpec step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = type == "NFC"    ? Kind::kNfc
                : type == "NFD"  ? Kind::kNfd
                : type == "NFKC" ? Kind::kNfkc
                                 : Kind::kNfkd;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = fields.String("prepend", "");
  } else if (type == "Replace") {
    HYDRANT_ASSIGN_OR_RETURN(auto pattern, ReadPattern(component, "normalizer Replace"));
    step.kind = pattern.is_regex ? Kind::kReplaceRegex : Kind::kReplace;
    step.pattern = pattern.text;
    step.content = fields.String("content", "");
  } else {
    return Unsupported("normalizer", type);
  }
  spec->normalizers.push_back(std::move(step));
  return fields.status();
}

absl::StatusOr<SplitBehavior> ReadBehavior(const std::string& name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return absl::InvalidArgumentError(
      absl::StrCat("pre_tokenizer Split: unknown behavior ", Quoted(name)));
}

absl::StatusOr<PrependScheme> ReadPrependScheme(JsonFields* fields) {
  const std::string name = fields->String("prepend_scheme", "always");
  if (!fields->Bool("add_prefix_space", true)) return PrependScheme::kNever;
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  return absl::InvalidArgumentError(
      absl::StrCat("Metaspace: unknown prepend_scheme ", Quoted(name)));
}

absl::Status ReadMetaspace(JsonFields* fields, TokenizerSpec* spec) {
  PreTokenizerSpec escape;
  escape.kind = PreTokenizerSpec::Kind::kEscapeSpaces;
  escape.replacement = fields->String("replacement", "▁");
  HYDRANT_ASSIGN_OR_RETURN(escape.prepend, ReadPrependScheme(fields));
  spec->pre_tokenizers.push_back(escape);
  if (fields->Bool("split", true)) {
    PreTokenizerSpec split;
    split.regex = QuoteForRegex(escape.replacement);
    split.behavior = SplitBehavior::kMergedWithNext;
    spec->pre_tokenizers.push_back(split);
  }
  return fields->status();
}

absl::Status ReadByteLevel(JsonFields* fields, TokenizerSpec* spec) {
  if (fields->Bool("add_prefix_space", true)) {
    PreTokenizerSpec prefix;
    prefix.kind = PreTokenizerSpec::Kind::kPrefixSpace;
    spec->pre_tokenizers.push_back(prefix);
  }
  if (fields->Bool("use_regex", true)) {
    PreTokenizerSpec split;
    split.regex = std::string(kGpt2Pattern);
    spec->pre_tokenizers.push_back(split);
  }
  spec->byte_level = true;
  return fields->status();
}

absl::Status ReadOnePreTokenizer(const Json& component, const std::string& type,
                                 TokenizerSpec* spec) {
  JsonFields fields(component, "pre_tokenizer");
  if (spec->byte_level) {
    // Later steps would see the byte alphabet instead of the text.
    return Unsupported("pre_tokenizer after ByteLevel", type);
  }
  if (type == "ByteLevel") return ReadByteLevel(&fields, spec);
  if (type == "Metaspace") return ReadMetaspace(&fields, spec);
  PreTokenizerSpec split;
  if (type == "Digits") {
    split.regex = std::string(kDigitPattern);
    split.behavior = fields.Bool("individual_digits", false) ? SplitBehavior::kIsolated
                                                             : SplitBehavior::kContiguous;
  } else if (type == "Punctuation") {
    split.regex = R"([\p{P}!-/:-@\[-`{-~])";
    HYDRANT_ASSIGN_OR_RETURN(split.behavior, ReadBehavior(fields.String("behavior", "Isolated")));
  } else if (type == "Split") {
    HYDRANT_ASSIGN_OR_RETURN(auto pattern, ReadPattern(component, "pre_tokenizer Split"));
    HYDRANT_ASSIGN_OR_RETURN(auto behavior, ReadBehavior(fields.String("behavior", "")));
    split.regex = pattern.is_regex ? pattern.text : QuoteForRegex(pattern.text);
    split.behavior = behavior;
    split.invert = fields.Bool("invert", false);
  } else {
    return Unsupported("pre_tokenizer", type);
  }
  spec->pre_tokenizers.push_back(std::move(split));
  return fields.status();
}

absl::Status AppendIds(const Json& ids, const std::string& where, std::vector<TokenId>* out) {
  if (!ids.is_array())
    return absl::InvalidArgumentError(absl::StrCat(where, " is not a list of ids"));
  for (const Json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxVocabSize) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": ", Quoted(id.dump(-1, ' ', true, Json::error_handler_t::replace)),
                       " is not an id"));
    }
    out->push_back(id.get<TokenId>());
  }
  return absl::OkStatus();
}

// "single": the template around one text, e.g. [{"SpecialToken": {"id": "<s>"}}, {"Sequence":
// {"id": "A"}}].
absl::Status ReadTemplate(const Json& component, TokenizerSpec* spec) {
  const std::string where = "post_processor TemplateProcessing";
  const auto single = component.find("single"), tokens = component.find("special_tokens");
  if (single == component.end() || !single->is_array() || tokens == component.end() ||
      !tokens->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": single or special_tokens is missing"));
  }
  bool after_text = false;
  for (const Json& item : *single) {
    if (item.is_object() && item.contains("Sequence")) {
      if (after_text)
        return absl::UnimplementedError(absl::StrCat(where, ": the text occurs twice"));
      after_text = true;
      continue;
    }
    const auto special = item.is_object() ? item.find("SpecialToken") : item.end();
    if (!item.is_object() || special == item.end() || !special->is_object() ||
        !special->contains("id") || !(*special)["id"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".single: an item is neither text nor special token"));
    }
    const std::string name = (*special)["id"].get<std::string>();
    const auto token = tokens->find(name);
    if (token == tokens->end() || !token->is_object() || !token->contains("ids")) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".special_tokens lacks ", Quoted(name)));
    }
    HYDRANT_RETURN_IF_ERROR(AppendIds((*token)["ids"], where + ".special_tokens",
                                      after_text ? &spec->suffix : &spec->prefix));
  }
  if (!after_text)
    return absl::InvalidArgumentError(absl::StrCat(where, ".single has no place for the text"));
  return absl::OkStatus();
}

// "cls": ["<s>", 0], "sep": ["</s>", 2].
absl::Status ReadClsSep(const Json& component, TokenizerSpec* spec) {
  for (const auto& [name, out] :
       {std::pair("cls", &spec->prefix), std::pair("sep", &spec->suffix)}) {
    const auto pair = component.find(name);
    if (pair == component.end() || !pair->is_array() || pair->size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("post_processor.", name, " is not a token and its id"));
    }
    HYDRANT_RETURN_IF_ERROR(
        AppendIds(Json::array({(*pair)[1]}), absl::StrCat("post_processor.", name), out));
  }
  return absl::OkStatus();
}

absl::Status ReadOneDecoder(const Json& component, const std::string& type, TokenizerSpec* spec) {
  DecoderSpec& decoder = spec->decoder;
  JsonFields fields(component, "decoder");
  if (type == "ByteLevel") {
    decoder.byte_alphabet = true;
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Replace") {
    HYDRANT_ASSIGN_OR_RETURN(auto pattern, ReadPattern(component, "decoder Replace"));
    if (pattern.is_regex)
      return Unsupported("decoder Replace with a regular expression", pattern.text);
    if (pattern.text.empty())
      return absl::InvalidArgumentError("decoder Replace has an empty pattern");
    decoder.replacements.emplace_back(pattern.text, fields.String("content", ""));
  } else if (type == "Strip") {
    if (fields.String("content", "") != " " || fields.Int("start", 0) != 1 ||
        fields.Int("stop", 0) != 0) {
      return Unsupported("decoder Strip of anything but one leading space", component.dump());
    }
    decoder.strip_first_space = true;
  } else if (type == "Metaspace") {
    const std::string replacement = fields.String("replacement", "▁");
    HYDRANT_ASSIGN_OR_RETURN(auto scheme, ReadPrependScheme(&fields));
    if (replacement.empty())
      return absl::InvalidArgumentError("decoder Metaspace has an empty replacement");
    decoder.replacements.emplace_back(replacement, " ");
    if (scheme != PrependScheme::kNever) decoder.drop_in_first = replacement;
  } else if (type != "Fuse") {
    return Unsupported("decoder", type);
  }
  return fields.status();
}

}  // namespace

absl::Status ReadNormalizer(const Json& component, TokenizerSpec* spec) {
  return ForEachComponent(component, "normalizer", "normalizers",
                          [&](const Json& item, const std::string& type) {
                            return ReadOneNormalizer(item, type, spec);
                          });
}

absl::Status ReadPreTokenizer(const Json& component, TokenizerSpec* spec) {
  return ForEachComponent(component, "pre_tokenizer", "pretokenizers",
                          [&](const Json& item, const std::string& type) {
                            return ReadOnePreTokenizer(item, type, spec);
                          });
}

absl::Status ReadPostProcessor(const Json& component, TokenizerSpec* spec) {
  return ForEachComponent(component, "post_processor", "processors",
                          [&](const Json& item, const std::string& type) {
                            if (type == "ByteLevel")
                              return absl::OkStatus();  // it only corrects offsets
                            if (type == "TemplateProcessing") return ReadTemplate(item, spec);
                            if (type == "RobertaProcessing" || type == "BertProcessing")
                              return ReadClsSep(item, spec);
                            return Unsupported("post_processor", type);
                          });
}

absl::Status ReadDecoder(const Json& component, TokenizerSpec* spec) {
  return ForEachComponent(
      component, "decoder", "decoders",
      [&](const Json& item, const std::string& type) { return ReadOneDecoder(item, type, spec); });
}

}  // namespace hydrant
