// A Tokenizer over a SentencePiece model file (tokenizer.model).
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

struct SentencePieceOptions {
  bool add_bos = true;
  bool add_eos = false;
  bool prefix_first_only = false;    // tokenizer_config.json's "legacy": false (space_escaping.h)
  std::string bos_token, eos_token;  // override the model's BOS and EOS
  std::vector<TokenId> eog_ids;      // in addition to the model's EOS
};

// `model`: the bytes of the file. InvalidArgument or Unimplemented as ReadSentencePieceModel.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(
    std::string_view model, const SentencePieceOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
