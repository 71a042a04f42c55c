#include "kernels/cpu/select.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cpu/rank_key.h"

namespace hydrant::cpu {
namespace {

// Writes the `count` highest of positions [begin, end) in ascending order.
void SelectHighest(const float* scores, int32_t begin, int32_t end, int32_t count, int32_t* kept) {
  if (count <= 0) return;
  std::vector<uint64_t> keys(end - begin);
  for (int32_t i = begin; i < end; ++i) keys[i - begin] = RankKey(scores[i], i);
  std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end(), std::greater<>());
  const uint64_t lowest_kept = keys[count - 1];
  for (int32_t i = begin; i < end; ++i) {
    if (RankKey(scores[i], i) >= lowest_kept) *kept++ = i;
  }
}

void SelectHead(const SelectArgs& args, int head) {
  const int32_t keep = args.keep[head];
  int32_t* kept = args.kept + head * args.kept_stride;
  const int32_t sinks = std::min(args.sinks, args.n);
  const int32_t recent_begin = std::max(sinks, args.n - args.recent);
  const int32_t middle = keep - sinks - (args.n - recent_begin);
  for (int32_t i = 0; i < sinks; ++i) *kept++ = i;
  SelectHighest(args.scores + head * args.score_stride, sinks, recent_begin, middle, kept);
  kept += middle;
  for (int32_t i = recent_begin; i < args.n; ++i) *kept++ = i;
}

}  // namespace

void Select(const SelectArgs& args, ThreadPool& threads) {
  threads.ParallelFor(args.num_kv_heads, [&](int head, int) { SelectHead(args, head); });
}

}  // namespace hydrant::cpu
