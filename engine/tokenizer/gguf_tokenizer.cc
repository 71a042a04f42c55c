// GGUF metadata ("tokenizer.ggml.*") to a TokenizerSpec.
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/model/gguf.h"
#include "engine/model/text.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/pretokenizer.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// tokenizer.ggml.token_type
enum GgufTokenType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

TokenKind KindOf(int64_t type) {
  switch (type) {
    case kUnknown:
    case kControl:
    case kUserDefined:
      return TokenKind::kControl;
    case kUnused:
      return TokenKind::kUnused;
    case kByte:
      return TokenKind::kByte;
    default:
      return TokenKind::kNormal;
  }
}

PreTokenizerSpec SplitBy(std::string_view regex) {
  PreTokenizerSpec split;
  split.regex = std::string(regex);
  return split;
}

// The split rules by the names converters write into tokenizer.ggml.pre.
absl::Status SetPreTokenizer(const std::string& name, TokenizerSpec* spec) {
  static const std::map<std::string, std::string_view> kPatterns = {
      {"default", kGpt2Pattern},  {"gpt-2", kGpt2Pattern},
      {"olmo", kGpt2Pattern},     {"llama-bpe", kLlama3Pattern},
      {"llama3", kLlama3Pattern}, {"llama-v3", kLlama3Pattern},
      {"qwen2", kQwen2Pattern},   {"deepseek-r1-qwen", kQwen2Pattern},
      {"smollm", kGpt2Pattern},   {"starcoder", kGpt2Pattern},
      {"refact", kGpt2Pattern}};
  const auto found = kPatterns.find(name);
  if (found == kPatterns.end()) {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer.ggml.pre ", Quoted(name), " is not supported"));
  }
  if (name == "smollm" || name == "starcoder" || name == "refact") {
    spec->pre_tokenizers.push_back(SplitBy(kDigitPattern));
  }
  spec->pre_tokenizers.push_back(SplitBy(found->second));
  // The published tokenizers of these families normalise or look words up first; GGUF does not say
  // so.
  if (found->second == kQwen2Pattern)
    spec->normalizers.push_back({NormalizerSpec::Kind::kNfc, "", ""});
  if (found->second == kLlama3Pattern) spec->ignore_merges = true;
  return absl::OkStatus();
}

absl::Status ReadVocab(const GgufFile& file, TokenizerSpec* spec) {
  HYDRANT_ASSIGN_OR_RETURN(auto tokens, file.GetStrings("tokenizer.ggml.tokens"));
  std::vector<int64_t> types(tokens.size(), kNormal);
  std::vector<double> scores(tokens.size(), 0.0);
  if (file.Has("tokenizer.ggml.token_type")) {
    HYDRANT_ASSIGN_OR_RETURN(types, file.GetInts("tokenizer.ggml.token_type"));
  }
  if (spec->algorithm == TokenizerSpec::Algorithm::kMergeScores) {
    HYDRANT_ASSIGN_OR_RETURN(scores, file.GetFloats("tokenizer.ggml.scores"));
  }
  if (types.size() != tokens.size() || scores.size() != tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml: ", tokens.size(), " tokens, ",
                                                   types.size(), " token types, ", scores.size(),
                                                   " scores"));
  }
  if (tokens.size() > kMaxVocabSize) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.tokens: ", tokens.size(),
                                                   " tokens; the limit is ", kMaxVocabSize));
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& text = tokens[id];
    spec->vocab.push_back({text, KindOf(types[id]), static_cast<float>(scores[id])});
    if (KindOf(types[id]) != TokenKind::kControl) continue;
    AddedToken added;
    added.id = static_cast<TokenId>(id);
    added.content = text;
    added.special = types[id] != kUserDefined;
    spec->added.push_back(std::move(added));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& file, TokenizerSpec* spec) {
  HYDRANT_ASSIGN_OR_RETURN(auto merges, file.GetStrings("tokenizer.ggml.merges"));
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.merges: ", Quoted(merge), " is not a pair"));
    }
    spec->merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return absl::OkStatus();
}

// -1 where the key is absent.
absl::StatusOr<int64_t> SpecialId(const GgufFile& file, const std::string& name,
                                  size_t vocab_size) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
  if (!file.Has(key)) return -1;
  HYDRANT_ASSIGN_OR_RETURN(auto id, file.GetInt(key));
  if (id < 0 || static_cast<uint64_t>(id) >= vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " is ", id, "; the vocabulary has ", vocab_size, " tokens"));
  }
  return id;
}

