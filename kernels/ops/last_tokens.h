// The newest token of every sequence, kept on the device, so that a step can be enqueued before the
// host has seen what the one before it sampled.
#ifndef HYDRANT_KERNELS_OPS_LAST_TOKENS_H_
#define HYDRANT_KERNELS_OPS_LAST_TOKENS_H_

#include <cstdint>

namespace hydrant {

// StoreLastTokens: last_tokens[slots[i]] = tokens[i].
// ReadLastTokens: tokens[i] = last_tokens[slots[i]] where tokens[i] is UINT32_MAX. What a sequence
// that has failed left there, UINT32_MAX too, counts as token 0: its row goes on until the host
// knows.
struct LastTokensArgs {
  uint32_t* tokens = nullptr;      // [num_rows]
  const int32_t* slots = nullptr;  // [num_rows], different ones; below 0 the row is left alone
  int num_rows = 0;
  uint32_t* last_tokens = nullptr;  // [slots]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_LAST_TOKENS_H_
