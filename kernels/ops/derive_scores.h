// Elementwise steps from the attention statistics of a prompt's keys to the scores that rank them.
#ifndef HYDRANT_KERNELS_OPS_DERIVE_SCORES_H_
#define HYDRANT_KERNELS_OPS_DERIVE_SCORES_H_

#include <cstdint>

#include "kernels/arena_rows.h"

namespace hydrant {

// For every head h and position j < n, into out, which may be a:
//   kCombine       weight_a * a[h, j] + weight_b * b[h, j] (b null: nothing is added), in fp32
//                  without contraction, so that every backend gives the same bits
//   kAverageHeads  the mean of a[., j] over the heads, the same for every h (TOVA, arXiv
//                  2401.06104: one kept set for a layer); summed in double, head 0 first
//   kRandom        uniform in [0, 1), from (seed, layer, h, j) alone
//   kTimesLength   a[h, j] times the L2 norm of row j of head h (squares summed in double, in
//                  ascending order): the attention that an entry receives times its contribution
enum class ScoreStep : uint8_t { kCombine, kAverageHeads, kRandom, kTimesLength };

struct DeriveScoresArgs {
  ScoreStep step = ScoreStep::kCombine;
  const float* a = nullptr;  // [num_kv_heads, stride]
  const float* b = nullptr;  // the same
  float weight_a = 1.0f;
  float weight_b = 0.0f;
  uint64_t seed = 0;
  int layer = 0;
  int num_kv_heads = 0;
  int n = 0;
  float* out = nullptr;  // [num_kv_heads, stride]
  int64_t stride = 0;    // elements
  // For kTimesLength: row j of head h at rows + h * row_head_stride + j * dims.
  ArenaRows rows = nullptr;
  int64_t row_head_stride = 0;  // elements
  int dims = 0;
};

// The products are exact in double: contraction changes no bit.
constexpr double SquaredLength(const float* row, int dims) {
  double sum = 0.0;
  for (int i = 0; i < dims; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return sum;
}

// For kRandom: 24 bits of the numbers of kernels/random.h.
constexpr uint64_t ScoreSeed(uint64_t seed, int layer, int head) {
  return seed ^ (static_cast<uint64_t>(layer) << 40 | static_cast<uint64_t>(head) << 20);
}
constexpr float UnitFloat(uint64_t bits) {
  return static_cast<float>(bits >> 40) * (1.0f / 16777216.0f);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_DERIVE_SCORES_H_
