// Converts text to token ids and back, exactly as Hugging Face `tokenizers` does for the same
// files. Immutable once created: any thread may call it.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant {

class GgufFile;

using TokenId = uint32_t;

struct EncodeOptions {
  bool add_special_tokens = true;    // BOS (and EOS) if the tokenizer's files say so; never doubled
  bool parse_special_tokens = true;  // "<|im_start|>" in the text becomes its id; false: plain text
  bool has_literals = false;         // parts of the text come from Literal()
};

// A code point that Unicode reserves for internal use, so that texts do not contain it.
inline constexpr std::string_view kLiteralMark = "\uFDD0";

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // InvalidArgument (with the byte offset) if `text` is not valid UTF-8.
  virtual absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                                      const EncodeOptions& options) const = 0;

  // `text` as plain text for use beside special tokens: inserts a kLiteralMark into each special
  // token in it, which Encode() with has_literals then reads as plain text.
  virtual std::string Literal(std::string_view text) const { return std::string(text); }

  // The bytes of one token, before any clean-up; may be a partial UTF-8 character. Special tokens
  // give "" if skip_special. `first`: the token opens the text (SentencePiece drops its leading
  // space there). REQUIRES: id < VocabSize()
  virtual std::string TokenBytes(TokenId id, bool skip_special, bool first) const = 0;

  virtual TokenId VocabSize() const = 0;  // ids are below it
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual int64_t bos_id() const = 0;  // -1: none
  // The EOS that chat templates write: tokenizer_config.json's eos_token, or the metadata's. -1:
  // none.
  virtual int64_t eos_id() const { return -1; }
  virtual const std::vector<TokenId>& eog_ids()
      const = 0;  // every end-of-generation id of the files, sorted
  // Maximum bytes of text per token of Encode(); nullopt: unbounded.
  virtual std::optional<int64_t> MaxBytesPerToken() const { return std::nullopt; }
  // The literal text of a special or added token such as "<s>"; "" if the id has none.
  virtual std::string TokenText(TokenId id) const = 0;
};

// Whole-sequence decode; invalid UTF-8 in the result becomes U+FFFD.
std::string Decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special);

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& file);
// The GGUF tokenizer as Hugging Face's tokenizer.json. Unimplemented if the format cannot express
// it.
absl::StatusOr<std::string> TokenizerJsonFromGguf(const GgufFile& file);
// A folder with tokenizer.json, with tokenizer.model (SentencePiece), or with vocab.json and
// merges.txt (and optionally tokenizer_config.json, generation_config.json); or a path to one of
// the first two files.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromPath(const std::string& path);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_H_
