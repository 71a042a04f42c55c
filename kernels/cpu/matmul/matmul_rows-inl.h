// Shared by the block kernels of every instruction set: locating a block of quantised activations,
// choosing its scale, iterating over rows and panels, storing a short panel. Included by files
// compiled for one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_ROWS_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_ROWS_INL_H_

#include "kernels/cpu/matmul/matmul_kernels.h"

namespace hydrant::cpu {
namespace {

// One block of the rows from `row` to the end of its tile. Index r counts from `row`.
struct BlockOfRows {
  const uint8_t* quants;        // [r][32 values]
  const float* scales;          // [r]
  const float* scaled_sums;     // [r]
  const int32_t* half_sums[2];  // [r] each
  const float* scaled_half_sums[2];
};

inline BlockOfRows BlockOfRowsAt(const QuantizedRows& rows, int row, int num_blocks, int block,
                                 int value_bytes = 2) {
  const size_t tile = static_cast<size_t>(row / kTileRows) * num_blocks + block;
  const int r = row % kTileRows;
  const int32_t* half_sums = rows.half_sums + tile * 2 * kTileRows + r;
  const float* scaled_halves = rows.scaled_half_sums + tile * 2 * kTileRows + r;
  return {.quants = rows.quants + (tile * kTileRows + r) * kBlock * value_bytes,
          .scales = rows.scales + tile * kTileRows + r,
          .scaled_sums = rows.scaled_sums + tile * kTileRows + r,
          .half_sums = {half_sums, half_sums + kTileRows},
          .scaled_half_sums = {scaled_halves, scaled_halves + kTileRows}};
}

// Sum of the integers of the block, or of one half in formats with half scales.
template <DType dtype>
inline int32_t SumOf(const BlockOfRows& x, int r, int half) {
  if constexpr (BlockTraitsOf(dtype).halves) return x.half_sums[half][r];
  return x.half_sums[0][r] + x.half_sums[1][r];
}

// The scaled sum, the factor of a minimum.
template <DType dtype>
inline float ScaledSumOf(const BlockOfRows& x, int r, int half) {
  if constexpr (BlockTraitsOf(dtype).halves) return x.scaled_half_sums[half][r];
  return x.scaled_sums[r];
}

// i = round(x / scale), |i| <= kQuantLimit, so that i = 256 * high + low with both in int8.
inline constexpr float kQuantLimit = 32639.0f;
inline constexpr float kQuantLimit8 = 127.0f;  // for 8 bits
inline constexpr float kLargestFloat = 3.4028234e38f;
inline constexpr float kSmallestPeak = 1e-30f;  // smaller peaks count as zero

struct BlockScale {
  float scale;    // NaN where a value is not finite, so that outputs are not finite either
  float inverse;  // 0 where all values are zero or too small for 1 / scale
  bool finite;
};

inline BlockScale BlockScaleOf(const float* peaks, int num_peaks, bool has_nan, float limit) {
  float peak = 0.0f;
  for (int i = 0; i < num_peaks; ++i) peak = peaks[i] > peak ? peaks[i] : peak;
  if (has_nan || peak > kLargestFloat) return {__builtin_nanf(""), 0.0f, false};
  if (peak < kSmallestPeak) return {0.0f, 0.0f, true};
  return {peak / limit, limit / peak, true};
}

// As MatmulKernels::quantize, with `value_bytes` per value.
template <typename QuantizeBlockFn>
inline void QuantizeRows(const float* x, int cols, const ConvertRange& range,
                         const QuantizedRows& out, int value_bytes,
                         QuantizeBlockFn quantize_block) {
  const int num_blocks = cols / kBlock;
  for (int row = range.first_row; row < range.end_row; ++row) {
    for (int block = range.first_block; block < range.end_block; ++block) {
      const size_t tile = static_cast<size_t>(row / kTileRows) * num_blocks + block;
      const size_t at = tile * kTileRows + row % kTileRows;
      int32_t half_sums[2];
      quantize_block(x + static_cast<size_t>(row - range.first_row) * cols + block * kBlock,
                     out.quants + at * kBlock * value_bytes, out.scales + at, out.scaled_sums + at,
                     half_sums);
      for (int half = 0; half < 2; ++half) {
        const size_t at_half = (tile * 2 + half) * kTileRows + row % kTileRows;
        out.half_sums[at_half] = half_sums[half];
        out.scaled_half_sums[at_half] = out.scales[at] * static_cast<float>(half_sums[half]);
      }
    }
  }
}

// Stores y[row, first .. first + count), except rows past the last row of W.
inline void StoreValues(const PanelArgs& args, int row, int first, const float* values, int count) {
  float* y = args.y + row * args.y_stride + first;
  const int valid = args.rows - first < count ? args.rows - first : count;
  for (int j = 0; j < valid; ++j) y[j] = args.accumulate ? y[j] + values[j] : values[j];
}

// Rows of x from `row` on by Tile::kPanels panels from `panel` on. `turns` row parts use the same
// panels, one after the other; this is number `turn`.
struct TileTask {
  int row, panel;
  int turn, turns;
};

enum class Cache : uint8_t { kFirst, kSecond };

// Weights are read once, so memory bandwidth bounds the speed. Explicit prefetching keeps memory
// busy where the hardware prefetcher stops, at the ends of pages and of a group's streams.
template <Cache kCache, size_t kAhead = 32768>
inline void PrefetchAhead(const uint8_t* p, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) {
    // 3: into the first cache, 2: into the second.
    __builtin_prefetch(p + kAhead + at, 0, kCache == Cache::kFirst ? 3 : 2);
  }
}

// Prefetches for the block of a group at p. Data far ahead goes to L2: each turn prefetches a part
// of it, so that memory is busy in all turns. Data a little ahead goes to L1 in the first turn
// only: more would evict the activations.
inline void PrefetchFor(const TileTask& task, int block, const uint8_t* p, size_t bytes) {
  if (block % task.turns == task.turn) PrefetchAhead<Cache::kSecond>(p, bytes);
  if (task.turn == 0) PrefetchAhead<Cache::kFirst, 1536>(p, bytes);
}

// Calls Tile::Run<rows>(args, task), with Tile::kMinRows to Tile::kMaxRows rows.
template <typename Tile, int kRows = Tile::kMaxRows>
void RunTile(const PanelArgs& args, int rows, const TileTask& task) {
  if constexpr (kRows > Tile::kMinRows) {
    if (rows < kRows) return RunTile<Tile, kRows - 1>(args, rows, task);
  }
  Tile::template Run<kRows>(args, task);
}

// Some rows by some panels, then the next rows by the same panels: panels come from memory once,
// for the first rows, and from cache for the others. Few rows use as few panels as possible, so
// that memory is always busy; many rows, which exceed a cache, use as many panels as stay in it.
// The rows of a tile are cut evenly, so that unpacking a panel serves many of them.
template <typename Tile>
void EveryTile(const PanelArgs& args) {
  constexpr int kFewTurns = 16;
  constexpr size_t kNearBytes = size_t{256} << 10;
  const auto parts_of = [](int rows) { return (rows + Tile::kMaxRows - 1) / Tile::kMaxRows; };
  const int num_rows = args.end_row - args.first_row;
  const int turns = num_rows / kTileRows * parts_of(kTileRows) + parts_of(num_rows % kTileRows);
  const size_t near = turns > kFewTurns ? kNearBytes / args.panel_bytes / Tile::kPanels : 1;
  const int step = (near > 1 ? static_cast<int>(near) : 1) * Tile::kPanels;
  for (int first = args.first_panel; first < args.end_panel; first += step) {
    const int end = first + step < args.end_panel ? first + step : args.end_panel;
    int turn = 0;
    for (int tile = args.first_row; tile < args.end_row; tile += kTileRows) {
      const int rows = args.end_row - tile < kTileRows ? args.end_row - tile : kTileRows;
      const int parts = parts_of(rows);
      for (int part = 0; part < parts; ++part, ++turn) {
        const int row = tile + rows * part / parts, end_row = tile + rows * (part + 1) / parts;
        for (int panel = first; panel < end; panel += Tile::kPanels)
          RunTile<Tile>(args, end_row - row, {row, panel, turn, turns});
      }
    }
  }
}

template <template <DType> class Range>
void ForFormat(const PanelArgs& args) {
  switch (args.dtype) {
    case DType::kQ4_0:
      return Range<DType::kQ4_0>::Run(args);
    case DType::kQ4_1:
      return Range<DType::kQ4_1>::Run(args);
    case DType::kQ5_0:
      return Range<DType::kQ5_0>::Run(args);
    case DType::kQ5_1:
      return Range<DType::kQ5_1>::Run(args);
    case DType::kQ8_0:
      return Range<DType::kQ8_0>::Run(args);
    case DType::kQ4_K:
      return Range<DType::kQ4_K>::Run(args);
    case DType::kQ5_K:
      return Range<DType::kQ5_K>::Run(args);
    case DType::kQ6_K:
      return Range<DType::kQ6_K>::Run(args);
    case DType::kQ2_K:
      return Range<DType::kQ2_K>::Run(args);
    case DType::kQ3_K:
      return Range<DType::kQ3_K>::Run(args);
    case DType::kIQ4_NL:
      return Range<DType::kIQ4_NL>::Run(args);
    case DType::kIQ4_XS:
      return Range<DType::kIQ4_XS>::Run(args);
    case DType::kMXFP4:
      return Range<DType::kMXFP4>::Run(args);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8_E4M3:
    case DType::kE4M3:
      return;  // in panels of their own
  }
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_ROWS_INL_H_
