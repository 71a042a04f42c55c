#include "engine/text/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>

#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/sentencepiece_model.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

int64_t IdOf(const TokenizerSpec& spec, std::string_view text, int64_t otherwise) {
  const auto found = std::ranges::find(spec.vocab, text, &VocabEntry::text);
  return text.empty() || found == spec.vocab.end() ? otherwise : found - spec.vocab.begin();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(
    std::string_view model, const SentencePieceOptions& options) {
  HYDRANT_ASSIGN_OR_RETURN(TokenizerSpec spec,
                           ReadSentencePieceModel(model, options.prefix_first_only));
  spec.bos_id = IdOf(spec, options.bos_token, spec.bos_id);
  spec.eos_id = IdOf(spec, options.eos_token, spec.eos_id);
  if (options.add_bos && spec.bos_id >= 0) spec.prefix = {static_cast<TokenId>(spec.bos_id)};
  if (options.add_eos && spec.eos_id >= 0) spec.suffix = {static_cast<TokenId>(spec.eos_id)};
  if (spec.eos_id >= 0) spec.eog_ids.push_back(static_cast<TokenId>(spec.eos_id));
  for (const TokenId id : options.eog_ids) {
    if (id < spec.vocab.size()) spec.eog_ids.push_back(id);
  }
  return MakePipelineTokenizer(spec);
}

}  // namespace hydrant
