#include <algorithm>
#include <array>

#include "engine/text/tokenizer/pipeline_tokenizer.h"

namespace hydrant {
namespace {

// Llama 2, Mistral; Llama 3 and 4; ChatML (Qwen, SmolLM, Phi-4); GPT-2 and NeoX, OLMo, Granite;
// Phi-3 and Zephyr; Gemma; DeepSeek; gpt-oss.
constexpr std::array<std::string_view, 16> kEnds = {"</s>",
                                                    "<|eot_id|>",
                                                    "<|eom_id|>",
                                                    "<|end_of_text|>",
                                                    "<|eot|>",
                                                    "<|eom|>",
                                                    "<|im_end|>",
                                                    "<|endoftext|>",
                                                    "<|end|>",
                                                    "<end_of_turn>",
                                                    "<|end_of_turn|>",
                                                    "<EOT>",
                                                    "<|EOT|>",
                                                    "<｜end▁of▁sentence｜>",
                                                    "<|return|>",
                                                    "<|call|>"};

bool Has(const std::vector<AddedToken>& tokens, std::string_view text) {
  return std::ranges::find(tokens, text, &AddedToken::content) != tokens.end();
}

}  // namespace

std::vector<TokenId> KnownEndsOfGeneration(const std::vector<AddedToken>& tokens) {
  // In gpt-oss's format an answer has several messages, and <|end|> ends only one message.
  const bool harmony = Has(tokens, "<|return|>") && Has(tokens, "<|call|>");
  std::vector<TokenId> ids;
  for (const AddedToken& token : tokens) {
    if (std::ranges::find(kEnds, token.content) == kEnds.end()) continue;
    if (token.content == "</s>" && !token.special) continue;  // an HTML tag in Gemma
    if (token.content == "<|end|>" && harmony) continue;
    ids.push_back(token.id);
  }
  return ids;
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
