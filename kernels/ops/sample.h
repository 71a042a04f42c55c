// The next token of each row. temperature 0 is greedy: the highest logit, ties to the lower id.
// Otherwise, in this order: logits / temperature, keep the top_k highest, keep those with
// probability >= min_p * the highest, keep the smallest set with a probability of top_p or more (at
// least one), renormalise, and draw. top_p is relative to the candidates left by the previous cuts.
// Candidates rank by logit, ties to the lower id; the draw walks them by id. NaN counts as
// -infinity. The draw uses one uniform number from (seed, position) alone, so a row's token never
// depends on the batch, and a resumed sequence repeats it.
#ifndef HYDRANT_KERNELS_OPS_SAMPLE_H_
#define HYDRANT_KERNELS_OPS_SAMPLE_H_

#include <cstdint>

#include "kernels/ops/penalize.h"

namespace hydrant {

struct SamplingRow {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  int32_t top_k = 0;         // 0: all
  uint64_t seed = 0;
  int32_t position = 0;      // position the sampled token will have
  Penalties penalties = {};  // for Penalize; Sample ignores them
};

struct SampleArgs {
  const float* logits = nullptr;  // [num_rows, row_stride], of which the first vocab count
  int num_rows = 0;
  int vocab = 0;
  int row_stride = 0;                 // at least vocab; 0: vocab
  const SamplingRow* rows = nullptr;  // [num_rows]
  uint32_t* tokens = nullptr;  // [num_rows]; UINT32_MAX where a row's logits hold no finite value
  // False where no row draws (all have temperature 0), no row has a top_k, or no row has a top_p
  // below 1: a device, which reads its rows late, then skips passes over the logits.
  bool any_drawn = true, any_top_k = true, any_top_p = true;

  constexpr const float* Row(int row) const {
    return logits + static_cast<int64_t>(row) * (row_stride > 0 ? row_stride : vocab);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SAMPLE_H_
