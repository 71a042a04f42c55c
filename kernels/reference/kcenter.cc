#include "kernels/ops/kcenter.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/reference/ops.h"
#include "kernels/reference/squared_distances.h"

namespace hydrant::reference {
namespace {

void ChooseCentres(const KCenterArgs& args, int head) {
  const float* k = args.k.f32() + head * args.kv_head_stride;
  float* scores = args.scores + head * args.score_stride;
  std::fill_n(scores, args.n, 0.0f);
  // Distance to the nearest centre; below 0 for the centres themselves.
  std::vector<float> nearest(args.n, std::numeric_limits<float>::infinity());
  std::vector<float> distances(args.n);
  for (int i = 0; i < args.centres; ++i) {
    const auto farthest = std::max_element(nearest.begin(), nearest.end());  // ties: the first
    const int64_t centre = farthest - nearest.begin();
    scores[centre] = static_cast<float>(args.n - i);
    DoubleDistances::SquaredDistances(k + centre * args.head_dim, k, args.n, args.head_dim,
                                      distances.data());
    for (int j = 0; j < args.n; ++j)
      if (distances[j] < nearest[j]) nearest[j] = distances[j];
    nearest[centre] = -1.0f;
  }
}

}  // namespace

void KCenter(const KCenterArgs& args) {
  for (int h = 0; h < args.num_kv_heads; ++h) ChooseCentres(args, h);
}

}  // namespace hydrant::reference
