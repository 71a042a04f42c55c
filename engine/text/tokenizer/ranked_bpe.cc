#include <array>
#include <limits>
#include <unordered_map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/byte_alphabet.h"
#include "engine/text/tokenizer/merge_queue.h"
#include "engine/text/tokenizer/subword_model.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

// Up to this many symbols, scanning all pairs is faster than a queue.
constexpr size_t kShortWord = 24;

struct RankedMerge {
  uint32_t rank;
  TokenId id;
};

class RankedBpe final : public SubwordModel {
 public:
  absl::Status Load(const TokenizerSpec& spec) {
    byte_level_ = spec.byte_level;
    ignore_merges_ = spec.ignore_merges;
    fuse_unknown_ = spec.fuse_unknown;
    unknown_id_ = spec.unknown_id;
    absl::flat_hash_map<std::string, TokenId> ids;
    ids.reserve(spec.vocab.size());
    for (size_t id = 0; id < spec.vocab.size(); ++id) {
      const VocabEntry& entry = spec.vocab[id];
      if (entry.kind == TokenKind::kAbsent || entry.kind == TokenKind::kControl) continue;
      if (!ids.emplace(entry.text, static_cast<TokenId>(id)).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "vocabulary: ", Quoted(entry.text), " has two ids, ", ids[entry.text], " and ", id));
      }
    }
    HYDRANT_RETURN_IF_ERROR(LoadMerges(spec, ids));
    if (spec.byte_fallback) byte_tokens_ = FindByteTokens(spec);
    LoadPieces(ids);
    return absl::OkStatus();
  }

  void Encode(std::string_view piece, std::vector<TokenId>* ids) const override {
    if (ignore_merges_) {
      if (const auto found = pieces_.find(piece); found != pieces_.end()) {
        ids->push_back(found->second);
        return;
      }
    }
    if (byte_level_ && piece.size() <= kShortWord) return EncodeShort(piece, ids);
    std::vector<MergeSymbol> symbols;
    symbols.reserve(piece.size());
    if (byte_level_) {
      SplitBytes(piece, &symbols);
    } else {
      SplitCharacters(piece, &symbols);
    }
    MergeSymbols(&symbols,
                 [this](const MergeSymbol& a, const MergeSymbol& b) -> std::optional<MergeStep> {
                   const RankedMerge* merge =
                       FindMerge(static_cast<TokenId>(a.id), static_cast<TokenId>(b.id));
                   if (merge == nullptr) return std::nullopt;
                   return MergeStep{static_cast<double>(merge->rank), merge->id};
                 });
    for (const MergeSymbol& symbol : symbols) {
      if (symbol.length > 0) ids->push_back(static_cast<TokenId>(symbol.id));
    }
  }

 private:
  absl::Status LoadMerges(const TokenizerSpec& spec,
                          const absl::flat_hash_map<std::string, TokenId>& ids) {
    merges_.reserve(spec.merges.size());
    for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
      const auto& [left, right] = spec.merges[rank];
      const auto a = ids.find(left), b = ids.find(right), ab = ids.find(left + right);
      for (const auto& [found, text] : {std::pair(a, left), {b, right}, {ab, left + right}}) {
        if (found == ids.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat("merges: entry ", rank, " (", Quoted(left), " + ", Quoted(right),
                           ") needs ", Quoted(text), ", which the vocabulary lacks"));
        }
      }
      // A pair listed twice keeps its later rank, as in the reference.
      merges_[Key(a->second, b->second)] = {static_cast<uint32_t>(rank), ab->second};
    }
    return absl::OkStatus();
  }

  // In byte-level mode entries are looked up by their bytes.
  void LoadPieces(const absl::flat_hash_map<std::string, TokenId>& ids) {
    first_symbol_.fill(-1);
    for (const auto& [text, id] : ids) {
      if (!byte_level_) {
        pieces_.emplace(text, id);
        continue;
      }
      const std::optional<std::string> bytes = BytesFromAlphabet(text);
      if (!bytes.has_value() || bytes->empty()) continue;
      if (bytes->size() == 1) first_symbol_[static_cast<uint8_t>((*bytes)[0])] = id;
      if (ignore_merges_) pieces_.emplace(*bytes, id);
    }
  }

  // The greedy rule of MergeSymbols by scanning all pairs, without a queue.
  void EncodeShort(std::string_view piece, std::vector<TokenId>* ids) const {
    constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
    std::array<TokenId, kShortWord> symbols;
    std::array<RankedMerge, kShortWord> merges;  // of symbols i and i+1
    size_t count = 0;
    for (const char c : piece) {
      const int64_t id = first_symbol_[static_cast<uint8_t>(c)];
      if (id >= 0) symbols[count++] = static_cast<TokenId>(id);
    }
    const auto look_up = [&](size_t i) {
      const RankedMerge* merge = i + 1 < count ? FindMerge(symbols[i], symbols[i + 1]) : nullptr;
      merges[i] = merge != nullptr ? *merge : RankedMerge{kNone, 0};
    };
    for (size_t i = 0; i < count; ++i) look_up(i);
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i) {
        if (merges[i].rank < merges[best].rank) best = i;
      }
      if (merges[best].rank == kNone) break;
      symbols[best] = merges[best].id;
      for (size_t i = best + 1; i + 1 < count; ++i) {
        symbols[i] = symbols[i + 1];
        merges[i] = merges[i + 1];
      }
      --count;
      look_up(best);
      if (best > 0) look_up(best - 1);
    }
    ids->insert(ids->end(), symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count));
  }

  // A byte without a token is dropped, as in the reference without an unknown token.
  void SplitBytes(std::string_view piece, std::vector<MergeSymbol>* symbols) const {
    for (size_t i = 0; i < piece.size(); ++i) {
      const int64_t id = first_symbol_[static_cast<uint8_t>(piece[i])];
      if (id >= 0) symbols->push_back({i, 1, id});
    }
  }

  void SplitCharacters(std::string_view piece, std::vector<MergeSymbol>* symbols) const {
    size_t at = 0;
    bool after_unknown = false;
    while (at < piece.size()) {
      const size_t length = ReadUtf8(piece.substr(at)).length;
      const auto found = pieces_.find(piece.substr(at, length));
      if (found != pieces_.end()) {
        symbols->push_back({at, length, found->second});
        after_unknown = false;
      } else if (AllBytesHaveTokens(piece.substr(at, length))) {
        for (size_t i = 0; i < length; ++i) {
          symbols->push_back({at + i, 1, byte_tokens_[static_cast<uint8_t>(piece[at + i])]});
        }
        after_unknown = false;
      } else if (unknown_id_ >= 0) {
        if (fuse_unknown_ && after_unknown) {
          symbols->back().length += length;
        } else {
          symbols->push_back({at, length, unknown_id_});
        }
        after_unknown = true;
      }
      at += length;
    }
  }

  bool AllBytesHaveTokens(std::string_view character) const {
    if (byte_tokens_.empty()) return false;
    for (const char c : character) {
      if (byte_tokens_[static_cast<uint8_t>(c)] < 0) return false;
    }
    return true;
  }

  static uint64_t Key(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(left) << 32) | right;
  }

  const RankedMerge* FindMerge(TokenId left, TokenId right) const {
    const auto found = merges_.find(Key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  // A hash for look-ups by std::string_view; Debian's absl does not accept it for keys of
  // std::string.
  struct PieceHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  bool byte_level_ = false, ignore_merges_ = false, fuse_unknown_ = false;
  int64_t unknown_id_ = -1;
  absl::flat_hash_map<uint64_t, RankedMerge> merges_;
  std::array<int64_t, 256> first_symbol_{};  // byte-level: id of each byte, -1: none
  std::unordered_map<std::string, TokenId, PieceHash, std::equal_to<>> pieces_;
  std::vector<int64_t> byte_tokens_;  // empty, or 256 ids
};

}  // namespace

absl::StatusOr<std::unique_ptr<SubwordModel>> MakeRankedBpe(const TokenizerSpec& spec) {
  auto model = std::make_unique<RankedBpe>();
  HYDRANT_RETURN_IF_ERROR(model->Load(spec));
  return model;
}

}  // namespace hydrant
