// Greedy merging of adjacent symbols, lowest rank first and leftmost on ties, in O(n log n). Shared
// by both kinds of byte-pair encoding. Scratch for one call; not thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_MERGE_QUEUE_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_MERGE_QUEUE_H_

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

struct MergeSymbol {
  size_t begin, length;  // bytes of the piece; length 0: merged away
  int64_t id;            // -1: no token
};

struct MergeStep {
  double rank;
  int64_t id;  // of the result
};

// `pair(left, right)` returns std::optional<MergeStep>. The symbols cover the piece without gaps.
// On return, symbols of length 0 have been merged into their left neighbour.
template <typename PairRule>
void MergeSymbols(std::vector<MergeSymbol>* symbols, PairRule pair) {
  struct Candidate {
    double rank;
    size_t left;
    size_t length;  // of both, to detect a stale candidate
    int64_t id;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<MergeSymbol>& all = *symbols;
  const size_t count = all.size();
  std::vector<size_t> next(count), previous(count);
  std::vector<Candidate> heap_storage;
  heap_storage.reserve(count);
  std::priority_queue<Candidate> candidates(std::less<Candidate>(), std::move(heap_storage));
  const auto consider = [&](size_t left, size_t right) {
    if (const std::optional<MergeStep> step = pair(all[left], all[right])) {
      candidates.push({step->rank, left, all[left].length + all[right].length, step->id});
    }
  };
  for (size_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // wraps for the first, which is never used
    if (i + 1 < count) consider(i, i + 1);
  }
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    MergeSymbol& left = all[best.left];
    const size_t right_index = next[best.left];
    if (left.length == 0 || right_index >= count) continue;
    MergeSymbol& right = all[right_index];
    if (left.length + right.length != best.length) continue;
    left.length = best.length;
    left.id = best.id;
    right.length = 0;
    next[best.left] = next[right_index];
    if (next[right_index] < count) {
      previous[next[right_index]] = best.left;
      consider(best.left, next[right_index]);
    }
    if (best.left > 0) consider(previous[best.left], best.left);
  }
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_MERGE_QUEUE_H_
