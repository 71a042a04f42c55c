// What a request says about single tokens, before penalties and all else: a bias is added to the
// logits of some, and those that may not be drawn become -infinity.
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
  const int32_t* rows = nullptr;      // [num_biases] whose logits
  const TokenBias* biases = nullptr;  // [num_biases]; a row has each token once at most
};

// 32 tokens a word, token i in bit i % 32 of word i / 32: set where it may be drawn.
constexpr int MaskWords(int vocab) { return (vocab + 31) / 32; }

struct MaskLogitsArgs {
  float* logits = nullptr;  // [*, vocab], changed in place
  int vocab = 0;
  int num_masks = 0;
  const int32_t* rows = nullptr;    // [num_masks] whose logits; different ones
  const uint32_t* masks = nullptr;  // [num_masks, MaskWords(vocab)]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_EDIT_LOGITS_H_
