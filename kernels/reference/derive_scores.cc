#include "kernels/ops/derive_scores.h"

#include <cmath>

#include "kernels/random.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

float Derive(const DeriveScoresArgs& args, int head, int j) {
  const int64_t index = head * args.stride + j;
  switch (args.step) {
    case ScoreStep::kCombine: {
      const float a = args.weight_a * args.a[index];
      return args.b == nullptr ? a : a + args.weight_b * args.b[index];
    }
    case ScoreStep::kAverageHeads: {
      double sum = 0.0;
      for (int h = 0; h < args.num_kv_heads; ++h) sum += args.a[h * args.stride + j];
      return static_cast<float>(sum / args.num_kv_heads);
    }
    case ScoreStep::kTimesLength: {
      const float* row = args.rows.f32() + head * args.row_head_stride + int64_t{j} * args.dims;
      return args.a[index] * static_cast<float>(std::sqrt(SquaredLength(row, args.dims)));
    }
    case ScoreStep::kRandom:
      break;
  }
  return UnitFloat(RandomBits(ScoreSeed(args.seed, args.layer, head), j));
}

}  // namespace

// Position by position: out may alias a, and an average needs all heads of a position.
void DeriveScores(const DeriveScoresArgs& args) {
  for (int j = 0; j < args.n; ++j) {
    if (args.step == ScoreStep::kAverageHeads) {
      const float average = Derive(args, 0, j);
      for (int h = 0; h < args.num_kv_heads; ++h) args.out[h * args.stride + j] = average;
      continue;
    }
    for (int h = 0; h < args.num_kv_heads; ++h) args.out[h * args.stride + j] = Derive(args, h, j);
  }
}

}  // namespace hydrant::reference
