#include "kernels/cpu/attention/prefill_attention.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/attention/attention_scratch.h"
#include "kernels/cpu/attention/prefill_attention_kernels.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pages/read_pages.h"
#include "kernels/victim.h"

namespace hydrant::cpu {
namespace {

// Tasks per thread in a wave: enough that threads finish together, few enough to bound
// the memory for statistics.
constexpr int kPiecesPerThread = 16;
constexpr int kColumnsPerTask = 512;  // of statistics, when merging

// Up to here the words of one query head's tile need no more memory than kept weights.
constexpr int kMaxRankedKeys = kMaxKeptWeights / kQueryTile * 2;

constexpr int kEntriesPerTask = 128;  // when loading a prefix

// Keys and values of all heads: [num_kv_heads], k_stride and v_stride apart.
struct KeyRows {
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;
};

// A prefix, in fp32 or in the kernel's format.
struct PrefixRows {
  KeyRows keys;
  int longest = 0;
};

// Length of a head's prefix; 0 if no query of the run sees it.
int PrefixLength(const PrefillAttentionArgs& args, int kv_head) {
  if (!args.SeesPrefixAt(args.first_position)) return 0;
  const SequenceTables& tables = args.prefix->tables;
  return tables.lengths[tables.HeadIndex(args.prefix->slot, args.prefix->layer, kv_head)];
}

// Loads entries [begin, end) of a head into rows: in entry order or, with a window, which counts
// keys, in the order of their positions.
void ReadPrefixEntries(const PrefillAttentionArgs& args, int head, int begin, int end, float* k,
                       float* v) {
  const PagedPrefix& prefix = *args.prefix;
  const PageIds* blocks = prefix.tables.HeadBlocks(prefix.slot, prefix.layer, head);
  if (args.window == kNoWindow) return ReadEntries(prefix.pages, blocks, begin, end, k, v);
  const int32_t first = prefix.next_position - PrefixLength(args, head);
  for (int entry = begin; entry < end; ++entry) {
    const int32_t position = prefix.pages.positions[PageIndex(prefix.pages.layout, blocks, entry)];
    // ReadEntries writes row `entry`.
    const int64_t shift = int64_t{position - first - entry} * args.head_dim;
    ReadEntries(prefix.pages, blocks, entry, entry + 1, k + shift, v + shift);
  }
}

// Loads a prefix from its pages into memory of the calling thread.
PrefixRows ReadPrefix(const PrefillAttentionArgs& args, ThreadPool& pool) {
  thread_local AttentionScratch scratch;
  PrefixRows rows;
  for (int h = 0; h < args.num_kv_heads; ++h)
    rows.longest = std::max(rows.longest, PrefixLength(args, h));
  if (rows.longest == 0) return rows;
  const int64_t head_floats = int64_t{1} * rows.longest * args.head_dim;
  float* const k = scratch.Reserve(2 * args.num_kv_heads * head_floats);
  float* const v = k + args.num_kv_heads * head_floats;
  const int tasks_per_head = (rows.longest + kEntriesPerTask - 1) / kEntriesPerTask;
  pool.ParallelFor(args.num_kv_heads * tasks_per_head, [&](int task, int) {
    const int head = task / tasks_per_head;
    const int begin = task % tasks_per_head * kEntriesPerTask;
    const int end = std::min(begin + kEntriesPerTask, PrefixLength(args, head));
    ReadPrefixEntries(args, head, begin, end, k + head * head_floats, v + head * head_floats);
  });
  rows.keys = {k, v, head_floats, head_floats};
  return rows;
}

// One call and its tiles.
struct Run {
  const PrefillAttentionArgs& args;
  PrefillShape shape;
  PrefillTileKernel attend;
  PrefixRows prefix = {};
  KeyRows keys = {};
  const float* query_factors = nullptr;  // [num_heads, head_dim]: of byte_factors, or null
  bool ranks = false;                    // uses a RankKernel

