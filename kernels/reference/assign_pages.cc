#include "kernels/ops/assign_pages.h"

#include <vector>

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void AssignPages(const AssignPagesArgs& args) {
  const int heads = args.tables.num_kv_heads;
  const int32_t width = args.tables.row_width[args.slot];
  int32_t* rows =
      args.blocks + (args.tables.HeadBlocks(args.slot, args.layer, 0) - args.tables.blocks);
  const std::vector<int32_t> reserved(rows, rows + static_cast<size_t>(heads) * width);
  size_t next = 0;
  for (int h = 0; h < heads; ++h) {
    const int32_t pages = (args.keep[h] + args.block_size - 1) / args.block_size;
    for (int32_t i = 0; i < pages; ++i) rows[static_cast<size_t>(h) * width + i] = reserved[next++];
  }
}

}  // namespace hydrant::reference
