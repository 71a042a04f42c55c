#include "engine/text/tokenizer/sentencepiece_model.h"

#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/text/tokenizer/sentencepiece_character_map.h"
#include "engine/text/tokenizer/space_escaping.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status Corrupt(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.model: ", what));
}

// One field of a protobuf message: a number, or bytes (strings, messages, floats).
struct WireField {
  uint32_t number = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

// Steps through the fields of a message. After Next() returns nothing, failed() tells whether the
// bytes are malformed.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  std::optional<WireField> Next() {
    if (rest_.empty() || failed_) return std::nullopt;
    WireField field;
    const uint64_t key = Varint();
    field.number = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        field.bytes = Take(8);
        break;
      case 2:
        field.bytes = Take(Varint());
        break;
      case 5:
        field.bytes = Take(4);
        break;
      default:
        failed_ = true;
    }
    if (failed_ || field.number == 0) {
      failed_ = true;
      return std::nullopt;
    }
    return field;
  }
  bool failed() const { return failed_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    failed_ = true;
    return 0;
  }
  std::string_view Take(uint64_t count) {
    if (count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  bool failed_ = false;
};

// The relevant settings, with the defaults of SentencePiece's schema.
struct Settings {
  uint64_t model_type = 1;  // 1 unigram, 2 BPE, 3 words, 4 characters
  bool byte_fallback = false;
  int32_t unknown_id = 0, bos_id = 1, eos_id = 2;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  bool rewrites_output = false;
  std::string_view character_map;

  // ScoredBpe implements only BPE over text with escaped spaces.
  bool NeedLibrary() const {
    return model_type != 2 || !character_map.empty() || remove_extra_whitespaces ||
           !escape_whitespaces;
  }
};

// Gemma's model has these as user-defined symbols; its published tokenizers as special tokens.
bool IsMarkOfTurn(std::string_view text) {
  return text == "<start_of_turn>" || text == "<end_of_turn>";
}

// ModelProto.SentencePiece: 1 the text, 2 the score, 3 the type (the numbers GGUF took over).
absl::Status ReadPiece(std::string_view bytes, TokenizerSpec* spec) {
  enum { kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  VocabEntry entry;
  uint64_t type = 1;
  WireReader reader(bytes);
  while (const std::optional<WireField> field = reader.Next()) {
    if (field->number == 1) entry.text = std::string(field->bytes);
    if (field->number == 2 && field->bytes.size() == sizeof(float))
      std::memcpy(&entry.score, field->bytes.data(), sizeof(float));
    if (field->number == 3) type = field->value;
  }
  const size_t id = spec->vocab.size();
  if (reader.failed()) return Corrupt(absl::StrCat("piece ", id, " is cut short"));
  if (id >= kMaxVocabSize) return Corrupt(absl::StrCat("has more than ", kMaxVocabSize, " pieces"));
  entry.kind = type == kByte                                                  ? TokenKind::kByte
               : type == kUnused                                              ? TokenKind::kUnused
               : type == kUnknown || type == kControl || type == kUserDefined ? TokenKind::kControl
                                                                              : TokenKind::kNormal;
  if (entry.kind == TokenKind::kControl) {
    AddedToken added;
    added.id = static_cast<TokenId>(id);
    added.content = entry.text;
    added.special = type != kUserDefined || IsMarkOfTurn(entry.text);
    added.escaped = type == kUserDefined;
    spec->added.push_back(std::move(added));
  }
  spec->vocab.push_back(std::move(entry));
  return absl::OkStatus();
}

bool ReadTrainer(std::string_view bytes, Settings* settings) {
  WireReader reader(bytes);
  while (const std::optional<WireField> field = reader.Next()) {
    const auto id = static_cast<int32_t>(field->value);  // -1 is encoded as 2^64 - 1
    if (field->number == 3) settings->model_type = field->value;
    if (field->number == 24) settings->whitespace_as_suffix = field->value != 0;
    if (field->number == 35) settings->byte_fallback = field->value != 0;
    if (field->number == 40) settings->unknown_id = id;
    if (field->number == 41) settings->bos_id = id;
    if (field->number == 42) settings->eos_id = id;
  }
  return !reader.failed();
}

bool ReadNormalizer(std::string_view bytes, Settings* settings) {
  WireReader reader(bytes);
  while (const std::optional<WireField> field = reader.Next()) {
    if (field->number == 2) settings->character_map = field->bytes;
    if (field->number == 3) settings->add_dummy_prefix = field->value != 0;
    if (field->number == 4) settings->remove_extra_whitespaces = field->value != 0;
    if (field->number == 5) settings->escape_whitespaces = field->value != 0;
  }
  return !reader.failed();
}

// A token's text must not depend on its successors, or text could not be streamed.
absl::Status CheckSupported(const Settings& settings) {
  const char* what = settings.whitespace_as_suffix ? "puts spaces at the end of words"
                     : settings.rewrites_output    ? "rewrites its output by a character map"
                                                   : nullptr;
  if (what == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "tokenizer.model: ", what, ", which is not supported; convert it to tokenizer.json"));
}

// Chooses the encoder and its input.
absl::Status ChooseAlgorithm(const Settings& settings, std::string_view file,
                             bool prefix_first_only, TokenizerSpec* spec) {
  if (!settings.NeedLibrary()) {
    spec->algorithm = TokenizerSpec::Algorithm::kMergeScores;
    EscapeSpaces(settings.add_dummy_prefix, prefix_first_only, spec);
    return absl::OkStatus();
  }
  spec->algorithm = TokenizerSpec::Algorithm::kSentencePiece;
  spec->sentencepiece_model = std::string(file);
  // The library finds user-defined symbols itself, including adjacent spaces.
  std::erase_if(spec->added, [](const AddedToken& token) { return !token.special; });
  return CheckCharacterMap(settings.character_map);
}

void Apply(const Settings& settings, TokenizerSpec* spec) {
  const auto size = static_cast<int64_t>(spec->vocab.size());
  const auto known = [size](int32_t id) {
    return id >= 0 && id < size ? int64_t{id} : int64_t{-1};
  };
  spec->byte_fallback = settings.byte_fallback;
  spec->unknown_id = known(settings.unknown_id);
  spec->bos_id = known(settings.bos_id);
  spec->eos_id = known(settings.eos_id);
  spec->decoder.byte_fallback = true;
  spec->decoder.replacements.emplace_back(kSpaceMark, " ");
  spec->decoder.strip_first_space = settings.add_dummy_prefix;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadSentencePieceModel(std::string_view bytes,
                                                     bool prefix_first_only) {
  TokenizerSpec spec;
  Settings settings;
  WireReader reader(bytes);
  while (const std::optional<WireField> field = reader.Next()) {
    if (field->number == 1) {
      HYDRANT_RETURN_IF_ERROR(ReadPiece(field->bytes, &spec));
    }
    if (field->number == 2 && !ReadTrainer(field->bytes, &settings))
      return Corrupt("the trainer's settings are cut short");
    if (field->number == 3 && !ReadNormalizer(field->bytes, &settings))
      return Corrupt("the normaliser's settings are cut short");
    if (field->number == 5) settings.rewrites_output = !field->bytes.empty();
  }
  if (reader.failed()) return Corrupt("is no SentencePiece model, or cut short");
  if (spec.vocab.empty()) return Corrupt("has no pieces");
  absl::Status status = CheckSupported(settings);
  status.Update(ChooseAlgorithm(settings, bytes, prefix_first_only, &spec));
  if (!status.ok()) return status;
  Apply(settings, &spec);
  return spec;
}

}  // namespace hydrant
