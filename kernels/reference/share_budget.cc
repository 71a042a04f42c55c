#include "kernels/ops/share_budget.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace hydrant::reference {

namespace {

int64_t ShareOf(const ShareBudgetArgs& args, int head) {
  return int64_t{args.floor_ppm} * args.base +
         int64_t{kPartsPerMillion - args.floor_ppm} * (args.best[head] - args.counted);
}

void ShareWhileOthersFollow(const ShareBudgetArgs& args) {
  for (int h = 0; h < args.heads; ++h) {
    const int64_t share = (ShareOf(args, h) + kPartsPerMillion - 1) / kPartsPerMillion;
    args.keep[h] =
        static_cast<int32_t>(std::max<int64_t>(args.best[h] - args.counted, share)) + args.guarded;
  }
}

}  // namespace

void ShareBudget(const ShareBudgetArgs& args) {
  if (args.others_follow) return ShareWhileOthersFollow(args);
  std::vector<int64_t> remainders(args.heads);
  int64_t left = int64_t{args.heads} * args.base;
  for (int h = 0; h < args.heads; ++h) {
    const int64_t share = ShareOf(args, h);
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
