#include "kernels/ops/pool_scores.h"

#include <algorithm>
#include <limits>

#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

float Pool(const PoolScoresArgs& args, const float* scores, int j) {
  const int half = args.kernel / 2;
  double sum = 0.0;
  float highest = -std::numeric_limits<float>::infinity();
  for (int i = std::max(0, j - half); i <= std::min(args.n - 1, j + half); ++i) {
    sum += scores[i];
    if (scores[i] > highest) highest = scores[i];
  }
  return args.pooling == Pooling::kMax ? highest : static_cast<float>(sum / args.kernel);
}

}  // namespace

void PoolScores(const PoolScoresArgs& args) {
  for (int h = 0; h < args.num_kv_heads; ++h) {
    for (int j = 0; j < args.n; ++j)
      args.out[h * args.out_stride + j] = Pool(args, args.scores + h * args.score_stride, j);
  }
}

}  // namespace hydrant::reference
