// Scales the channels of stored keys for caches that round them in blocks of 32 channels (int8, int4;
// kernels/page_row.h): a block's error is spread evenly over its channels and grows with the largest.
// In some models, such as Qwen2.5 with its biased keys, a few channels are a hundred times as large
// as the others, which would then round to zero. Attention does not change: see the two members.
// Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_KEY_SCALING_H_
#define HYDRANT_ENGINE_RUN_FORWARD_KEY_SCALING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"

namespace hydrant {

struct KeyScaling {
  // [num_heads + num_kv_heads, head_dim]: of the queries' heads, then of the keys'. Rotated keys are
  // multiplied by them, and queries by the inverse, so that products stay the same to the bit: they
  // are powers of two. Channels that RoPE rotates together have the same factor.
  std::vector<float> factors;
  // [num_kv_heads, head_dim] or empty: subtracted from rotated keys, after the factors. The softmax
  // over a head's keys does not change, as long as nothing but keys takes part in it.
  std::vector<float> offsets;
};

// Positions over which the constant part of keys is averaged for `offsets`. RoPE rotates it by the
// position's angle, which stays small in slow channels: only there a mean remains.
inline constexpr int kCentrePositions = 2048;

// Whether a layer's softmax allows offsets: it has no sink logit and no soft cap.
bool MayCentreKeys(const ModelConfig& config, const LayerTensors& tensors);

// From the weights alone, in double. A channel of a query or key has a constant part
// c = b + W_c . g' and a varying one of mean square |W_c * g|^2: row W_c of the projection with bias
// b, behind a norm with weights g and biases g', whose inputs count as independent. Where queries and
// keys are normalised, the constant part is 0 and the varying one the squared weight of that norm. A
// key channel's offset is the mean of the rotated constant part. Its factor is the power of two next
// to sqrt(s_q / s_k), of the root mean squares s_q of the queries of its group and s_k of the rest of
// the key: scaled keys and queries are then equally large in each channel, which makes the product
// of their lengths, and so the error of a logit, the least (as SmoothQuant, arXiv 2211.10438,
// equation 4 with alpha 0.5, divides it between activations and weights). Squares count as at least
// 1e-4 of the head's largest. centre: with offsets, else the constant part counts as varying. Errors
// name a tensor that cannot be read.
absl::StatusOr<KeyScaling> KeyScalingOf(const LayerTensors& tensors, const ModelConfig& config,
                                        int layer, bool centre);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_KEY_SCALING_H_
