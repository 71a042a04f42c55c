// A step's changes to the block table: one small list, applied before any
// operation reads the table.
#ifndef HYDRANT_KERNELS_OPS_TABLE_UPDATE_H_
#define HYDRANT_KERNELS_OPS_TABLE_UPDATE_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

struct TableUpdate {
  int64_t index = 0;  // into the table arena
  PageIds block;
};

// blocks[updates[i].index] = updates[i].block, in any order. REQUIRES: indices are distinct.
struct UpdateTableArgs {
  const TableUpdate* updates = nullptr;  // [count]
  int count = 0;
  PageIds* blocks = nullptr;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_TABLE_UPDATE_H_
