// Assigns pages to the heads of a slot where only the device knows how many entries each head
// keeps, and takes back the rest.
//
// The slot's rows of the block table are followed by a free list of page ids. Its length is the
// slot's `unassigned`; the id at its end is assigned next. The host fills the list when it sets up
// the slot, and reads the assignment from the rows after the prefill.
#ifndef HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
#define HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// Head h of a layer takes PagesOf(keep[h]) ids from the end of the list, head 0 first; the id at
// the very end becomes its first page. The rest of a row is undefined. REQUIRES: no head takes more
// than row_width pages, and all together take no more than the list has.
struct AssignPagesArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int block_size = 16;
  int slot = 0;
  int layer = 0;
  int num_heads = 0;  // all heads with rows in the slot; the list follows them
  SequenceTables tables;
  PageIds* blocks = nullptr;  // tables.blocks, to be written
};

// The heads of the layers before layer_end are about to keep keep[layer, h] of their entries
// (kernels/ops/compact.h), or all where keep is larger: keep is clamped to the length. The
// pages past it are appended to the list, head by head, in page order. Rows still name them
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

// Start of the slot's list. REQUIRES: tables.row_begin points to the slot's first rows.
constexpr int64_t UnassignedBegin(const SequenceTables& tables, int slot, int num_heads) {
  return tables.row_begin[slot] + int64_t{num_heads} * tables.row_width[slot];
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
