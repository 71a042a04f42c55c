// The newest token of every sequence, kept on the device, so that a step can be enqueued before the
// host has read the tokens that the previous step sampled.
#ifndef HYDRANT_KERNELS_OPS_LAST_TOKENS_H_
#define HYDRANT_KERNELS_OPS_LAST_TOKENS_H_

#include <cstdint>

namespace hydrant {

// StoreLastTokens: last_tokens[slots[i]] = tokens[i].
// ReadLastTokens: tokens[i] = last_tokens[slots[i]] where tokens[i] is UINT32_MAX. UINT32_MAX in
// last_tokens, left by a failed sequence, is read as token 0: its row continues until the host
// knows of the failure.
struct LastTokensArgs {
  uint32_t* tokens = nullptr;      // [num_rows]
  const int32_t* slots = nullptr;  // [num_rows], all different; below 0: the row is skipped
  int num_rows = 0;
  uint32_t* last_tokens = nullptr;  // [slots]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_LAST_TOKENS_H_
