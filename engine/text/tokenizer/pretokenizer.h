// Splits text into pieces; merges never cross them: a list of steps, as in the "pre_tokenizer" of
// tokenizer.json. Immutable, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_PRETOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_PRETOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/regex.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// Text and its pieces, in order; no piece is empty.
struct PieceList {
  struct Piece {
    size_t begin, end;  // bytes of `text`
    bool opens_text;    // starts at the beginning of the caller's text
  };
  std::string text;
  std::vector<Piece> pieces;
};

class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> Create(const std::vector<PreTokenizerSpec>& specs);

  // `opens_text`: `text` is at the beginning of the caller's text. REQUIRES: `text` is valid UTF-8.
  absl::StatusOr<PieceList> Apply(std::string text, bool opens_text) const;

 private:
  struct Step {
    PreTokenizerSpec spec;
    std::unique_ptr<Regex> regex;  // kSplit
  };
  std::vector<Step> steps_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_PRETOKENIZER_H_
