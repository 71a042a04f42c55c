#include <algorithm>
#include <array>

#include "engine/tokenizer/pipeline_tokenizer.h"

namespace hydrant {

bool IsKnownEndOfGeneration(std::string_view text) {
  // Llama 2/3, ChatML (Qwen, SmolLM), GPT-2 and NeoX, Phi-3 and Zephyr, Gemma, Mistral, DeepSeek.
  static constexpr std::array<std::string_view, 11> kKnown = {"</s>",
                                                              "<|eot_id|>",
                                                              "<|eom_id|>",
                                                              "<|end_of_text|>",
                                                              "<|im_end|>",
                                                              "<|endoftext|>",
                                                              "<|end|>",
                                                              "<end_of_turn>",
                                                              "<|end_of_turn|>",
                                                              "<EOT>",
                                                              "<｜end▁of▁sentence｜>"};
  return std::find(kKnown.begin(), kKnown.end(), text) != kKnown.end();
}

std::vector<TokenId> SurroundOnce(const std::vector<TokenId>& prefix, std::vector<TokenId> ids,
                                  const std::vector<TokenId>& suffix) {
  const bool has_prefix =
      ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!has_prefix) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  const bool has_suffix =
      ids.size() >= suffix.size() && std::equal(suffix.rbegin(), suffix.rend(), ids.rbegin());
  if (!has_suffix) ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

}  // namespace hydrant
