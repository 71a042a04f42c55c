#include <cmath>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/merge_queue.h"
#include "engine/text/tokenizer/subword_model.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

class ScoredBpe final : public SubwordModel {
 public:
  absl::Status Load(const TokenizerSpec& spec) {
    unknown_id_ = spec.unknown_id;
    if (spec.byte_fallback) byte_tokens_ = FindByteTokens(spec);
    for (size_t id = 0; id < spec.vocab.size(); ++id) {
      const VocabEntry& entry = spec.vocab[id];
      if (entry.kind != TokenKind::kNormal && entry.kind != TokenKind::kUnused) continue;
      if (!std::isfinite(entry.score)) {
        return absl::InvalidArgumentError(
            absl::StrCat("vocabulary: the score of id ", id, " is not finite"));
      }
      const Piece piece{static_cast<TokenId>(id), entry.score, entry.kind == TokenKind::kUnused};
      if (!pieces_.emplace(entry.text, piece).second) {
        return absl::InvalidArgumentError(absl::StrCat("vocabulary: ", Quoted(entry.text),
                                                       " has two ids, ", pieces_[entry.text].id,
                                                       " and ", id));
      }
    }
    return absl::OkStatus();
  }

  void Encode(std::string_view text, std::vector<TokenId>* ids) const override {
    std::vector<MergeSymbol> symbols;
    for (size_t at = 0; at < text.size();) {
      const size_t length = ReadUtf8(text.substr(at)).length;
      symbols.push_back({at, length, -1});
      at += length;
    }
    // An unused piece may appear as an intermediate merge; if it remains, it is split into its
    // parts.
    std::unordered_map<std::string, size_t> left_length_of_unused;
    MergeSymbols(&symbols,
                 [&](const MergeSymbol& a, const MergeSymbol& b) -> std::optional<MergeStep> {
                   const auto found = pieces_.find(text.substr(a.begin, a.length + b.length));
                   if (found == pieces_.end()) return std::nullopt;
                   if (found->second.unused) left_length_of_unused[found->first] = a.length;
                   return MergeStep{-static_cast<double>(found->second.score), found->second.id};
                 });
    bool after_unknown = false;
    for (const MergeSymbol& symbol : symbols) {
      if (symbol.length == 0) continue;
      Emit(text.substr(symbol.begin, symbol.length), left_length_of_unused, ids, &after_unknown);
    }
  }

 private:
  struct Piece {
    TokenId id;
    float score;
    bool unused;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  void Emit(std::string_view text, const std::unordered_map<std::string, size_t>& unused,
            std::vector<TokenId>* ids, bool* after_unknown) const {
    // Depth-first, left before right; iterative, as pieces of the vocabulary have unbounded length.
    std::vector<std::string_view> open = {text};
    while (!open.empty()) {
      const std::string_view part = open.back();
      open.pop_back();
      const auto found = pieces_.find(part);
      if (found != pieces_.end() && found->second.unused) {
        if (const auto split = unused.find(std::string(part)); split != unused.end()) {
          open.push_back(part.substr(split->second));
          open.push_back(part.substr(0, split->second));
          continue;
        }
      }
      if (found != pieces_.end()) {
        ids->push_back(found->second.id);
        *after_unknown = false;
      } else {
        EmitUnknown(part, ids, after_unknown);
      }
    }
  }

  void EmitUnknown(std::string_view text, std::vector<TokenId>* ids, bool* after_unknown) const {
    bool bytes_known = !byte_tokens_.empty();
    for (const char c : text)
      bytes_known = bytes_known && byte_tokens_[static_cast<uint8_t>(c)] >= 0;
    if (bytes_known) {
      for (const char c : text)
        ids->push_back(static_cast<TokenId>(byte_tokens_[static_cast<uint8_t>(c)]));
      *after_unknown = false;
    } else if (unknown_id_ >= 0) {
      if (!*after_unknown) ids->push_back(static_cast<TokenId>(unknown_id_));
      *after_unknown = true;
    }
  }

  int64_t unknown_id_ = -1;
  std::unordered_map<std::string, Piece, TextHash, std::equal_to<>> pieces_;
  std::vector<int64_t> byte_tokens_;  // empty, or 256 ids
};

}  // namespace

absl::StatusOr<std::unique_ptr<SubwordModel>> MakeScoredBpe(const TokenizerSpec& spec) {
  auto model = std::make_unique<ScoredBpe>();
  HYDRANT_RETURN_IF_ERROR(model->Load(spec));
  return model;
}

}  // namespace hydrant
