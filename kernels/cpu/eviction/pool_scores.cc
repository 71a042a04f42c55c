#include "kernels/cpu/eviction/pool_scores.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kernels/cpu/isa/parallel_rows.h"

namespace hydrant::cpu {
namespace {

constexpr int kPiecePooled = 1024;  // positions per task

// Calls add(total of position j, score) for one window offset after the other, each over all
// positions [begin, end) of a piece: loops that the compiler vectorises.
template <typename T, typename Add>
void OverWindows(const float* scores, int n, int kernel, int begin, int end, T* totals,
                 const Add& add) {
  for (int offset = -(kernel / 2); offset <= kernel / 2; ++offset) {
    const int last = std::min(end, n - offset);
    for (int j = std::max(begin, -offset); j < last; ++j)
      totals[j - begin] = add(totals[j - begin], scores[j + offset]);
  }
}

void PoolPiece(const PoolScoresArgs& args, int head, int begin, int end) {
  const float* scores = args.scores + head * args.score_stride;
  float* out = args.out + head * args.out_stride + begin;
  if (args.pooling == Pooling::kMax) {
    std::fill_n(out, end - begin, -std::numeric_limits<float>::infinity());
    OverWindows(scores, args.n, args.kernel, begin, end, out,
                [](float highest, float score) { return score > highest ? score : highest; });
    return;
  }
  std::array<double, kPiecePooled> sums = {};
  OverWindows(scores, args.n, args.kernel, begin, end, sums.data(),
              [](double sum, float score) { return sum + score; });
  for (int j = 0; j < end - begin; ++j) out[j] = static_cast<float>(sums[j] / args.kernel);
}

}  // namespace

void PoolScores(const PoolScoresArgs& args, ThreadPool& threads) {
  const int pieces = (args.n + kPiecePooled - 1) / kPiecePooled;
  ParallelRows(threads, args.num_kv_heads * pieces, int64_t{kPiecePooled} * args.kernel,
               [&](int row) {
                 const int begin = row % pieces * kPiecePooled;
                 PoolPiece(args, row / pieces, begin, std::min(begin + kPiecePooled, args.n));
               });
}

}  // namespace hydrant::cpu
