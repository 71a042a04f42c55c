#include "scheduler/recall.h"

#include <algorithm>
#include <span>
#include <vector>

#include "engine/text/passages/passages.h"
#include "scheduler/context.h"

namespace hydrant {
namespace {

bool HasEvicted(const Context& context) {
  return context.plan.Compresses() || context.plan.cap != kNoCap;
}

// Tokens that still fit beside the prompt and its answer.
int64_t RoomFor(const Request& request, int64_t max_model_len) {
  const int64_t answer = std::max<int64_t>(1, request.stopping.max_tokens.value_or(1));
  return max_model_len - static_cast<int64_t>(request.prompt.size()) - answer;
}

}  // namespace

absl::Status Recall(const Tokenizer& tokenizer, int64_t num_asked, int64_t max_model_len,
                    Request* request) {
  if (request->recall_tokens == 0) return absl::OkStatus();
  if (request->context.empty()) {
    return absl::InvalidArgumentError(
        "recall_tokens: needs a context, whose passages are read again");
  }
  if (request->whole_conversation) {
    return absl::InvalidArgumentError(
        "recall_tokens: needs a chat that continues its context (chat.continues_context), because "
        "a whole conversation begins with the context's tokens");
  }
  if (!HasEvicted(*request->from)) return absl::OkStatus();
  std::vector<TokenId>& prompt = request->prompt;
  const AskedTokens range = request->asked.value_or(AskedTokens{.begin = num_asked});
  const auto asked = prompt.end() - range.begin;
  const std::span<const TokenId> text = request->from->tokens;
  const std::vector<Passage> passages =
      FindPassages(tokenizer, text, {asked, prompt.end() - range.end},
                   std::min(request->recall_tokens, RoomFor(*request, max_model_len)));
  const std::vector<TokenId> recalled = PassageTokens(text, passages);
  request->recalled_tokens = static_cast<int32_t>(recalled.size());
  prompt.insert(asked, recalled.begin(), recalled.end());
  return absl::OkStatus();
}

}  // namespace hydrant
