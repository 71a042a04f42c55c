#include "kernels/ops/select.h"

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

// Sets counts: the protected entries first, then the rest of the total, one best entry at a time.
void ShareTotal(const SelectArgs& args) {
  struct Entry {
    float score;
    int32_t position;
    int head;
  };
  const int begin = std::min(args.sinks, args.n), end = std::max(begin, args.n - args.recent);
  const int guarded = args.n - (end - begin);
  std::vector<Entry> open;  // unprotected entries of all heads
  for (int h = 0; h < args.num_kv_heads; ++h) {
    for (int i = begin; i < end; ++i)
      open.push_back({Score(args.scores[h * args.score_stride + i]), i, h});
    args.counts[h] = guarded;
  }
  std::sort(open.begin(), open.end(), [](const Entry& a, const Entry& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.position != b.position ? a.position > b.position : a.head < b.head;
  });
  const int left = args.total - args.num_kv_heads * guarded;
  for (int i = 0; i < left; ++i) ++args.counts[open[i].head];
}

}  // namespace

void Select(const SelectArgs& args) {
  if (args.counts != nullptr) {
    ShareTotal(args);
    SelectArgs shared = args;
    shared.counts = nullptr;
    shared.keep = args.counts;
    Select(shared);
    return;
  }
  for (int h = 0; h < args.num_kv_heads; ++h) SelectHead(args, h);
}

}  // namespace hydrant::reference
