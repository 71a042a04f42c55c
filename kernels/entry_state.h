// The state of an entry, a policy's data beside its key and value: a score and a pair of numbers.
// Only this file knows where state lies and what the pair means. The meaning of its first number
// follows from the slot's rule and the time; a slot has one meaning at a time.
//
//   name            slots                                          valid from  until
//   LogWeights      with a weighted rule (SubGen); both numbers,   its write   its eviction
//                   for attention's numerator and denominator
//   WindowSum       with a prompt that is cut in pages: attention  WritePages  RetainedMass,
//                   from the prompt's last queries                             KeepForMass
//   SecondScore     with scores that are mixed later (CO2)         WritePages  CombineCachedScores
//   BelowMeanCount  with the revision kBelowMean (Scissorhands)    WritePages  its eviction
//
// In other slots only copies read and write the pair.
#ifndef HYDRANT_KERNELS_ENTRY_STATE_H_
#define HYDRANT_KERNELS_ENTRY_STATE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// State in slabs, ordinary pages of the pool: a state id (PageIds::state) indexes lines of
// block_size floats counted from the start of the key array. Line 0 of a state is the scores of a
// page's entries, lines 1 and 2 are their pairs.
inline void PlaceStateInSlabs(KvPages* pages) {
  pages->layout.log_weight_stride = pages->layout.block_size;
  pages->scores = static_cast<float*>(pages->keys);
  pages->log_weights = pages->scores + pages->layout.block_size;
}

// State in arrays of its own, indexed like the pages. scores: [num_blocks, block_size], pairs:
// [num_blocks, block_size, 2].
inline void PlaceStateBeside(float* scores, float* pairs, KvPages* pages) {
  pages->layout.log_weight_stride = 0;
  pages->scores = scores;
  pages->log_weights = pairs;
}

// Index of entry `entry` of the head that owns `blocks` in keys, values and positions.
constexpr size_t PageIndex(const KvLayout& layout, const PageIds* blocks, int entry) {
  return static_cast<size_t>(blocks[entry / layout.block_size].data) * layout.block_size +
         entry % layout.block_size;
}
// Index of the same entry in scores.
constexpr size_t StateIndex(const KvLayout& layout, const PageIds* blocks, int entry) {
  return static_cast<size_t>(blocks[entry / layout.block_size].state) * layout.block_size +
         entry % layout.block_size;
}

// [2]; pairs of consecutive entries of a page are contiguous.
constexpr float* PairOf(const KvPages& pages, const PageIds* blocks, int entry) {
  const int block_size = pages.layout.block_size;
  return pages.log_weights +
         static_cast<size_t>(blocks[entry / block_size].state) * pages.layout.LogWeightStride() +
         2 * (entry % block_size);
}
// [numerator, denominator]
constexpr float* LogWeightsOf(const KvPages& pages, const PageIds* blocks, int entry) {
  return PairOf(pages, blocks, entry);
}
constexpr float& WindowSumOf(const KvPages& pages, const PageIds* blocks, int entry) {
  return *PairOf(pages, blocks, entry);
}
constexpr float& SecondScoreOf(const KvPages& pages, const PageIds* blocks, int entry) {
  return *PairOf(pages, blocks, entry);
}
constexpr float& BelowMeanCountOf(const KvPages& pages, const PageIds* blocks, int entry) {
  return *PairOf(pages, blocks, entry);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_ENTRY_STATE_H_
