#include "kernels/cpu/prefill_attention.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/prefill_attention_kernels.h"
#include "kernels/cpu/read_pages.h"

namespace hydrant::cpu {
namespace {

// Tasks of a wave per thread: enough that the threads finish together, few enough to bound the
// memory for column sums.
constexpr int kTasksPerThread = 8;

constexpr int kEntriesPerTask = 128;  // of a prefix that is read

// A prefix in fp32: [num_kv_heads, longest, head_dim] each.
struct PrefixRows {
  float* k = nullptr;
  float* v = nullptr;
  int longest = 0;
};

int PrefixLength(const PrefillAttentionArgs& args, int kv_head) {
  if (args.prefix == nullptr) return 0;
  const SequenceTables& tables = args.prefix->tables;
  return tables.lengths[tables.HeadIndex(args.prefix->slot, args.prefix->layer, kv_head)];
}

// Reads a prefix out of its pages into memory of the calling thread.
PrefixRows ReadPrefix(const PrefillAttentionArgs& args, ThreadPool& pool) {
  thread_local AttentionScratch scratch;
  PrefixRows rows;
  for (int h = 0; h < args.num_kv_heads; ++h)
    rows.longest = std::max(rows.longest, PrefixLength(args, h));
  if (rows.longest == 0) return rows;
  const size_t head_floats = static_cast<size_t>(rows.longest) * args.head_dim;
  rows.k = scratch.Reserve(2 * args.num_kv_heads * head_floats);
  rows.v = rows.k + args.num_kv_heads * head_floats;
  const int tasks_per_head = (rows.longest + kEntriesPerTask - 1) / kEntriesPerTask;
  pool.ParallelFor(args.num_kv_heads * tasks_per_head, [&](int task, int) {
    const PagedPrefix& prefix = *args.prefix;
    const int head = task / tasks_per_head;
    const int begin = task % tasks_per_head * kEntriesPerTask;
    const int end = std::min(begin + kEntriesPerTask, PrefixLength(args, head));
    ReadEntries(prefix.pages, prefix.tables.HeadBlocks(prefix.slot, prefix.layer, head), begin, end,
                rows.k + head * head_floats, rows.v + head * head_floats);
  });
  return rows;
}

// One call, and the tiles of its run.
struct Run {
  const PrefillAttentionArgs& args;
  PrefillShape shape;
  PrefillTileKernel attend;
  PrefixRows prefix;

