#include "kernels/cpu/eviction/kcenter.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/eviction/squared_distances.h"

namespace hydrant::cpu {
namespace {

constexpr int kPiece = 256;  // keys per distance computation

// The key farthest from its nearest centre; the first among equals.
struct Farthest {
  float distance = -1.0f;
  int key = 0;
};

// Adds `centre`: updates each key's distance to its nearest centre.
Farthest Approach(const KCenterArgs& args, const float* k, int centre, float* nearest) {
  std::array<float, kPiece> distances = {};
  Farthest farthest;
  nearest[centre] = -1.0f;
  for (int begin = 0; begin < args.n; begin += kPiece) {
    const int count = std::min(kPiece, args.n - begin);
    VectorDistances::SquaredDistances(k + static_cast<int64_t>(centre) * args.head_dim,
                                      k + static_cast<int64_t>(begin) * args.head_dim, count,
                                      args.head_dim, distances.data());
    for (int j = 0; j < count; ++j) {
      float& distance = nearest[begin + j];
      if (distances[j] < distance) distance = distances[j];
      if (distance > farthest.distance) farthest = {distance, begin + j};
    }
  }
  return farthest;
}

void ChooseCentres(const KCenterArgs& args, int head) {
  const float* k = args.k.f32() + head * args.kv_head_stride;
  float* scores = args.scores + head * args.score_stride;
  std::fill_n(scores, args.n, 0.0f);
  std::vector<float> nearest(args.n, std::numeric_limits<float>::infinity());
  Farthest next;
  for (int i = 0; i < args.centres; ++i) {
    scores[next.key] = static_cast<float>(args.n - i);
    next = Approach(args, k, next.key, nearest.data());
  }
}

}  // namespace

void KCenter(const KCenterArgs& args, ThreadPool& threads) {
  threads.ParallelFor(args.num_kv_heads, [&args](int head, int) { ChooseCentres(args, head); });
}

}  // namespace hydrant::cpu
