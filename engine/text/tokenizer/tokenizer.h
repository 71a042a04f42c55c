// Text to token ids and back, exactly as Hugging Face `tokenizers` does it for the same files.
// A Tokenizer is immutable after it is made: any thread may call it at the same time.
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
  bool add_special_tokens =
      true;  // BOS (and EOS) where the tokenizer's own files say so; never doubled
  bool parse_special_tokens =
      true;                   // "<|im_start|>" in the text becomes its id; false: it is plain text
  bool has_literals = false;  // parts of the text come from Literal()
};

// A code point that Unicode reserves for internal use, so that texts do not contain it.
inline constexpr std::string_view kLiteralMark = "\uFDD0";

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // InvalidArgument (with the byte offset) where `text` is not valid UTF-8.
  virtual absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                                      const EncodeOptions& options) const = 0;

  // `text` for use as plain text beside special tokens: each special token that is written in it
  // gets a kLiteralMark inside, and Encode() with has_literals then reads it as plain text.
  virtual std::string Literal(std::string_view text) const { return std::string(text); }

  // The bytes one token stands for, before any clean-up; may be half a UTF-8 character. Special
  // tokens give "" if skip_special. `first` says that the token opens the text (SentencePiece drops
  // its leading space there). REQUIRES: id < VocabSize()
  virtual std::string TokenBytes(TokenId id, bool skip_special, bool first) const = 0;

  virtual TokenId VocabSize() const = 0;  // ids are below it
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual int64_t bos_id() const = 0;  // -1: none
  // The one that chat templates write: tokenizer_config.json's eos_token, or the metadata's. -1:
  // none.
  virtual int64_t eos_id() const { return -1; }
  virtual const std::vector<TokenId>& eog_ids()
      const = 0;  // every end-of-generation id of the files, sorted
  // Encode() makes a token of at most so many bytes of text; nullopt: of any number.
  virtual std::optional<int64_t> MostBytesPerToken() const { return std::nullopt; }
  // The literal text of a special or added token such as "<s>"; "" if the id has none.
  virtual std::string TokenText(TokenId id) const = 0;
};

// Whole-sequence decode; invalid UTF-8 in the result becomes U+FFFD.
std::string Decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special);

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromGguf(const GgufFile& file);
// The same as Hugging Face's tokenizer.json. Unimplemented where the format has no word for it.
absl::StatusOr<std::string> TokenizerJsonFromGguf(const GgufFile& file);
// A folder with tokenizer.json, with tokenizer.model (SentencePiece), or with vocab.json and
// merges.txt (and optionally tokenizer_config.json, generation_config.json); or a path to one of
// the first two files.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromPath(const std::string& path);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_H_
