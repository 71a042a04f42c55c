#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/sentencepiece_model.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(
    std::string_view model, const SentencePieceOptions& options) {
  absl::StatusOr<SentencePieceModel> read = ReadSentencePieceModel(model);
  if (!read.ok()) return read.status();
  TokenizerSpec& spec = read->spec;
  if (options.add_bos && spec.bos_id >= 0) spec.prefix = {static_cast<TokenId>(spec.bos_id)};
  if (options.add_eos && read->eos_id >= 0) spec.suffix = {static_cast<TokenId>(read->eos_id)};
  if (read->eos_id >= 0) spec.eog_ids.push_back(static_cast<TokenId>(read->eos_id));
  for (const TokenId id : options.eog_ids) {
    if (id < spec.vocab.size()) spec.eog_ids.push_back(id);
  }
  return MakePipelineTokenizer(spec);
}

}  // namespace hydrant
