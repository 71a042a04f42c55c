// The newest token of every sequence, kept on the device, so that a step can be enqueued before the
// host has seen what the one before it sampled.
#ifndef HYDRANT_KERNELS_LATEST_TOKENS_H_
#define HYDRANT_KERNELS_LATEST_TOKENS_H_

#include <cstdint>

namespace hydrant {

// KeepLatest: latest[slots[i]] = tokens[i].
// TakeLatest: tokens[i] = latest[slots[i]] where tokens[i] is UINT32_MAX. What a sequence that has
// failed left there, UINT32_MAX too, counts as token 0: its row goes on until the host knows.
struct LatestTokensArgs {
  uint32_t* tokens = nullptr;      // [num_rows]
  const int32_t* slots = nullptr;  // [num_rows], different ones; below 0 the row is left alone
  int num_rows = 0;
  uint32_t* latest = nullptr;  // [slots]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_LATEST_TOKENS_H_
