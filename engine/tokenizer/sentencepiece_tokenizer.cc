#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/sentencepiece_library.h"
#include "engine/tokenizer/utf8.h"

namespace hydrant {
namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581

class SentencePieceTokenizer final : public Tokenizer {
 public:
  absl::Status Load(std::string_view model, const SentencePieceOptions& options) {
    std::string error;
    library_ = SentencePieceLibrary::Load(model, &error);
    if (library_ == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.model: ", error));
    pieces_ = library_->Pieces();
    if (pieces_.empty() || pieces_.size() > kMaxVocabSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.model: ", pieces_.size(), " pieces"));
    }
    // Whether the model puts a space in front of a text is seen in what it does to one.
    std::vector<int> probe;
    if (library_->Encode("a", &probe, &error) && !probe.empty()) {
      const std::string& first = pieces_[static_cast<size_t>(probe[0])].text;
      strips_first_space_ = first.substr(0, kMark.size()) == kMark;
    }
    std::vector<AddedToken> added;
    for (size_t id = 0; id < pieces_.size(); ++id) {
      if (!IsSpecial(static_cast<TokenId>(id))) continue;
      AddedToken token;
      token.id = static_cast<TokenId>(id);
      token.content = pieces_[id].text;
      token.special = true;
      added.push_back(token);
      if (IsKnownEndOfGeneration(token.content)) eog_ids_.push_back(token.id);
    }
    added_ = AddedTokenFinder(std::move(added));
    const int bos = library_->bos_id(), eos = library_->eos_id();
    bos_id_ = bos;
    if (options.add_bos && bos >= 0) prefix_ = {static_cast<TokenId>(bos)};
    if (options.add_eos && eos >= 0) suffix_ = {static_cast<TokenId>(eos)};
    if (eos >= 0) eog_ids_.push_back(static_cast<TokenId>(eos));
    for (const TokenId id : options.eog_ids) {
      if (id < pieces_.size()) eog_ids_.push_back(id);
    }
    std::sort(eog_ids_.begin(), eog_ids_.end());
    eog_ids_.erase(std::unique(eog_ids_.begin(), eog_ids_.end()), eog_ids_.end());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override {
    if (const absl::Status status = ValidateUtf8(text); !status.ok()) return status;
    std::vector<TokenId> ids;
    for (const auto& section : added_.Split(text, options.parse_special_tokens)) {
      if (section.id.has_value()) {
        ids.push_back(*section.id);
        continue;
      }
      std::vector<int> part;
      std::string error;
      if (!library_->Encode(text.substr(section.begin, section.end - section.begin), &part,
                            &error)) {
        return absl::InternalError(absl::StrCat("SentencePiece: ", error));
      }
      ids.insert(ids.end(), part.begin(), part.end());
    }
    if (options.add_special_tokens) ids = SurroundOnce(prefix_, std::move(ids), suffix_);
    return ids;
  }

  std::string TokenBytes(TokenId id, bool skip_special, bool first) const override {
    if (id >= pieces_.size() || (skip_special && IsSpecial(id))) return "";
    const SentencePieceLibrary::Piece& piece = pieces_[id];
    std::string bytes;
    if (piece.byte && piece.text.size() == 6) {
      bytes.push_back(static_cast<char>(std::strtol(piece.text.c_str() + 3, nullptr, 16)));
    } else {
      std::string_view rest = piece.text;
      while (!rest.empty()) {
        const bool mark = rest.substr(0, kMark.size()) == kMark;
        bytes += mark ? ' ' : rest[0];
        rest.remove_prefix(mark ? kMark.size() : 1);
      }
    }
    if (first && strips_first_space_ && !bytes.empty() && bytes[0] == ' ') bytes.erase(0, 1);
    return bytes;
  }

  TokenId VocabSize() const override { return static_cast<TokenId>(pieces_.size()); }
  bool IsSpecial(TokenId id) const override {
    return id < pieces_.size() && (pieces_[id].control || pieces_[id].unknown);
  }
  int64_t bos_id() const override { return bos_id_; }
  const std::vector<TokenId>& eog_ids() const override { return eog_ids_; }
  std::string TokenText(TokenId id) const override { return IsSpecial(id) ? pieces_[id].text : ""; }

 private:
  std::unique_ptr<SentencePieceLibrary> library_;
  std::vector<SentencePieceLibrary::Piece> pieces_;  // by id
  AddedTokenFinder added_;
  std::vector<TokenId> prefix_, suffix_, eog_ids_;
  int64_t bos_id_ = -1;
  bool strips_first_space_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(
    std::string_view model, const SentencePieceOptions& options) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  if (const absl::Status status = tokenizer->Load(model, options); !status.ok()) return status;
  return tokenizer;
}

}  // namespace hydrant
