// Scores of entries from the hidden states of their tokens, without attention: a linear predictor of
// each KV head for the logarithm of the score (KVzap, arXiv 2601.07891, section 3; the targets are
// those of hydrant-eval fit).
#ifndef HYDRANT_KERNELS_OPS_PREDICT_SCORES_H_
#define HYDRANT_KERNELS_OPS_PREDICT_SCORES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// Logarithms of scores are limited to +-kMaxLogScore, so that sums of scores are finite in fp32.
inline constexpr float kMaxLogScore = 40.0f;

// out[h, i] = exp(bias[h] + weights[h] . x[i] / rms(x[i])), rms(x) = sqrt(mean of x^2); a row of
// zeros counts as 0. Each row's sums depend on the row alone.
struct PredictScoresArgs {
  const float* x = nullptr;  // [num_rows, width] the layer's input
  int num_rows = 0;
  int width = 0;
  const float* weights = nullptr;  // [num_kv_heads, width]
  const float* biases = nullptr;   // [num_kv_heads]
  int num_kv_heads = 0;
  float* out = nullptr;  // [num_kv_heads, stride]
  int64_t stride = 0;    // elements
};

// Before DecodeAttention of the same rows: stores the scores of the entries that it will append,
// for rows whose rule has `predicted`. Heads at their cap are skipped.
struct StoreNewScoresArgs {
  int num_rows = 0;
  const int32_t* slots = nullptr;  // [num_rows] below 0: padding
  int layer = 0;
  const float* scores = nullptr;  // [num_kv_heads, stride], a column a row
  int64_t stride = 0;             // elements
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_PREDICT_SCORES_H_