absl::StatusOr<bool> Flag(const GgufFile& file, const std::string& key, bool otherwise) {
  return file.Has(key) ? file.GetBool(key) : absl::StatusOr<bool>(otherwise);
}

absl::Status ReadSpecialIds(const GgufFile& file, bool add_bos_by_default, TokenizerSpec* spec) {
  const size_t size = spec->vocab.size();
  HYDRANT_ASSIGN_OR_RETURN(spec->bos_id, SpecialId(file, "bos", size));
  for (const char* name : {"eos", "eot", "eom"}) {
    HYDRANT_ASSIGN_OR_RETURN(auto id, SpecialId(file, name, size));
    if (id >= 0) spec->eog_ids.push_back(static_cast<TokenId>(id));
    if (name == std::string("eos")) spec->eos_id = id;
  }
  HYDRANT_ASSIGN_OR_RETURN(auto add_bos, Flag(file, "tokenizer.ggml.add_bos_token",
                                              add_bos_by_default && spec->bos_id >= 0));
  HYDRANT_ASSIGN_OR_RETURN(auto add_eos, Flag(file, "tokenizer.ggml.add_eos_token", false));
  if ((add_bos && spec->bos_id < 0) || (add_eos && spec->eos_id < 0)) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml: a token is to be added whose id the file does not give");
  }
  if (add_bos) spec->prefix = {static_cast<TokenId>(spec->bos_id)};
  if (add_eos) spec->suffix = {static_cast<TokenId>(spec->eos_id)};
  return absl::OkStatus();
}

absl::Status ReadSentencePiece(const GgufFile& file, TokenizerSpec* spec) {
  HYDRANT_ASSIGN_OR_RETURN(auto prefix, Flag(file, "tokenizer.ggml.add_space_prefix", true));
  HYDRANT_ASSIGN_OR_RETURN(spec->unknown_id, SpecialId(file, "unknown", spec->vocab.size()));
  spec->byte_fallback = true;
  if (prefix) spec->normalizers.push_back({NormalizerSpec::Kind::kPrepend, "", std::string(kMark)});
  spec->normalizers.push_back({NormalizerSpec::Kind::kReplace, " ", std::string(kMark)});
  spec->decoder.byte_fallback = true;
  spec->decoder.replacements.emplace_back(kMark, " ");
  spec->decoder.strip_first_space = prefix;
  return absl::OkStatus();
}

absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufFile& file) {
  HYDRANT_ASSIGN_OR_RETURN(auto model, file.GetString("tokenizer.ggml.model"));
  TokenizerSpec spec;
  const bool sentence_piece = model == "llama";
  if (!sentence_piece && model != "gpt2") {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer.ggml.model ", Quoted(model), " is not supported"));
  }
  if (sentence_piece) spec.algorithm = TokenizerSpec::Algorithm::kMergeScores;
  HYDRANT_RETURN_IF_ERROR(ReadVocab(file, &spec));
  bool add_bos_by_default = true;
  if (sentence_piece) {
    HYDRANT_RETURN_IF_ERROR(ReadSentencePiece(file, &spec));
  } else {
    std::string pre = "default";
    if (file.Has("tokenizer.ggml.pre")) {
      HYDRANT_ASSIGN_OR_RETURN(pre, file.GetString("tokenizer.ggml.pre"));
    }
    HYDRANT_RETURN_IF_ERROR(SetPreTokenizer(pre, &spec));
    HYDRANT_RETURN_IF_ERROR(ReadMerges(file, &spec));
    spec.byte_level = true;
    spec.decoder.byte_alphabet = true;
    add_bos_by_default = spec.ignore_merges;  // Llama 3
  }
  HYDRANT_RETURN_IF_ERROR(ReadSpecialIds(file, add_bos_by_default, &spec));
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& file) {
  HYDRANT_ASSIGN_OR_RETURN(auto spec, SpecFromGguf(file));
  return MakePipelineTokenizer(spec);
}

absl::StatusOr<std::string> ChatTemplateSourceFromGguf(const GgufFile& file) {
  return file.GetString("tokenizer.chat_template");
}

}  // namespace hydrant
