#include "kernels/cpu/eviction/select.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cpu/eviction/rank_key.h"

namespace hydrant::cpu {
namespace {

// Writes the positions of the `count` highest scores in [begin, end), in ascending order.
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

// An unprotected entry of any head.
struct RankedEntry {
  uint64_t rank;
  int head;
};

// A selection with one total for all heads.
class SharedSelection {
 public:
  explicit SharedSelection(const SelectArgs& args)
      : args_(args),
        begin_(std::min(args.sinks, args.n)),
        end_(std::max(begin_, args.n - args.recent)),
        cuts_(args.num_kv_heads, UINT64_MAX) {}

  void Run(ThreadPool& threads) {
    const int heads = args_.num_kv_heads;
    const int left = args_.total - heads * (args_.n - (end_ - begin_));
    if (left > 0) ShareOut(left);
    threads.ParallelFor(heads, [&](int head, int) { Write(head); });
  }

 private:
  uint64_t RankOf(int head, int32_t position) const {
    return RankKey(args_.scores[head * args_.score_stride + position], position);
  }

  void ShareOut(int left) {
    std::vector<RankedEntry> candidates;
    candidates.reserve(static_cast<size_t>(args_.num_kv_heads) * (end_ - begin_));
    for (int head = 0; head < args_.num_kv_heads; ++head) {
      for (int32_t i = begin_; i < end_; ++i) candidates.push_back({RankOf(head, i), head});
    }
    const auto last = candidates.begin() + (left - 1);
    std::nth_element(candidates.begin(), last, candidates.end(),
                     [](const RankedEntry& a, const RankedEntry& b) {
                       return a.rank != b.rank ? a.rank > b.rank : a.head < b.head;
                     });
    // Entries with the same rank as the last kept one are dropped in higher heads.
    for (int head = 0; head < args_.num_kv_heads; ++head)
      cuts_[head] = last->rank + (head > last->head ? 1 : 0);
  }

  void Write(int head) {
    int32_t* const row = args_.kept + head * args_.kept_stride;
    int32_t* kept = row;
    for (int32_t i = 0; i < args_.n; ++i) {
      const bool open = i >= begin_ && i < end_;
      if (!open || RankOf(head, i) >= cuts_[head]) *kept++ = i;
    }
    args_.counts[head] = static_cast<int32_t>(kept - row);
  }

  const SelectArgs& args_;
  const int32_t begin_, end_;
  std::vector<uint64_t> cuts_;  // per head, the lowest rank that is kept
};

}  // namespace

void Select(const SelectArgs& args, ThreadPool& threads) {
  if (args.counts != nullptr) {
    SharedSelection(args).Run(threads);
    return;
  }
  threads.ParallelFor(args.num_kv_heads, [&](int head, int) { SelectHead(args, head); });
}

}  // namespace hydrant::cpu
