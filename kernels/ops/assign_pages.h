// Assigning pages to the heads of one (slot, layer) when only the device knows how much each keeps.
//
// The layer's rows of the block table (num_kv_heads * row_width entries, one run) begin with the
// reserved block ids, as many as all heads together may need. Head 0 takes the first
// ceil(keep[0] / block_size) of them into its row, head 1 the next, and so on; the ids that are
// left belong to no head. The host assigns the same way when it has read keep:
// kernels/ops/assign_pages.h's order is part of the contract. What the rows hold past a head's
// pages is undefined.
#ifndef HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
#define HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// REQUIRES: no head takes more than row_width pages, all heads together no more than are reserved.
struct AssignPagesArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int block_size = 16;
  int slot = 0;
  int layer = 0;
  SequenceTables tables;
  int32_t* blocks = nullptr;  // tables.blocks, to be written
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
