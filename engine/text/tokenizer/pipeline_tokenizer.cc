#include "engine/text/tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/added_tokens.h"
#include "engine/text/tokenizer/byte_alphabet.h"
#include "engine/text/tokenizer/bytes_per_token_bound.h"
#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/pretokenizer.h"
#include "engine/text/tokenizer/sentencepiece_library.h"
#include "engine/text/tokenizer/subword_model.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

std::string ReplaceAll(std::string text, std::string_view pattern, std::string_view content) {
  for (size_t at = text.find(pattern); at != std::string::npos;
       at = text.find(pattern, at + content.size())) {
    text.replace(at, pattern.size(), content);
  }
  return text;
}

// The value of "<0x41>"; nullopt for any other text.
std::optional<char> ParseByteToken(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F',
               lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return std::nullopt;
    value = value * 16 + (digit ? c - '0' : upper ? c - 'A' + 10 : c - 'a' + 10);
  }
  return static_cast<char>(value);
}

// The text of one token, at the start of the text and elsewhere.
std::string RenderToken(const DecoderSpec& decoder, const std::string& text, bool first) {
  if (decoder.byte_alphabet) return BytesFromAlphabet(text).value_or(text);
  std::string bytes = text;
  if (first && !decoder.drop_in_first.empty()) bytes = ReplaceAll(bytes, decoder.drop_in_first, "");
  for (const auto& [pattern, content] : decoder.replacements)
    bytes = ReplaceAll(bytes, pattern, content);
  if (decoder.byte_fallback) {
    if (const std::optional<char> byte = ParseByteToken(bytes)) bytes = std::string(1, *byte);
  }
  if (first && decoder.strip_first_space && !bytes.empty() && bytes[0] == ' ') bytes.erase(0, 1);
  return bytes;
}

absl::StatusOr<std::unique_ptr<SubwordModel>> MakeSubwordModel(const TokenizerSpec& spec) {
  switch (spec.algorithm) {
    case TokenizerSpec::Algorithm::kMergeRanks:
      return MakeRankedBpe(spec);
    case TokenizerSpec::Algorithm::kMergeScores:
      return MakeScoredBpe(spec);
    case TokenizerSpec::Algorithm::kSentencePiece:
      break;
  }
  return MakeSentencePieceLibraryModel(spec.sentencepiece_model);
}

