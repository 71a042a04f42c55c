// A tokenizer as plain data: the common result of reading tokenizer.json, vocab.json + merges.txt
// and GGUF metadata, and the input of PipelineTokenizer. Unchecked; the makers of the parts check
// it.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_SPEC_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_SPEC_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// Larger ids are refused: a corrupt file must not cause huge allocations.
inline constexpr TokenId kMaxVocabSize = 1u << 24;

enum class TokenKind : uint8_t {
  kAbsent,  // no token has this id
  kNormal,
  kByte,     // "<0x41>", one byte
  kUnused,   // SentencePiece: may be an intermediate merge, is split again
  kControl,  // never produced by the model from text
};

struct VocabEntry {
  std::string text;
  TokenKind kind = TokenKind::kAbsent;
  float score = 0;  // SentencePiece only; higher merges first
};

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;  // searched for in normalized text, in normalized form
  bool escaped = false;     // searched for in normalized text, as written
};

struct NormalizerSpec {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace, kReplaceRegex };
  Kind kind = Kind::kNfc;
  std::string pattern;  // kReplace, kReplaceRegex
  std::string content;  // kPrepend, kReplace, kReplaceRegex
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kAlways, kFirst, kNever };

struct PreTokenizerSpec {
  enum class Kind {
    kSplit,         // by `regex`
    kPrefixSpace,   // a space before a piece without one
    kEscapeSpaces,  // ' ' becomes `replacement`, also put in front by `prepend`
  };
  Kind kind = Kind::kSplit;
  std::string regex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  std::string replacement;
  PrependScheme prepend = PrependScheme::kAlways;
};

struct DecoderSpec {
  bool byte_alphabet = false;  // entries are written in GPT-2's byte alphabet
  bool byte_fallback = false;  // "<0x41>" entries are bytes
  std::vector<std::pair<std::string, std::string>> replacements;
  bool strip_first_space = false;  // the encoder added the text's leading space
  std::string drop_in_first;       // every occurrence is removed from the first token (Metaspace)
};

struct TokenizerSpec {
  enum class Algorithm { kMergeRanks, kMergeScores, kSentencePiece };
  Algorithm algorithm = Algorithm::kMergeRanks;
  std::string sentencepiece_model;  // kSentencePiece: the bytes of the file

  std::vector<VocabEntry> vocab;                            // by id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added;

  std::vector<NormalizerSpec> normalizers;
  std::vector<PreTokenizerSpec> pre_tokenizers;
  bool byte_level = false;     // the model sees bytes, and vocab texts are in the byte alphabet
  bool byte_fallback = false;  // unknown characters become byte tokens
  bool ignore_merges = false;  // a piece that is a token is not merged
  bool fuse_unknown = false;   // neighbouring unknown characters become one unknown token
  int64_t unknown_id = -1;     // -1: unknown characters are dropped

  DecoderSpec decoder;
  std::vector<TokenId> prefix, suffix;  // added by add_special_tokens
  int64_t bos_id = -1, eos_id = -1;     // of chat templates
  std::vector<TokenId> eog_ids;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_SPEC_H_
