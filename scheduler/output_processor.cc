#include "scheduler/output_processor.h"

#include <algorithm>

namespace hydrant {

OutputProcessor::OutputProcessor(const Tokenizer* tokenizer, const StoppingParams& stopping,
                                 bool skip_special_tokens)
    : detokenizer_(tokenizer, skip_special_tokens, /*continues=*/true),
      matcher_(stopping.stop, stopping.include_stop_str_in_output),
      stop_ids_(stopping.stop_token_ids),
      min_tokens_(stopping.min_tokens) {
  if (!stopping.ignore_eos) eog_ids_ = tokenizer->eog_ids();
  std::sort(stop_ids_.begin(), stop_ids_.end());
}

bool OutputProcessor::EndsText(TokenId id) const {
  return std::find(eog_ids_.begin(), eog_ids_.end(), id) != eog_ids_.end() ||
         std::binary_search(stop_ids_.begin(), stop_ids_.end(), id);
}

OutputProcessor::Output OutputProcessor::Push(TokenId id) {
  ++num_tokens_;
  if (num_tokens_ < min_tokens_) {
    return {.deliver_id = true, .ends = false, .text = detokenizer_.Push(id)};
  }
  if (EndsText(id)) {
    matched_token_id_ = id;
    return {.deliver_id = false, .ends = true, .text = Finish()};
  }
  std::string text = matcher_.Push(detokenizer_.Push(id));
  return {.deliver_id = true, .ends = matcher_.matched(), .text = std::move(text)};
}

std::string OutputProcessor::Finish() {
  if (matcher_.matched()) return "";
  std::string text = matcher_.Flush();
  return text += detokenizer_.Flush();
}

std::string OutputProcessor::matched_stop() const {
  return matcher_.matched() ? matcher_.matched_stop() : "";
}

}  // namespace hydrant
