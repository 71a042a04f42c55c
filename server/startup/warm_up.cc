#include "server/startup/warm_up.h"

namespace hydrant {

absl::Status WarmUp(const StartupRequests& requests, const Tokenizer& tokenizer) {
  Request request;
  request.prompt = {tokenizer.bos_id() >= 0 ? static_cast<TokenId>(tokenizer.bos_id())
                                            : TokenId{0}};
  request.sampling.temperature = 0;
  request.stopping.max_tokens = 1;
  return requests.Run({std::move(request)}).status();
}

}  // namespace hydrant
