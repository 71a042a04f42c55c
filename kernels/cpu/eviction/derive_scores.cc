#include "kernels/cpu/eviction/derive_scores.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/isa/unroll.h"
#include "kernels/reference/ops.h"

namespace hydrant::cpu {
namespace {

constexpr int kPositionsPerTask = 128;
constexpr int kRows = 8;  // independent sums hide the latency of an addition

// kRows positions of one head from j on.
void TimesLengths(const DeriveScoresArgs& args, int head, int j) {
  const float* const row = args.rows.f32() + head * args.row_head_stride + int64_t{j} * args.dims;
  double squares[kRows] = {};
  for (int d = 0; d < args.dims; ++d) {
    Unroll<kRows>([&](auto i) __attribute__((always_inline)) {
      const double x = row[i * int64_t{args.dims} + d];
      squares[i] += x * x;
    });
  }
  const int64_t first = head * args.stride + j;
  for (int i = 0; i < kRows; ++i)
    args.out[first + i] = args.a[first + i] * static_cast<float>(std::sqrt(squares[i]));
}

// Positions [begin, end) of one head.
void TimesLength(const DeriveScoresArgs& args, int head, int begin, int end) {
  int j = begin;
  for (; j + kRows <= end; j += kRows) TimesLengths(args, head, j);
  for (; j < end; ++j) {
    const float* const row = args.rows.f32() + head * args.row_head_stride + int64_t{j} * args.dims;
    const int64_t i = head * args.stride + j;
    args.out[i] = args.a[i] * static_cast<float>(std::sqrt(SquaredLength(row, args.dims)));
  }
}

}  // namespace

// Only kTimesLength is worth threads: the other steps cost a few operations per position.
void DeriveScores(const DeriveScoresArgs& args, ThreadPool& pool) {
  if (args.step != ScoreStep::kTimesLength) return reference::DeriveScores(args);
  const int tasks = (args.n + kPositionsPerTask - 1) / kPositionsPerTask;
  pool.ParallelFor(tasks * args.num_kv_heads, [&args, tasks](int task, int) {
    const int begin = task % tasks * kPositionsPerTask;
    TimesLength(args, task / tasks, begin, std::min(begin + kPositionsPerTask, args.n));
  });
}

}  // namespace hydrant::cpu
