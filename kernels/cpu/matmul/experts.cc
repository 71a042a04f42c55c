#include "kernels/cpu/matmul/experts.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/isa/parallel_rows.h"
#include "kernels/reference/route_experts.h"

namespace hydrant::cpu {

void RouteExperts(const RouteExpertsArgs& args, ThreadPool& threads) {
  // Each expert costs a comparison and maybe an exponential.
  constexpr int64_t kElementsPerExpert = 8;
  ParallelRows(threads, args.rows, args.experts * kElementsPerExpert,
               [&](int row) { reference::ChooseExperts(args, row); });
  reference::GroupByExpert(args);
}

void CombineExperts(const CombineExpertsArgs& args, ThreadPool& threads) {
  constexpr int kAtOnce = 64;
  const size_t n = args.n;
  ParallelRows(threads, args.rows, int64_t{args.n} * args.per_row, [&](int row) {
    const float* weights = args.weights + static_cast<size_t>(row) * args.per_row;
    const int32_t* places = args.places + static_cast<size_t>(row) * args.per_row;
    for (size_t first = 0; first < n; first += kAtOnce) {
      const size_t count = std::min<size_t>(kAtOnce, n - first);
      float sums[kAtOnce] = {};
      for (int c = 0; c < args.per_row; ++c) {
        const float* y = args.y + places[c] * n + first;
        for (size_t j = 0; j < count; ++j) sums[j] += weights[c] * y[j];
      }
      float* out = args.out + row * n + first;
      for (size_t j = 0; j < count; ++j) out[j] += sums[j];
    }
  });
}

}  // namespace hydrant::cpu
