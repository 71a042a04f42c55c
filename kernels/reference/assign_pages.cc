#include "kernels/ops/assign_pages.h"

#include <algorithm>

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void AssignPages(const AssignPagesArgs& args) {
  const SequenceTables& tables = args.tables;
  PageIds* const list = args.blocks + UnassignedBegin(tables, args.slot, args.num_heads);
  int32_t& left = tables.unassigned[args.slot];
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    PageIds* row = args.blocks + (tables.HeadBlocks(args.slot, args.layer, h) - tables.blocks);
    const int64_t pages = PagesOf(args.keep[h], args.block_size);
    for (int64_t i = 0; i < pages; ++i) row[i] = list[--left];
  }
}

void ReturnPages(const ReturnPagesArgs& args) {
  const SequenceTables& tables = args.tables;
  PageIds* const list = args.blocks + UnassignedBegin(tables, args.slot, args.num_heads);
  int32_t& left = tables.unassigned[args.slot];
  for (int head = 0; head < args.layer_end * tables.num_kv_heads; ++head) {
    const PageIds* row = tables.HeadBlocks(args.slot, 0, head);
    const int32_t length = tables.lengths[tables.HeadIndex(args.slot, 0, head)];
    args.keep[head] = std::min(args.keep[head], length);
    const int64_t held = PagesOf(length, args.block_size);
    for (int64_t i = PagesOf(args.keep[head], args.block_size); i < held; ++i)
      list[left++] = row[i];
  }
}

}  // namespace hydrant::reference
