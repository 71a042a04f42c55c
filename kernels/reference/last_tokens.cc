#include "kernels/ops/last_tokens.h"

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void StoreLastTokens(const LastTokensArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    if (args.slots[i] >= 0) args.last_tokens[args.slots[i]] = args.tokens[i];
  }
}

void ReadLastTokens(const LastTokensArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    if (args.slots[i] < 0 || args.tokens[i] != UINT32_MAX) continue;
    const uint32_t last = args.last_tokens[args.slots[i]];
    args.tokens[i] = last == UINT32_MAX ? 0 : last;
  }
}

}  // namespace hydrant::reference