  int num_tiles() const { return (args.num_queries + kQueryTile - 1) / kQueryTile; }
  int end_position() const { return args.first_position + args.num_queries; }
  // Upper bound of the columns of one statistic of a tile.
  size_t num_columns() const { return static_cast<size_t>(prefix.longest) + args.NumKeys(); }
  int num_merges() const {
    return static_cast<int>((num_columns() + kColumnsPerTask - 1) / kColumnsPerTask);
  }
  // Up to the last statistic that is computed.
  int num_statistics() const {
    int count = kMaxColumnStatistics;
    while (count > 0 && !args.statistics[count - 1].Touches(0, end_position())) --count;
    return count;
  }
  int TileBegin(int tile) const { return args.first_position + tile * kQueryTile; }
  int TileEnd(int tile) const { return std::min(TileBegin(tile) + kQueryTile, end_position()); }
  bool Touches(const ColumnStatistic& statistic, int tile) const {
    return statistic.Touches(TileBegin(tile), TileEnd(tile));
  }
};

// A kernel's format of keys and values: rounded panel by panel, once for all query tiles.
struct RoundedForm {
  int64_t (*key_words)(int rows, int head_dim);  // for whole panels, also the offset of a row
  int64_t (*value_words)(int rows, int head_dim);
  void (*round_keys)(const float* keys, int rows, int head_dim, float* to);
  void (*round_values)(const float* values, int rows, int head_dim, float* to);
};

int64_t ByteKeyWords(int rows, int head_dim) { return int64_t{1} * rows * ByteKeyStride(head_dim); }
const ByteKernels& KernelsInBytes() {
  if constexpr (kIsX86) {
    return ByteKernelsAvx512Vnni();
  } else {
    return ByteKernelsDotProd();
  }
}

constexpr RoundedForm kTiles = {TileKeyWords, TileValueWords, RoundKeysAmx, RoundValuesAmx};

// Number of rows of each head. Rows before `first_panel` are skipped; values are rounded
// only if there is an output.
struct RowCounts {
  std::vector<int> rows;
  int first_panel = 0;
};

// rows: [count, dim]; factors: [dim]. The product is in memory of the calling thread.
const float* ScaledRows(const float* rows, int count, int dim, const float* factors) {
  thread_local AttentionScratch scratch;
  float* const scaled = scratch.Reserve(int64_t{1} * count * dim);
  for (int r = 0; r < count; ++r)
    for (int d = 0; d < dim; ++d) scaled[r * dim + d] = rows[r * dim + d] * factors[d];
  return scaled;
}

// factors: of the keys, [num_kv_heads, head_dim]; null: none.
KeyRows RoundRows(const RoundedForm& form, const PrefillAttentionArgs& args, const KeyRows& from,
                  const float* factors, const RowCounts& counts, AttentionScratch& scratch,
                  ThreadPool& pool) {
  const int heads = args.num_kv_heads, dim = args.head_dim;
  const int longest = *std::max_element(counts.rows.begin(), counts.rows.end());
  const int64_t k_stride = form.key_words(longest, dim);
  const int64_t v_stride = args.out != nullptr ? form.value_words(longest, dim) : 0;
  float* const k = scratch.Reserve(heads * (k_stride + v_stride));
  float* const v = k + heads * k_stride;
  const int panels = NumPanels(longest) - counts.first_panel;
  pool.ParallelFor(heads * panels, [&](int task, int) {
    const int64_t head = task / panels;
    const int first = (counts.first_panel + task % panels) * kKeyPanel;
    const int rows = std::min(kKeyPanel, counts.rows[head] - first);
    if (rows <= 0) return;
    const int64_t skipped = int64_t{1} * first * dim;
    const float* keys = from.k + head * from.k_stride + skipped;
    if (factors != nullptr) keys = ScaledRows(keys, rows, dim, factors + head * dim);
    form.round_keys(keys, rows, dim, k + head * k_stride + form.key_words(first, dim));
    if (v_stride > 0)
      form.round_values(from.v + head * from.v_stride + skipped, rows, dim,
                        v + head * v_stride + form.value_words(first, dim));
  });
  return {k, v, k_stride, v_stride};
}

// Rounds the run's keys and values into memory of the calling thread.
KeyRows RoundRun(const RoundedForm& form, const PrefillAttentionArgs& args, const float* factors,
                 ThreadPool& pool) {
  thread_local AttentionScratch scratch;
  const KeyRows from = {args.k.f32(), args.v.f32(), args.kv_head_stride, args.kv_head_stride};
  const RowCounts counts = {std::vector<int>(args.num_kv_heads, args.NumKeys()),
                            args.FirstSeenAt(args.first_position) / kKeyPanel};
  return RoundRows(form, args, from, factors, counts, scratch, pool);
}

// The keys' part of PrefillAttentionArgs::byte_factors.
const float* KeyFactors(const PrefillAttentionArgs& args) {
  if (args.byte_factors == nullptr) return nullptr;
  return args.byte_factors + int64_t{1} * args.num_heads * args.head_dim;
}

// Rounds a prefix.
PrefixRows RoundPrefix(const RoundedForm& form, const PrefillAttentionArgs& args, PrefixRows prefix,
                       ThreadPool& pool) {
  thread_local AttentionScratch scratch;
  if (prefix.longest == 0) return prefix;
  RowCounts counts;
  for (int h = 0; h < args.num_kv_heads; ++h) counts.rows.push_back(PrefixLength(args, h));
  prefix.keys = RoundRows(form, args, prefix.keys, nullptr, counts, scratch, pool);
  return prefix;
}

// Whether a RankKernel can compute the statistics: approximate weights suffice
// and its requirements hold.
bool Ranks(const PrefillAttentionArgs& args) {
  const ColumnStatistic &sum = args.statistics[0], &largest = args.statistics[1];
  const bool both = sum.out != nullptr && largest.out != nullptr &&
                    args.statistics[2].out == nullptr && sum.kind == ColumnStatistic::Kind::kSum &&
                    largest.kind == ColumnStatistic::Kind::kMax &&
                    sum.reduce == GroupReduce::kMean && largest.reduce == GroupReduce::kMax &&
                    sum.first_query == largest.first_query && sum.end_query == largest.end_query;
  return both && args.precision != DType::kF32 && args.out == nullptr && args.softcap == 0.0f &&
         args.sink_logits == nullptr && args.prefix == nullptr &&
         args.KeysSeenAt(args.first_position) == args.end_key && args.end_key <= kMaxRankedKeys;
}

// Whether rows of q and k may be rounded to 8 bits, and can be.
bool FitsBytes(const PrefillAttentionArgs& args) {
  return args.precision == DType::kQ8_0 && HasByteDots() && args.head_dim >= 4;
}

const RankKernel& RankFor(const PrefillAttentionArgs& args) {
  if (FitsBytes(args)) return KernelsInBytes().rank;
  if constexpr (kIsX86) {
    const Isa isa = DetectIsa();
    if (isa >= Isa::kAmx && args.head_dim % kAmxHeadDim == 0) return RankAmx();
    if (isa >= Isa::kAvx512Bf16) return RankAvx512Bf16();
    if (isa >= Isa::kAvx512) return RankAvx512();
  }
  return RankBase();
}

// Whether q, k and v are multiplied in 8 bits.
bool TakesBytes(const PrefillAttentionArgs& args) {
  return FitsBytes(args) && args.prefix == nullptr;
}

// Whether they are multiplied in bf16: also where 8 bits are requested but not
// possible, if there is an output.
bool TakesBf16(const PrefillAttentionArgs& args) {
  const bool wanted =
      args.precision == DType::kBF16 || (args.precision == DType::kQ8_0 && args.out != nullptr);
  return wanted && DetectIsa() >= Isa::kAvx512Bf16;
}
bool TakesTiles(const PrefillAttentionArgs& args) {
  return TakesBf16(args) && DetectIsa() >= Isa::kAmx && args.head_dim % kAmxHeadDim == 0;
}

PrefillTileKernel KernelFor(const PrefillAttentionArgs& args) {
  if constexpr (kIsX86) {
    if (TakesBf16(args)) return PrefillTileAvx512Bf16();
    if (DetectIsa() >= Isa::kAvx512) return PrefillTileAvx512();
  }
  return PrefillTileBase();
}

Run RunOf(const PrefillAttentionArgs& args, ThreadPool& pool) {
  PrefillShape shape;
  shape.head_dim = args.head_dim;
  shape.group = args.num_heads / args.num_kv_heads;
  shape.query_stride = static_cast<int64_t>(args.num_heads) * args.head_dim;
  shape.scale = args.scale;
  shape.softcap = args.softcap;
  Run run = {.args = args, .shape = shape, .attend = KernelFor(args)};
  if (Ranks(args)) {
    const RankKernel& kernel = RankFor(args);
    const RoundedForm lanes = {kernel.lane_words, nullptr, kernel.to_lanes, nullptr};
    run.ranks = true;
    run.attend = kernel.tile;
    if (FitsBytes(args)) run.query_factors = args.byte_factors;
    run.keys = RoundRun(lanes, args, FitsBytes(args) ? KeyFactors(args) : nullptr, pool);
    return run;
  }
  if (TakesBytes(args)) {
    const ByteKernels& kernels = KernelsInBytes();
    const RoundedForm bytes = {ByteKeyWords, ByteValueWords, kernels.round_keys,
                               kernels.round_values};
    run.attend = kernels.tile;
    run.query_factors = args.byte_factors;
    run.keys = RoundRun(bytes, args, KeyFactors(args), pool);
    return run;
  }
  run.prefix = ReadPrefix(args, pool);
  run.keys = {args.k.f32(), args.v.f32(), args.kv_head_stride, args.kv_head_stride};
  if constexpr (kIsX86) {
    if (TakesTiles(args)) {
      run.attend = PrefillTileAmx();
      run.prefix = RoundPrefix(kTiles, args, run.prefix, pool);
      run.keys = RoundRun(kTiles, args, nullptr, pool);
    }
  }
  return run;
}

PrefillTile TileOf(const Run& run, int kv_head, int tile) {
  const PrefillAttentionArgs& args = run.args;
  const int first_query = tile * kQueryTile;
  const size_t offset = static_cast<size_t>(first_query) * run.shape.query_stride +
                        static_cast<size_t>(kv_head) * run.shape.group * args.head_dim;
  PrefillTile work;
  work.q = args.q.f32() + offset;
  work.k = run.keys.k + kv_head * run.keys.k_stride;
  work.v = run.keys.v + kv_head * run.keys.v_stride;
  work.out = args.out == nullptr ? nullptr : static_cast<float*>(args.out) + offset;
  if (args.sink_logits != nullptr) work.sinks = args.sink_logits + kv_head * run.shape.group;
  work.first_position = args.first_position + first_query;
  work.num_queries = std::min(kQueryTile, args.num_queries - first_query);
  work.end_key = args.end_key;
  work.window = args.window;
  work.prefix_k = run.prefix.keys.k + kv_head * run.prefix.keys.k_stride;
  work.prefix_v = run.prefix.keys.v + kv_head * run.prefix.keys.v_stride;
  work.num_prefix_keys = args.SeesPrefixAt(work.first_position) ? PrefixLength(args, kv_head) : 0;
  return work;
}

// A tile's queries times their factors, in memory of the calling thread.
const float* ScaledQueries(const Run& run, int kv_head, const PrefillTile& tile) {
  thread_local AttentionScratch scratch;
  const int64_t stride = run.shape.query_stride, count = run.shape.group * run.shape.head_dim;
  float* const scaled = scratch.Reserve(kQueryTile * stride);
  const float* const factors = run.query_factors + kv_head * count;
  for (int64_t i = 0; i < tile.num_queries; ++i)
    for (int64_t d = 0; d < count; ++d)
      scaled[i * stride + d] = tile.q[i * stride + d] * factors[d];
  return scaled;
}

void Attend(const Run& run, int kv_head, PrefillTile tile) {
  thread_local AttentionScratch scratch;
  if (run.query_factors != nullptr) tile.q = ScaledQueries(run, kv_head, tile);
  const size_t floats =
      run.ranks ? RankLayoutOf(run.shape, tile).total : LayoutOf(run.shape, tile).total;
  run.attend(run.shape, tile, scratch.Reserve(floats));
}

// Tiles without statistics. The last tiles see the most keys and are started first, so that no
// thread ends with a long one.
void AttendPlain(const Run& run, const std::vector<int>& tiles, ThreadPool& pool) {
  const int kv_heads = run.args.num_kv_heads;
  const int count = static_cast<int>(tiles.size());
  pool.ParallelFor(count * kv_heads, [&](int task, int) {
    const int kv_head = task / count;
    Attend(run, kv_head, TileOf(run, kv_head, tiles[count - 1 - task % count]));
  });
}

// Points the statistics of one (tile, KV head) at their part of `partial`, [num_statistics,
// num_columns], until they are merged.
void GivePartial(const Run& run, int tile, float* partial, PrefillTile* work) {
  for (int s = 0; s < kMaxColumnStatistics; ++s) {
    const ColumnStatistic& statistic = run.args.statistics[s];
    if (!run.Touches(statistic, tile)) continue;
    const int begin = std::max(statistic.first_query, run.TileBegin(tile));
    const int end = std::min(statistic.end_query, run.TileEnd(tile));
    work->statistics[s] = {.kind = statistic.kind,
                           .reduce = statistic.reduce,
                           .begin = begin - run.TileBegin(tile),
                           .end = end - run.TileBegin(tile),
                           .out = partial + s * run.num_columns()};
  }
}

void Merge(ColumnStatistic::Kind kind, const float* part, int begin, int end, float* totals) {
  for (int j = begin; j < end; ++j) {
    totals[j] =
        kind == ColumnStatistic::Kind::kMax ? std::max(totals[j], part[j]) : totals[j] + part[j];
  }
}

// Merges a tile's statistics of columns [begin, end), the prefix's first, into the
// totals that have an output.
void MergeTile(const Run& run, int kv_head, int tile, int begin, int end, const float* partial) {
  const int prefix_keys = PrefixLength(run.args, kv_head);
  const int keys = run.args.KeysSeenAt(run.TileEnd(tile) - 1);
  for (int s = 0; s < kMaxColumnStatistics; ++s) {
    const ColumnStatistic& to = run.args.statistics[s];
    if (!run.Touches(to, tile)) continue;
    const float* part = partial + s * run.num_columns();
    if (to.prefix_out != nullptr)
      Merge(to.kind, part, begin, std::min(end, prefix_keys),
            to.prefix_out + kv_head * to.prefix_stride);
    if (to.out != nullptr)
      Merge(to.kind, part + prefix_keys, std::max(0, begin - prefix_keys),
            std::min(end - prefix_keys, keys), to.out + kv_head * to.stride);
  }
}

// Attends some tiles of every head with their statistics in `partial` [tiles, kv_heads,
// num_statistics, num_columns], then merges them tile by tile: the order of additions depends
// neither on the threads nor on the slicing of a prompt into runs.
void AttendWave(const Run& run, std::span<const int> tiles, float* partial, ThreadPool& pool) {
  const int kv_heads = run.args.num_kv_heads;
  const size_t stride = run.num_statistics() * run.num_columns();
  const int count = static_cast<int>(tiles.size());
  pool.ParallelFor(count * kv_heads, [&](int task, int) {
    const int tile = tiles[task / kv_heads];
    PrefillTile work = TileOf(run, task % kv_heads, tile);
    GivePartial(run, tile, partial + task * stride, &work);
    Attend(run, task % kv_heads, work);
  });
  pool.ParallelFor(kv_heads * run.num_merges(), [&](int task, int) {
    const int kv_head = task % kv_heads, begin = task / kv_heads * kColumnsPerTask;
    for (int i = 0; i < count; ++i)
      MergeTile(run, kv_head, tiles[i], begin, begin + kColumnsPerTask,
                partial + (static_cast<size_t>(i) * kv_heads + kv_head) * stride);
  });
}

void AttendCounted(const Run& run, std::span<const int> tiles, ThreadPool& pool) {
  thread_local AttentionScratch scratch;
  const int kv_heads = run.args.num_kv_heads;
  const int tasks = pool.num_threads() * kPiecesPerThread;
  const size_t wave = std::min<size_t>(tiles.size(), (tasks + kv_heads - 1) / kv_heads);
  float* partial = scratch.Reserve(wave * kv_heads * run.num_statistics() * run.num_columns());
  for (size_t begin = 0; begin < tiles.size(); begin += wave)
    AttendWave(run, tiles.subspan(begin, std::min(wave, tiles.size() - begin)), partial, pool);
}

}  // namespace

void PrefillAttention(const PrefillAttentionArgs& args, ThreadPool& pool) {
  HYDRANT_CHECK(args.WindowIsValid());
  if (args.num_queries == 0) return;
  const Run run = RunOf(args, pool);
  std::vector<int> plain, counted;
  for (int tile = 0; tile < run.num_tiles(); ++tile) {
    const bool touched =
        std::any_of(args.statistics.begin(), args.statistics.end(),
                    [&](const ColumnStatistic& statistic) { return run.Touches(statistic, tile); });
    (touched ? counted : plain).push_back(tile);
  }
  if (args.out != nullptr) AttendPlain(run, plain, pool);
  AttendCounted(run, counted, pool);
}

}  // namespace hydrant::cpu
