#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu/eviction/select.h"
#include "kernels/victim.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pages/write_pages.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/pages/page_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hydrant::cpu {
namespace HWY_NAMESPACE {

// Entries [begin, end) of a head that keeps all entries, page by page.
void WriteWhole(const WritePagesArgs& args, int head, int begin, int end) {
  const KvPages& pages = args.pages;
  const size_t d = pages.layout.head_dim;
  const int block_size = pages.layout.block_size;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, head);
  for (int entry = begin, run = 0; entry < end; entry += run) {
    run = std::min(end - entry, block_size - entry % block_size);
    const size_t index = PageIndex(pages.layout, blocks, entry);
    const size_t in = head * args.kv_head_stride + entry * d;
    StoreRow(pages.layout.dtype, args.k.f32() + in, run * d, pages.keys, index * d);
    StoreRow(pages.layout.dtype, args.v.f32() + in, run * d, pages.values, index * d);
    std::iota(pages.positions + index, pages.positions + index + run, entry);
  }
}

// Entries [begin, end) of one head: keys, values and positions. rotated: [head_dim]
// scratch for a rolling slot.
void WriteEntries(const WritePagesArgs& args, int head, int begin, int end, float* rotated) {
  const KvPages& pages = args.pages;
  const bool rolling = args.tables.rules[args.slot].rolling;
  if (args.kept == nullptr && !rolling) return WriteWhole(args, head, begin, end);
  const size_t d = pages.layout.head_dim;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, head);
  for (int entry = begin; entry < end; ++entry) {
    const int32_t position =
        args.kept == nullptr ? entry : args.kept[head * args.kept_stride + entry];
    const size_t index = PageIndex(pages.layout, blocks, entry);
    const size_t in = head * args.kv_head_stride + position * d;
    const float* key = args.k.f32() + in;
    if (rolling) {
      for (size_t i = 0; i < d; ++i) {
        rotated[i] = RotatedBack(args.rotary, position, static_cast<int>(i),
                                 [key](int j) { return key[j]; });
      }
      key = rotated;
    }
    StoreRow(pages.layout.dtype, key, d, pages.keys, index * d);
    StoreRow(pages.layout.dtype, args.v.f32() + in, d, pages.values, index * d);
    pages.positions[index] = rolling ? entry : position;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hydrant::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hydrant::cpu {
namespace {
HWY_EXPORT(WriteEntries);

constexpr int kEntriesPerTask = 128;

// Consecutive entries of one head in one page, from `entry` on. kept: their positions;
// null: all entries are kept.
struct Entries {
  int head;
  int entry;
  int count;
  const int32_t* kept;

  int32_t Position(int i) const { return kept == nullptr ? entry + i : kept[i]; }
};

void WritePairs(const WritePagesArgs& args, bool weighted, const Entries& entries, float* to) {
  const float* const beside = weighted ? nullptr : args.beside + entries.head * args.beside_stride;
  for (int i = 0; i < entries.count; ++i) {
    to[2 * i] = weighted ? 0.0f : beside[entries.Position(i)];
    to[2 * i + 1] = 0.0f;
  }
}

void WriteScores(const WritePagesArgs& args, const DecodeRule& rule, const Entries& entries,
                 float* to) {
  const bool by_position = rule.scored && rule.by_position;
  const float* const scores =
      args.scores == nullptr ? nullptr : args.scores + entries.head * args.score_stride;
  for (int i = 0; i < entries.count; ++i) {
    const int32_t position = entries.Position(i);
    if (by_position) {
      to[i] = static_cast<float>(rule.rolling ? entries.entry + i : position);
    } else {
      to[i] = scores == nullptr ? 0.0f : scores[position] * args.score_scale;
    }
  }
}

// The state of one head's entries, page by page.
void WriteState(const WritePagesArgs& args, const DecodeRule& rule, int head) {
  const KvPages& pages = args.pages;
  const bool has_scores = pages.scores != nullptr && (rule.scored || args.scores != nullptr);
  const bool has_pairs = pages.log_weights != nullptr && (rule.weighted || args.beside != nullptr);
  if (!has_scores && !has_pairs) return;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, head);
  const int32_t* const kept = args.kept == nullptr ? nullptr : args.kept + head * args.kept_stride;
  const int block_size = pages.layout.block_size;
  for (int first = 0; first < args.keep[head]; first += block_size) {
    const Entries entries = {head, first, std::min(block_size, args.keep[head] - first),
                             kept == nullptr ? nullptr : kept + first};
    if (has_pairs) WritePairs(args, rule.weighted, entries, PairOf(pages, blocks, first));
    if (has_scores)
      WriteScores(args, rule, entries, pages.scores + StateIndex(pages.layout, blocks, first));
  }
}

// Writes state, length and first victim of a head after its entries are written.
void FinishHead(const WritePagesArgs& args, int head) {
  const SequenceTables& tables = args.tables;
  const DecodeRule& rule = tables.rules[args.slot];
  const size_t head_index = tables.HeadIndex(args.slot, args.layer, head);
  const int32_t keep = args.keep[head];
  tables.lengths[head_index] = keep;
  if (args.growth >= 0) tables.caps[head_index] = keep + args.growth;
  WriteState(args, rule, head);
  if (rule.scored && keep == tables.caps[head_index]) {
    const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, head);
    const int32_t next = rule.rolling ? keep : args.n;
    tables.victims[head_index] = PickVictim(args.pages, blocks, keep, rule, next);
  }
}

}  // namespace

void WritePages(const WritePagesArgs& args, ThreadPool& threads) {
  const int heads = args.tables.num_kv_heads;
  const int longest = heads == 0 ? 0 : *std::max_element(args.keep, args.keep + heads);
  const int unwritten = longest - args.num_written;
  const int tasks_per_head = (unwritten + kEntriesPerTask - 1) / kEntriesPerTask;
  threads.ParallelFor(heads * tasks_per_head, [&](int task, int) {
    const int head = task / tasks_per_head;
    const int begin = args.num_written + task % tasks_per_head * kEntriesPerTask;
    const int end = std::min(begin + kEntriesPerTask, args.keep[head]);
    if (begin >= end) return;
    std::vector<float> rotated(args.tables.rules[args.slot].rolling ? args.pages.layout.head_dim
                                                                    : 0);
    HWY_DYNAMIC_DISPATCH(WriteEntries)(args, head, begin, end, rotated.data());
  });
  threads.ParallelFor(heads, [&](int head, int) { FinishHead(args, head); });
}

}  // namespace hydrant::cpu
#endif  // HWY_ONCE
