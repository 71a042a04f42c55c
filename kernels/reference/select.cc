#include "kernels/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

// A NaN score counts as -infinity.
float Score(float score) {
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

void SelectHead(const SelectArgs& args, int head) {
  const float* scores = args.scores + head * args.score_stride;
  const int keep = args.keep[head];
  std::vector<int32_t> order(args.n);
  std::iota(order.begin(), order.end(), 0);
  auto is_protected = [&](int32_t i) { return i < args.sinks || i >= args.n - args.recent; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (is_protected(a) != is_protected(b)) return is_protected(a);
    const float score_a = Score(scores[a]), score_b = Score(scores[b]);
    return score_a != score_b ? score_a > score_b : a > b;
  });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), args.kept + head * args.kept_stride);
}

}  // namespace

void Select(const SelectArgs& args) {
  for (int h = 0; h < args.num_kv_heads; ++h) SelectHead(args, h);
}

}  // namespace hydrant::reference
