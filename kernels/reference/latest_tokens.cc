#include "kernels/latest_tokens.h"

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void KeepLatest(const LatestTokensArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    if (args.slots[i] >= 0) args.latest[args.slots[i]] = args.tokens[i];
  }
}

void TakeLatest(const LatestTokensArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    if (args.slots[i] < 0 || args.tokens[i] != UINT32_MAX) continue;
    const uint32_t latest = args.latest[args.slots[i]];
    args.tokens[i] = latest == UINT32_MAX ? 0 : latest;
  }
}

}  // namespace hydrant::reference
