#include <cstddef>

#include "kernels/page_element.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

void WriteEntry(const WritePagesArgs& args, const int32_t* blocks, int head, int entry) {
  const KvPages& pages = args.pages;
  const DecodeRule& rule = args.tables.rules[args.slot];
  const int d = pages.layout.head_dim;
  const int32_t position =
      args.kept == nullptr ? entry : args.kept[head * args.kept_stride + entry];
  const size_t index = PageIndex(pages.layout, blocks, entry);
  const size_t in = head * args.kv_head_stride + static_cast<size_t>(position) * d;
  for (int i = 0; i < d; ++i) {
    StorePageElement(pages.layout.dtype, pages.keys, index * d + i, args.k[in + i]);
    StorePageElement(pages.layout.dtype, pages.values, index * d + i, args.v[in + i]);
  }
  pages.positions[index] = position;
  if (rule.weighted && pages.log_weights != nullptr)
    pages.log_weights[2 * index] = pages.log_weights[2 * index + 1] = 0.0f;
  if (!rule.scored) return;
  if (rule.by_position) {
    pages.scores[index] = static_cast<float>(position);
  } else {
    pages.scores[index] = args.scores == nullptr
                              ? 0.0f
                              : args.scores[head * args.score_stride + position] * args.score_scale;
  }
}

}  // namespace

void WritePages(const WritePagesArgs& args) {
  const SequenceTables& tables = args.tables;
  const DecodeRule& rule = tables.rules[args.slot];
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    const size_t head_index = tables.HeadIndex(args.slot, args.layer, h);
    const int32_t* blocks = tables.HeadBlocks(args.slot, args.layer, h);
    for (int entry = 0; entry < args.keep[h]; ++entry) WriteEntry(args, blocks, h, entry);
    tables.lengths[head_index] = args.keep[h];
    if (rule.scored && args.keep[h] == tables.caps[head_index]) {
      tables.victims[head_index] = PickVictim(args.pages, blocks, args.keep[h], rule, args.n);
    }
  }
}

}  // namespace hydrant::reference
