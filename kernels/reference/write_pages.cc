#include <cstddef>
#include <vector>

#include "kernels/page_row.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// The prompt position of an entry.
int32_t PositionOf(const WritePagesArgs& args, int head, int entry) {
  return args.kept == nullptr ? entry : args.kept[head * args.kept_stride + entry];
}

void WriteData(const WritePagesArgs& args, const PageIds* blocks, int head, int entry) {
  const KvPages& pages = args.pages;
  const DecodeRule& rule = args.tables.rules[args.slot];
  const int d = pages.layout.head_dim;
  const int32_t position = PositionOf(args, head, entry);
  const size_t index = PageIndex(pages.layout, blocks, entry);
  const size_t in = head * args.kv_head_stride + static_cast<size_t>(position) * d;
  const auto element = [&](int i) { return static_cast<double>(args.k.f32()[in + i]); };
  std::vector<float> key(d);
  for (int i = 0; i < d; ++i) {
    key[i] = static_cast<float>(rule.rolling ? RotatedBack(args.rotary, position, i, element)
                                             : element(i));
  }
  StorePageRow(pages.layout.dtype, key.data(), d, pages.keys, index * d);
  StorePageRow(pages.layout.dtype, args.v.f32() + in, d, pages.values, index * d);
  pages.positions[index] = rule.rolling ? entry : position;
}

void WriteState(const WritePagesArgs& args, const PageIds* blocks, int head, int entry) {
  const KvPages& pages = args.pages;
  const DecodeRule& rule = args.tables.rules[args.slot];
  const int32_t position = PositionOf(args, head, entry);
  const size_t index = StateIndex(pages.layout, blocks, entry);
  if (pages.log_weights != nullptr && (rule.weighted || args.beside != nullptr)) {
    float* pair = PairOf(pages, blocks, entry);
    pair[0] = rule.weighted ? 0.0f : args.beside[head * args.beside_stride + position];
    pair[1] = 0.0f;
  }
  if (pages.scores == nullptr) return;
  if (rule.scored && rule.by_position) {
    pages.scores[index] = static_cast<float>(rule.rolling ? entry : position);
  } else if (args.scores != nullptr) {
    pages.scores[index] = args.scores[head * args.score_stride + position] * args.score_scale;
  } else if (rule.scored) {
    pages.scores[index] = 0.0f;
  }
}

}  // namespace

void WritePages(const WritePagesArgs& args) {
  const SequenceTables& tables = args.tables;
  const DecodeRule& rule = tables.rules[args.slot];
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    const size_t head_index = tables.HeadIndex(args.slot, args.layer, h);
    const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
    for (int entry = args.num_written; entry < args.keep[h]; ++entry)
      WriteData(args, blocks, h, entry);
    for (int entry = 0; entry < args.keep[h]; ++entry) WriteState(args, blocks, h, entry);
    tables.lengths[head_index] = args.keep[h];
    if (args.growth >= 0) tables.caps[head_index] = args.keep[h] + args.growth;
    if (rule.scored && args.keep[h] == tables.caps[head_index]) {
      const int32_t next = rule.rolling ? args.keep[h] : args.n;
      tables.victims[head_index] = PickVictim(args.pages, blocks, args.keep[h], rule, next);
    }
  }
}

}  // namespace hydrant::reference
