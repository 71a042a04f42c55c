// Log probabilities of a token and of the most probable tokens: log softmax over the logits as
// given. A token's rank is 1 + the number of tokens before it, by logit, ties to the lower id. NaN
// counts as -infinity, +infinity as FLT_MAX.
#ifndef HYDRANT_KERNELS_OPS_LOGPROBS_H_
#define HYDRANT_KERNELS_OPS_LOGPROBS_H_

#include <array>
#include <cstdint>

namespace hydrant {

inline constexpr int kTopLogprobs = 20;

struct TokenLogprobs {
  uint32_t token = 0;  // the requested token
  // NaN where the token is outside the vocabulary or no logit is finite.
  float logprob = 0.0f;
  int32_t rank = 0;
  // In rank order; unused entries are UINT32_MAX and -infinity.
  std::array<uint32_t, kTopLogprobs> top_tokens = {};
  std::array<float, kTopLogprobs> top_logprobs = {};
};

struct LogprobsArgs {
  const float* logits = nullptr;  // [num_rows, row_stride], of which the first vocab count
  int num_rows = 0;
  int vocab = 0;
  int row_stride = 0;                // at least vocab; 0: vocab
  const uint32_t* tokens = nullptr;  // [num_rows]
  TokenLogprobs* out = nullptr;      // [num_rows]

  constexpr const float* Row(int row) const {
    return logits + static_cast<int64_t>(row) * (row_stride > 0 ? row_stride : vocab);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_LOGPROBS_H_
