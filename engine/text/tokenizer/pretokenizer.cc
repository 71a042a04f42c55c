#include "engine/text/tokenizer/pretokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {

namespace {

using Piece = PieceList::Piece;

struct Part {
  size_t begin, end;
  bool is_match;
};

// The whole text as alternating gaps and matches.
std::vector<Part> AllParts(const std::vector<Regex::Match>& matches, size_t size, bool invert) {
  std::vector<Part> parts;
  parts.reserve(matches.size() * 2 + 1);
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  }
  if (done < size) parts.push_back({done, size, invert});
  return parts;
}

// A match joins the previous part (in the given order) unless that is a match too.
template <typename Extend>
std::vector<Part> JoinMatches(const std::vector<Part>& parts, Extend extend) {
  std::vector<Part> joined;
  bool previous_match = false;
  for (const Part& part : parts) {
    if (part.is_match && !previous_match && !joined.empty()) {
      extend(&joined.back(), part);
    } else {
      joined.push_back(part);
    }
    previous_match = part.is_match;
  }
  return joined;
}

std::vector<Part> Behave(std::vector<Part> parts, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return parts;
    case SplitBehavior::kRemoved:
      parts.erase(
          std::remove_if(parts.begin(), parts.end(), [](const Part& p) { return p.is_match; }),
          parts.end());
      return parts;
    case SplitBehavior::kMergedWithPrevious:
      return JoinMatches(parts, [](Part* last, const Part& part) { last->end = part.end; });
    case SplitBehavior::kMergedWithNext: {
      std::reverse(parts.begin(), parts.end());
      parts = JoinMatches(parts, [](Part* last, const Part& part) { last->begin = part.begin; });
      std::reverse(parts.begin(), parts.end());
      return parts;
    }
    case SplitBehavior::kContiguous: {
      std::vector<Part> joined;
      for (const Part& part : parts) {
        if (!joined.empty() && joined.back().is_match == part.is_match) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
      }
      return joined;
    }
  }
  return parts;
}

absl::Status SplitPieces(const PreTokenizerSpec& spec, const Regex& regex, PieceList* list) {
  std::vector<Piece> pieces;
  pieces.reserve(list->pieces.size() + list->text.size() / 4);
  std::vector<Regex::Match> matches;
  for (const Piece& piece : list->pieces) {
    const std::string_view text(list->text.data() + piece.begin, piece.end - piece.begin);
    matches.clear();
    HYDRANT_RETURN_IF_ERROR(regex.FindAll(text, &matches));
    for (const Part& part : Behave(AllParts(matches, text.size(), spec.invert), spec.behavior)) {
      if (part.begin == part.end) continue;
      pieces.push_back(
          {piece.begin + part.begin, piece.begin + part.end, piece.opens_text && part.begin == 0});
    }
  }
  list->pieces = std::move(pieces);
  return absl::OkStatus();
}

// Rewrites every piece by `edit(piece text, opens_text)`.
template <typename Edit>
void RewritePieces(PieceList* list, Edit edit) {
  std::string text;
  text.reserve(list->text.size() + list->pieces.size());
  for (Piece& piece : list->pieces) {
    const std::string_view old(list->text.data() + piece.begin, piece.end - piece.begin);
    const size_t begin = text.size();
    edit(old, piece.opens_text, &text);
    piece.begin = begin;
    piece.end = text.size();
  }
  list->text = std::move(text);
}

void PrefixSpace(PieceList* list) {
  RewritePieces(list, [](std::string_view piece, bool, std::string* out) {
    if (piece[0] != ' ') out->push_back(' ');
    out->append(piece);
  });
}

void EscapeSpaces(const PreTokenizerSpec& spec, PieceList* list) {
  RewritePieces(list, [&](std::string_view piece, bool opens_text, std::string* out) {
    const bool wanted = spec.prepend == PrependScheme::kAlways ||
                        (spec.prepend == PrependScheme::kFirst && opens_text);
    const bool present =
        piece[0] == ' ' || piece.substr(0, spec.replacement.size()) == spec.replacement;
    if (wanted && !present) out->append(spec.replacement);
    for (const char c : piece) {
      if (c == ' ') {
        out->append(spec.replacement);
      } else {
        out->push_back(c);
      }
    }
  });
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<PreTokenizerSpec>& specs) {
  PreTokenizer pre_tokenizer;
  for (const PreTokenizerSpec& spec : specs) {
    Step step{spec, nullptr};
    if (spec.kind == PreTokenizerSpec::Kind::kSplit) {
      auto regex = Regex::Compile(spec.regex);
      if (!regex.ok()) {
        return absl::Status(regex.status().code(),
                            absl::StrCat("pre_tokenizer: ", regex.status().message()));
      }
      step.regex = *std::move(regex);
    }
    if (spec.kind == PreTokenizerSpec::Kind::kEscapeSpaces) {
      if (spec.replacement.empty() || !ValidateUtf8(spec.replacement).ok()) {
        return absl::InvalidArgumentError(
            "pre_tokenizer Metaspace: the replacement is not one character");
      }
    }
    pre_tokenizer.steps_.push_back(std::move(step));
  }
  return pre_tokenizer;
}

absl::StatusOr<PieceList> PreTokenizer::Apply(std::string text, bool opens_text) const {
  PieceList list;
  list.text = std::move(text);
  if (!list.text.empty()) list.pieces.push_back({0, list.text.size(), opens_text});
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case PreTokenizerSpec::Kind::kSplit:
        HYDRANT_RETURN_IF_ERROR(SplitPieces(step.spec, *step.regex, &list));
        break;
      case PreTokenizerSpec::Kind::kPrefixSpace:
        PrefixSpace(&list);
        break;
      case PreTokenizerSpec::Kind::kEscapeSpaces:
        EscapeSpaces(step.spec, &list);
        break;
    }
  }
  return list;
}

}  // namespace hydrant
