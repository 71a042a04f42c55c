// Per-token edits of a request, before penalties and sampling: biases are added to logits, and
// masked tokens get -infinity.
#ifndef HYDRANT_KERNELS_OPS_EDIT_LOGITS_H_
#define HYDRANT_KERNELS_OPS_EDIT_LOGITS_H_

#include <cstdint>

namespace hydrant {

struct TokenBias {
  uint32_t token = 0;
  float bias = 0.0f;
};

struct BiasLogitsArgs {
  float* logits = nullptr;  // [*, vocab], changed in place
  int vocab = 0;
  int num_biases = 0;
  const int32_t* rows = nullptr;      // [num_biases] index of the row of logits
  const TokenBias* biases = nullptr;  // [num_biases]; each token at most once per row
};

// 32 tokens per word, token i in bit i % 32 of word i / 32; a set bit allows the token.
constexpr int MaskWords(int vocab) { return (vocab + 31) / 32; }

struct MaskLogitsArgs {
  float* logits = nullptr;  // [*, vocab], changed in place
  int vocab = 0;
  int num_masks = 0;
  const int32_t* rows = nullptr;    // [num_masks] indices of rows of logits, all different
  const uint32_t* masks = nullptr;  // [num_masks, MaskWords(vocab)]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_EDIT_LOGITS_H_
