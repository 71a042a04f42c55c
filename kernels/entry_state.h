// What a policy knows of an entry beside its key and value: a score, and a pair of numbers. This
// file alone knows where they lie and what the pair means. A slot's rule and the time say which of
// these its first number is; no slot has two at a time.
//
//   name              slots                              from                to
//   LogWeights        whose rule is weighted (SubGen):   it is written       it leaves
//                     both numbers, of attention's
//                     numerator and denominator
//   WindowSum         whose prompt is cut in pages: the  WritePages          RetainedMass,
//                     attention of its last queries                          KeepForMass
//   SecondScore       whose scores are mixed later       WritePages          CombineCachedScores
//                     (CO2)
//   BelowMeanCount    whose revision is kBelowMean       WritePages          it leaves
//                     (Scissorhands)
//
// Elsewhere the pair is neither read nor written, but by copies.
#ifndef HYDRANT_KERNELS_ENTRY_STATE_H_
#define HYDRANT_KERNELS_ENTRY_STATE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// State in slabs: pages that are lent for it. Its ids (PageIds::state) count lines of block_size
// floats from the beginning of the pool's keys on, wherever in the pool a slab is; the first line of
// a state has the scores of a page's entries, the two behind it their pairs.
inline void PlaceStateInSlabs(KvPages* pages) {
  pages->layout.log_weight_stride = pages->layout.block_size;
  pages->scores = static_cast<float*>(pages->keys);
  pages->log_weights = pages->scores + pages->layout.block_size;
}

// State beside the pages, in arrays of its own: a page's id is that of its state. scores: [num_blocks,
// block_size], pairs: [num_blocks, block_size, 2]
inline void PlaceStateBeside(float* scores, float* pairs, KvPages* pages) {
  pages->layout.log_weight_stride = 0;
  pages->scores = scores;
  pages->log_weights = pairs;
}

// Where entry `entry` of the head that owns `blocks` lies in keys, values and positions ...
constexpr size_t PageIndex(const KvLayout& layout, const PageIds* blocks, int entry) {
  return static_cast<size_t>(blocks[entry / layout.block_size].data) * layout.block_size +
         entry % layout.block_size;
}
// ... and in scores.
constexpr size_t StateIndex(const KvLayout& layout, const PageIds* blocks, int entry) {
  return static_cast<size_t>(blocks[entry / layout.block_size].state) * layout.block_size +
         entry % layout.block_size;
}

// [2]; of neighbours in a page one behind the other.
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
