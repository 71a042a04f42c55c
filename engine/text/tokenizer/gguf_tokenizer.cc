// Reads GGUF metadata ("tokenizer.ggml.*") into a TokenizerSpec.
#include "absl/strings/str_cat.h"
#include "engine/model/gguf.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/gguf_added_tokens.h"
#include "engine/text/tokenizer/gguf_pretokenizers.h"
#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/space_escaping.h"
#include "engine/text/tokenizer/tokenizer_json_writer.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status ReadVocab(const GgufFile& file, TokenizerSpec* spec) {
  HYDRANT_ASSIGN_OR_RETURN(auto tokens, file.GetStrings("tokenizer.ggml.tokens"));
  std::vector<int64_t> types(tokens.size(), kGgufNormal);
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
    AppendGgufToken(tokens[id], types[id], static_cast<float>(scores[id]), spec);
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

// -1 if the key is absent.
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
  EscapeSpaces(prefix, /*first_only=*/false, spec);
  spec->decoder.byte_fallback = true;
  spec->decoder.replacements.emplace_back(kSpaceMark, " ");
  spec->decoder.strip_first_space = prefix;
  return absl::OkStatus();
}

// Reads a byte-level BPE. `pre` gets the name of its rules, `add_bos` their default.
absl::Status ReadBytePairs(const GgufFile& file, std::string* pre, bool* add_bos,
                           TokenizerSpec* spec) {
  *pre = "default";
  if (file.Has("tokenizer.ggml.pre")) {
    HYDRANT_ASSIGN_OR_RETURN(*pre, file.GetString("tokenizer.ggml.pre"));
  }
  HYDRANT_RETURN_IF_ERROR(ApplyGgufPreTokenizer(*pre, spec, add_bos));
  HYDRANT_RETURN_IF_ERROR(ReadMerges(file, spec));
  AdmitMergedTokens(spec);
  spec->byte_level = true;
  spec->decoder.byte_alphabet = true;
  return absl::OkStatus();
}

// Refuses keys of other kinds of models that would change the ids.
absl::Status CheckIdle(const GgufFile& file) {
  for (const char* name : {"remove_extra_whitespaces", "add_sep_token"}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", name);
    HYDRANT_ASSIGN_OR_RETURN(auto set, Flag(file, key, false));
    if (set) return absl::UnimplementedError(absl::StrCat(key, " is not supported"));
  }
  if (file.Has("tokenizer.ggml.precompiled_charsmap"))
    return absl::UnimplementedError("tokenizer.ggml.precompiled_charsmap is not supported");
  return absl::OkStatus();
}

absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufFile& file) {
  HYDRANT_ASSIGN_OR_RETURN(auto model, file.GetString("tokenizer.ggml.model"));
  TokenizerSpec spec;
  const bool sentence_piece = model == "llama";
  if (!sentence_piece && model != "gpt2") {
    return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.model ", Quoted(model),
                                                 " is not supported; known: gpt2, llama"));
  }
  HYDRANT_RETURN_IF_ERROR(CheckIdle(file));
  if (sentence_piece) spec.algorithm = TokenizerSpec::Algorithm::kMergeScores;
  HYDRANT_RETURN_IF_ERROR(ReadVocab(file, &spec));
  std::string architecture, pre;
  if (file.Has("general.architecture")) {
    HYDRANT_ASSIGN_OR_RETURN(architecture, file.GetString("general.architecture"));
  }
  bool add_bos_by_default = true;
  HYDRANT_RETURN_IF_ERROR(sentence_piece ? ReadSentencePiece(file, &spec)
                                         : ReadBytePairs(file, &pre, &add_bos_by_default, &spec));
  SetGgufStripping(architecture, pre, &spec);
  HYDRANT_RETURN_IF_ERROR(ReadSpecialIds(file, add_bos_by_default, &spec));
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& file) {
  HYDRANT_ASSIGN_OR_RETURN(auto spec, SpecFromGguf(file));
  return MakePipelineTokenizer(spec);
}

absl::StatusOr<std::string> TokenizerJsonFromGguf(const GgufFile& file) {
  HYDRANT_ASSIGN_OR_RETURN(auto spec, SpecFromGguf(file));
  return WriteTokenizerJson(spec);
}

}  // namespace hydrant