  int num_tiles() const { return (args.num_queries + kQueryTile - 1) / kQueryTile; }
  int num_keys() const { return args.first_position + args.num_queries; }
  size_t num_sums() const { return static_cast<size_t>(prefix.longest) + num_keys(); }
  // num_tiles() where no query of the run adds to the column sums.
  int first_summed_tile() const {
    if (args.first_summed_position >= num_keys()) return num_tiles();
    return std::max(0, args.first_summed_position - args.first_position) / kQueryTile;
  }
};

Run RunOf(const PrefillAttentionArgs& args, ThreadPool& pool) {
  PrefillShape shape;
  shape.head_dim = args.head_dim;
  shape.group = args.num_heads / args.num_kv_heads;
  shape.query_stride = static_cast<int64_t>(args.num_heads) * args.head_dim;
  shape.scale = args.scale;
  shape.reduce = args.reduce;
  return {args, shape, DetectIsa() >= Isa::kAvx512 ? PrefillTileAvx512() : PrefillTileAvx2(),
          ReadPrefix(args, pool)};
}

PrefillTile TileOf(const Run& run, int kv_head, int tile) {
  const PrefillAttentionArgs& args = run.args;
  const int first_query = tile * kQueryTile;
  const size_t offset = static_cast<size_t>(first_query) * run.shape.query_stride +
                        static_cast<size_t>(kv_head) * run.shape.group * args.head_dim;
  PrefillTile work;
  work.q = args.q + offset;
  work.k = args.k + kv_head * args.kv_head_stride;
  work.v = args.v + kv_head * args.kv_head_stride;
  work.out = static_cast<float*>(args.out) + offset;
  work.first_position = args.first_position + first_query;
  work.num_queries = std::min(kQueryTile, args.num_queries - first_query);
  const size_t prefix_offset = static_cast<size_t>(kv_head) * run.prefix.longest * args.head_dim;
  work.prefix_k = run.prefix.k + prefix_offset;
  work.prefix_v = run.prefix.v + prefix_offset;
  work.num_prefix_keys = PrefixLength(args, kv_head);
  return work;
}

void Attend(const Run& run, const PrefillTile& tile) {
  thread_local AttentionScratch scratch;
  const bool column_sums = tile.column_sums != nullptr;
  run.attend(run.shape, tile,
             scratch.Reserve(LayoutOf(run.shape, tile.num_panels(), column_sums).total));
}

// The first `tiles` tiles, without column sums. The last ones see the most keys: they are handed
// out first, so that no thread ends with a long one.
void AttendAll(const Run& run, int tiles, ThreadPool& pool) {
  const int kv_heads = run.args.num_kv_heads;
  pool.ParallelFor(tiles * kv_heads, [&](int task, int) {
    Attend(run, TileOf(run, task % kv_heads, tiles - 1 - task / kv_heads));
  });
}

// Adds a tile's sums to the totals that are wanted.
void AddSums(const PrefillAttentionArgs& args, int kv_head, const PrefillTile& tile,
             const float* part) {
  if (args.prefix != nullptr && args.prefix->sums != nullptr) {
    float* sums = args.prefix->sums + kv_head * args.prefix->sums_stride;
    for (int j = 0; j < tile.num_prefix_keys; ++j) sums[j] += part[j];
  }
  if (args.column_sums == nullptr) return;
  float* sums = args.column_sums + kv_head * args.column_stride;
  for (int j = 0; j < tile.num_keys(); ++j) sums[j] += part[tile.num_prefix_keys + j];
}

// Tiles [begin, end) of every head, their column sums side by side in `partial` [end - begin,
// kv_heads, longest prefix + num_keys], then added tile by tile: the order of additions depends on
// neither the threads nor the runs a prompt is cut into.
void AttendWave(const Run& run, int begin, int end, float* partial, ThreadPool& pool) {
  const int kv_heads = run.args.num_kv_heads;
  const size_t stride = run.num_sums();
  pool.ParallelFor((end - begin) * kv_heads, [&](int task, int) {
    PrefillTile tile = TileOf(run, task % kv_heads, begin + task / kv_heads);
    tile.column_sums = partial + task * stride;
    tile.first_summed = std::max(0, run.args.first_summed_position - tile.first_position);
    Attend(run, tile);
  });
  pool.ParallelFor(kv_heads, [&](int kv_head, int) {
    for (int tile = begin; tile < end; ++tile) {
      const size_t task = static_cast<size_t>(tile - begin) * kv_heads + kv_head;
      AddSums(run.args, kv_head, TileOf(run, kv_head, tile), partial + task * stride);
    }
  });
}

// Tiles before the first whose queries add to the sums are attended without them.
void AttendWithColumnSums(const Run& run, ThreadPool& pool) {
  thread_local AttentionScratch partial;
  const int first = run.first_summed_tile();
  AttendAll(run, first, pool);
  const int tasks = pool.num_threads() * kTasksPerThread;
  const int wave = std::min(run.num_tiles() - first,
                            (tasks + run.args.num_kv_heads - 1) / run.args.num_kv_heads);
  float* sums = partial.Reserve(static_cast<size_t>(wave) * run.args.num_kv_heads * run.num_sums());
  for (int begin = first; begin < run.num_tiles(); begin += wave)
    AttendWave(run, begin, std::min(begin + wave, run.num_tiles()), sums, pool);
}

}  // namespace

void PrefillAttention(const PrefillAttentionArgs& args, ThreadPool& pool) {
  if (args.num_queries == 0) return;
  const Run run = RunOf(args, pool);
  if (args.column_sums == nullptr && (args.prefix == nullptr || args.prefix->sums == nullptr)) {
    AttendAll(run, run.num_tiles(), pool);
  } else {
    AttendWithColumnSums(run, pool);
  }
}

}  // namespace hydrant::cpu
