#include "kernels/ops/share_budget.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void ShareBudget(const ShareBudgetArgs& args) {
  std::vector<int64_t> remainders(args.heads);
  int64_t left = int64_t{args.heads} * args.base;
  for (int h = 0; h < args.heads; ++h) {
    const int64_t share =
        int64_t{args.floor_ppm} * args.base +
        int64_t{kPartsPerMillion - args.floor_ppm} * (args.best[h] - args.counted);
    args.keep[h] = static_cast<int32_t>(share / kPartsPerMillion);
    remainders[h] = share % kPartsPerMillion;
    left -= args.keep[h];
  }
  std::vector<int> order(args.heads);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return remainders[a] > remainders[b]; });
  for (int64_t i = 0; i < left; ++i) ++args.keep[order[i]];
  for (int h = 0; h < args.heads; ++h) args.keep[h] += args.guarded;
}

}  // namespace hydrant::reference
