// Counts how a slot's best entries are spread over the heads of some layers, from the scores in
// their pages. Select does the same over a prompt's scratch (kernels/ops/select.h); this is for
// budgets that span layers and are decided after the last layer is written.
#ifndef HYDRANT_KERNELS_OPS_COUNT_BEST_H_
#define HYDRANT_KERNELS_OPS_COUNT_BEST_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// counts[(layer - layer_begin) * num_kv_heads + h] = that head's entries among the `total` best of
// all unprotected entries, sinks <= position < next_position - recent. Best is the highest score,
// NaN counts as -infinity; on equal scores the higher position, then the lower layer, then the
// lower head. REQUIRES: 0 <= total <= unprotected entries of all heads.
struct CountBestArgs {
  int slot = 0;
  int layer_begin = 0;
  int layer_end = 0;
  int64_t total = 0;
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  int max_length = 0;  // upper bound of every head's length, for a device's work plan
  KvPages pages;
  SequenceTables tables;
  int32_t* counts = nullptr;  // [layer_end - layer_begin, num_kv_heads]

  constexpr bool IsProtected(int32_t position) const {
    return position < sinks || position >= next_position - recent;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COUNT_BEST_H_
