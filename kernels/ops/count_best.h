// How a slot's best entries are spread over the heads of some layers, from the scores in their
// pages: what Select counts over a prompt's scratch (kernels/ops/select.h), for budgets that span
// layers and are decided when the last one has been written.
#ifndef HYDRANT_KERNELS_OPS_COUNT_BEST_H_
#define HYDRANT_KERNELS_OPS_COUNT_BEST_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// counts[(layer - layer_begin) * num_kv_heads + h] = entries of that head among the `total` best of
// all unprotected ones, those with sinks <= position < next_position - recent. Best is the highest
// score, NaN counts as -infinity; on equal scores the higher position, then the lower layer, then
// the lower head. REQUIRES: 0 <= total <= unprotected entries of all heads.
struct CountBestArgs {
  int slot = 0;
  int layer_begin = 0;
  int layer_end = 0;
  int64_t total = 0;
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  int max_length = 0;  // no head holds more: a device plans its work by it
  KvPages pages;
  SequenceTables tables;
  int32_t* counts = nullptr;  // [layer_end - layer_begin, num_kv_heads]

  constexpr bool IsProtected(int32_t position) const {
    return position < sinks || position >= next_position - recent;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COUNT_BEST_H_
