#include "kernels/ops/assign_pages.h"

#include <algorithm>
#include <vector>

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void AssignPages(const AssignPagesArgs& args) {
  const int heads = args.tables.num_kv_heads;
  const int32_t width = args.tables.row_width[args.slot];
  PageIds* rows =
      args.blocks + (args.tables.HeadBlocks(args.slot, args.layer, 0) - args.tables.blocks);
  const std::vector<PageIds> stack(rows, rows + static_cast<size_t>(heads) * width);
  for (int h = 0; h < heads; ++h) {
    const PageIds* from = stack.data() + AssignedFrom(args.keep, h, args.block_size);
    std::copy_n(from, PagesOf(args.keep[h], args.block_size),
                rows + static_cast<size_t>(h) * width);
  }
}

}  // namespace hydrant::reference