class PipelineTokenizer final : public Tokenizer {
 public:
  absl::Status Load(const TokenizerSpec& spec) {
    HYDRANT_RETURN_IF_ERROR(LoadTexts(spec));
    HYDRANT_ASSIGN_OR_RETURN(normalizer_, Normalizer::Create(spec.normalizers));
    HYDRANT_ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::Create(spec.pre_tokenizers));
    HYDRANT_ASSIGN_OR_RETURN(model_, MakeSubwordModel(spec));
    HYDRANT_RETURN_IF_ERROR(LoadAdded(spec));
    shrinkage_ = BytesPerTokenBound(spec);
    return LoadSpecialIds(spec);
  }

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override {
    HYDRANT_RETURN_IF_ERROR(ValidateUtf8(text));
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 3);
    for (const auto& section : raw_added_.Split(text, options.parse_special_tokens)) {
      if (section.id.has_value()) {
        ids.push_back(*section.id);
        continue;
      }
      HYDRANT_RETURN_IF_ERROR(EncodeSection(text.substr(section.begin, section.end - section.begin),
                                            section.begin == 0, options, &ids));
    }
    if (options.add_special_tokens) ids = SurroundOnce(prefix_, std::move(ids), suffix_);
    return ids;
  }

  // Repeats until nothing changes: once a special token is broken up, its remains may form another.
  std::string Literal(std::string_view text) const override {
    std::string literal(text);
    while (true) {
      std::string broken;
      for (const auto& [begin, end, id] : special_texts_.Split(literal, true)) {
        const std::string_view part = std::string_view(literal).substr(begin, end - begin);
        const size_t first =
            id.has_value() ? static_cast<size_t>(ReadUtf8(part).length) : part.size();
        broken.append(part.substr(0, first));
        if (id.has_value()) broken.append(kLiteralMark).append(part.substr(first));
      }
      if (broken.size() == literal.size()) return literal;
      literal = std::move(broken);
    }
  }

  std::string TokenBytes(TokenId id, bool skip_special, bool first) const override {
    if (id >= texts_.size() || (skip_special && special_[id])) return "";
    return RenderToken(decoder_, texts_[id], first);
  }

  TokenId VocabSize() const override { return static_cast<TokenId>(texts_.size()); }
  bool IsSpecial(TokenId id) const override { return id < special_.size() && special_[id]; }
  int64_t bos_id() const override { return bos_id_; }
  int64_t eos_id() const override { return eos_id_; }
  const std::vector<TokenId>& eog_ids() const override { return eog_ids_; }
  std::optional<int64_t> MaxBytesPerToken() const override {
    if (!shrinkage_.has_value()) return std::nullopt;
    return *shrinkage_ * longest_;
  }
  std::string TokenText(TokenId id) const override {
    const auto found = added_texts_.find(id);
    return found == added_texts_.end() ? "" : found->second;
  }

 private:
  absl::Status LoadTexts(const TokenizerSpec& spec) {
    size_t size = spec.vocab.size();
    for (const AddedToken& token : spec.added) size = std::max<size_t>(size, size_t{token.id} + 1);
    if (size == 0) return absl::InvalidArgumentError("vocabulary: it is empty");
    if (size > kMaxVocabSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary: id ", size - 1, " is above the limit of ", kMaxVocabSize - 1));
    }
    texts_.resize(size);
    special_.resize(size, false);
    for (size_t id = 0; id < spec.vocab.size(); ++id) {
      texts_[id] = spec.vocab[id].text;
      NoteLength(spec.byte_level ? BytesFromAlphabet(texts_[id]).value_or(texts_[id]) : texts_[id]);
    }
    decoder_ = spec.decoder;
    return absl::OkStatus();
  }

  void NoteLength(std::string_view token) {
    longest_ = std::max(longest_, static_cast<int64_t>(token.size()));
  }

  absl::Status LoadAdded(const TokenizerSpec& spec) {
    std::vector<AddedToken> raw, normalized, special;
    absl::flat_hash_map<std::string, TokenId> contents;
    for (const AddedToken& token : spec.added) {
      if (token.content.empty()) continue;
      if (const absl::Status status = ValidateUtf8(token.content); !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("added_tokens: id ", token.id, ": ", status.message()));
      }
      const auto [known, is_new] = contents.emplace(token.content, token.id);
      if (!is_new && known->second != token.id) {
        return absl::InvalidArgumentError(absl::StrCat("added_tokens: ", Quoted(token.content),
                                                       " has two ids, ", known->second, " and ",
                                                       token.id));
      }
      texts_[token.id] = token.content;
      special_[token.id] = special_[token.id] || token.special;
      added_texts_[token.id] = token.content;
      NoteLength(token.content);
      // A token of a single character cannot be broken up.
      if (token.special && std::cmp_less(ReadUtf8(token.content).length, token.content.size()))
        special.push_back({.id = token.id, .content = token.content, .special = true});
      if (!token.normalized) {
        (token.escaped ? normalized : raw).push_back(token);
        continue;
      }
      HYDRANT_ASSIGN_OR_RETURN(auto content, normalizer_.Apply(token.content));
      normalized.push_back(token);
      NoteLength(content);
      texts_[token.id] = content;  // with the space that the normalizer adds
      normalized.back().content = std::move(content);
    }
    raw_added_ = AddedTokenFinder(std::move(raw));
    normalized_added_ = AddedTokenFinder(std::move(normalized));
    special_texts_ = AddedTokenFinder(std::move(special));
    return absl::OkStatus();
  }

  absl::Status LoadSpecialIds(const TokenizerSpec& spec) {
    const auto check = [&](int64_t id, const char* what) {
      if (id < static_cast<int64_t>(texts_.size())) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          what, ": id ", id, " is outside the vocabulary of ", texts_.size(), " tokens"));
    };
    absl::Status status = check(spec.bos_id, "BOS");
    status.Update(check(spec.eos_id, "EOS"));
    for (const TokenId id : spec.prefix) status.Update(check(id, "post_processor"));
    for (const TokenId id : spec.suffix) status.Update(check(id, "post_processor"));
    for (const TokenId id : spec.eog_ids) status.Update(check(id, "end of generation"));
    if (!status.ok()) return status;
    bos_id_ = spec.bos_id;
    eos_id_ = spec.eos_id;
    prefix_ = spec.prefix;
    suffix_ = spec.suffix;
    eog_ids_ = spec.eog_ids;
    const std::vector<TokenId> known = KnownEndsOfGeneration(spec.added);
    eog_ids_.insert(eog_ids_.end(), known.begin(), known.end());
    std::sort(eog_ids_.begin(), eog_ids_.end());
    eog_ids_.erase(std::unique(eog_ids_.begin(), eog_ids_.end()), eog_ids_.end());
    return absl::OkStatus();
  }

  // A section without raw added tokens: normalized, searched for normalized ones, split and merged.
  absl::Status EncodeSection(std::string_view text, bool opens_text, const EncodeOptions& options,
                             std::vector<TokenId>* ids) const {
    HYDRANT_ASSIGN_OR_RETURN(auto normalized, normalizer_.Apply(std::string(text)));
    for (const auto& section : normalized_added_.Split(normalized, options.parse_special_tokens)) {
      if (section.id.has_value()) {
        ids->push_back(*section.id);
        continue;
      }
      std::string plain = normalized.substr(section.begin, section.end - section.begin);
      if (options.has_literals) plain = ReplaceAll(std::move(plain), kLiteralMark, "");
      HYDRANT_ASSIGN_OR_RETURN(
          auto list, pre_tokenizer_.Apply(std::move(plain), opens_text && section.begin == 0));
      for (const PieceList::Piece& piece : list.pieces) {
        model_->Encode(std::string_view(list.text).substr(piece.begin, piece.end - piece.begin),
                       ids);
      }
    }
    return absl::OkStatus();
  }

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<SubwordModel> model_;
  AddedTokenFinder raw_added_, normalized_added_;
  AddedTokenFinder special_texts_;  // special tokens, as written in a text
  DecoderSpec decoder_;
  std::vector<std::string> texts_;  // by id; of a normalized added token, its normalized text
  std::vector<bool> special_;
  absl::flat_hash_map<TokenId, std::string> added_texts_;
  std::vector<TokenId> prefix_, suffix_, eog_ids_;
  int64_t bos_id_ = -1, eos_id_ = -1;
  int64_t longest_ = 4;  // bytes of the longest token; an unknown character has up to 4
  std::optional<int64_t> shrinkage_;  // of the text by normalization (bytes_per_token_bound.h)
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(const TokenizerSpec& spec) {
  auto tokenizer = std::make_unique<PipelineTokenizer>();
  HYDRANT_RETURN_IF_ERROR(tokenizer->Load(spec));
  return tokenizer;
}

}  // namespace hydrant
