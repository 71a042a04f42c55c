// Giving pages to the heads of a slot when only the device knows how much each keeps, and taking
// back what they do not.
//
// Behind the slot's rows of the block table lies a list of ids that belong to no head:
// `unassigned` of the slot says how many, and the list ends with the one that is assigned next.
// The host fills it when the slot is set up; when the prompt has been read it learns which page is
// whose from the rows.
#ifndef HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
#define HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// The heads of a layer take PagesOf(keep[h]) ids each from the end of the list, head 0 first, the
// last one for its first page. What a row holds past them is undefined.
// REQUIRES: no head takes more than row_width pages, all together no more than the list has.
struct AssignPagesArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int block_size = 16;
  int slot = 0;
  int layer = 0;
  int num_heads = 0;  // all that have rows of the slot's: the list begins behind them
  SequenceTables tables;
  PageIds* blocks = nullptr;  // tables.blocks, to be written
};

// The heads of the layers before layer_end are about to keep keep[layer, h] of their entries each
// (kernels/ops/compact.h), or all where that is more: keep becomes what they keep. Their pages past
// it go back to the end of the list, head by head, the first page first; rows keep naming them
// until they are assigned again.
struct ReturnPagesArgs {
  int32_t* keep = nullptr;  // [layer_end, num_kv_heads]
  int block_size = 16;
  int slot = 0;
  int layer_end = 0;
  int num_heads = 0;
  SequenceTables tables;
  PageIds* blocks = nullptr;
};

// Where the slot's list begins. REQUIRES: tables.row_begin is that of the slot's first rows.
constexpr int64_t UnassignedBegin(const SequenceTables& tables, int slot, int num_heads) {
  return tables.row_begin[slot] + int64_t{num_heads} * tables.row_width[slot];
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
