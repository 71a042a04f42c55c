#include <algorithm>

#include "kernels/cuda/block_formats.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tile_rows.h"

namespace hydrant::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;

struct Place {
  int row, column;
};

// Row and column of a lane's quant `index`, a half of pair index / 2 (block_formats.cuh).
__device__ Place PlaceOf(int step, int lane, int index) {
  const int pair = index / 2;
  return {
      16 * (pair / 8) + 8 * (pair % 2) + lane / 4,
      step * kStepColumns + 16 * (pair / 4 % 2) + 4 * (lane % 4) + 2 * (pair / 2 % 2) + index % 2};
}

// One block per tile: grid x: tiles along the columns, y: panels.
template <typename Format>
__global__ void PackTilesKernel(PackTilesArgs args, size_t row_bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int column_tile = static_cast<int>(blockIdx.x), panel = static_cast<int>(blockIdx.y);
  uint8_t* const tile = static_cast<uint8_t*>(args.tiles) +
                        (static_cast<size_t>(panel) * gridDim.x + column_tile) * Format::kTileBytes;
  const auto* const stored =
      static_cast<const uint8_t*>(args.stored) + static_cast<size_t>(panel) * kTileRows * row_bytes;
  const int rows = min(kTileRows, args.rows - panel * kTileRows);
  // The stored block of a tile's column; null: out of range.
  const auto block_of = [&](int row, int column) -> const uint8_t* {
    const int at = column_tile * Format::kColumns + column;
    if (row >= rows || at >= args.cols) return nullptr;
    return stored + row * row_bytes +
           static_cast<size_t>(at / Format::kBlockColumns) * Format::kBlockBytes;
  };
  for (int step = static_cast<int>(threadIdx.x) / kWarpSize; step < Format::kSteps;
       step += kWarps) {
    uint32_t quants[2 * kStepPairs];
#pragma unroll
    for (int i = 0; i < 2 * kStepPairs; ++i) {
      const Place place = PlaceOf(step, lane, i);
      const uint8_t* const block = block_of(place.row, place.column);
      quants[i] = block == nullptr ? 0 : Format::Quant(block, place.column % Format::kBlockColumns);
    }
    Format::Store(tile, step, lane, quants);
  }
  constexpr int kUnit = Format::kHeaderUnit;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * Format::kHeaderBytes; i += kThreads) {
    const int row = i % kTileRows, byte = i / kTileRows;
    if constexpr (Format::kBlockHeader > 0) {
      const uint8_t* const block =
          block_of(row, byte / Format::kBlockHeader * Format::kBlockColumns);
      tile[Format::kHeaderAt + (byte / kUnit * kTileRows + row) * kUnit + byte % kUnit] =
          block == nullptr ? 0 : block[Format::HeaderByte(byte % Format::kBlockHeader)];
    }
  }
}

// The value of half `which` of a pair.
template <typename Format>
__device__ float ValueOf(uint32_t pair, int which, Scale scale) {
  const float number = HalfOf<true>(pair, which);
  if constexpr (!Format::kScaled) return number;
  return __fadd_rn(__fmul_rn(scale.scale, number - Format::kZero), scale.min);
}

template <typename Format>
__device__ Scale ScaleAt(const uint8_t* tile, int step, int j, int row) {
  const int index = (step * kStepColumns + 16 * j) / Format::kScaleColumns;
  return Format::ScaleOf(tile + Format::kHeaderAt, index, row);
}

// One block per tile, one warp per step of it.
template <typename Format>
__global__ void UnpackTilesKernel(TiledRows rows, int cols, uint16_t* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int step = static_cast<int>(threadIdx.x) / kWarpSize;
  if (step >= Format::kSteps) return;
  const int column_tile = static_cast<int>(blockIdx.x), panel = static_cast<int>(blockIdx.y);
  const uint8_t* const tile =
      rows.tiles + (static_cast<size_t>(panel) * gridDim.x + column_tile) * Format::kTileBytes;
  uint32_t pairs[kStepPairs];
  Format::Load(tile, step, lane, pairs);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int first = 8 * (r / 2) + 4 * j + r % 2;
      const Place place = PlaceOf(step, lane, 2 * first);
      const Scale scale = ScaleAt<Format>(tile, step, j, place.row);
      uint32_t halves[2];
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint32_t pair = pairs[first + 2 * p];
        halves[p] =
            PackHalves<true>(ValueOf<Format>(pair, 0, scale), ValueOf<Format>(pair, 1, scale));
      }
      const int row = panel * kTileRows + place.row;
      const int column = column_tile * Format::kColumns + place.column;
      if (row < rows.rows && column < cols)
        *reinterpret_cast<uint2*>(out + static_cast<size_t>(row) * cols + column) =
            make_uint2(halves[0], halves[1]);
    }
  }
}

// One block per look-up; a thread takes the eight columns of one lane in a step of the row.
template <typename Format>
__global__ void EmbedTilesKernel(TiledRows rows, int column_tiles, int cols, EmbedArgs args) {
  const auto row = static_cast<int64_t>(args.ids[blockIdx.x]) - rows.first_row;
  if (row < 0 || row >= rows.rows) return;
  const int in_panel = static_cast<int>(row % kTileRows);
  const int r = in_panel / 8;
  float* const out = args.out + static_cast<size_t>(blockIdx.x) * cols;
  for (int i = static_cast<int>(threadIdx.x); i < column_tiles * Format::kSteps * 4;
       i += kThreads) {
    const int column_tile = i / (Format::kSteps * 4), step = i / 4 % Format::kSteps;
    const int lane = in_panel % 8 * 4 + i % 4;
    const uint8_t* const tile =
        rows.tiles + (row / kTileRows * column_tiles + column_tile) * Format::kTileBytes;
    uint32_t pairs[kStepPairs];
    Format::Load(tile, step, lane, pairs);
#pragma unroll
    for (int pair = 0; pair < kStepPairs; ++pair) {
      if (pair / 8 * 2 + pair % 2 != r) continue;  // another row
      const Place place = PlaceOf(step, lane, 2 * pair);
      const int column = column_tile * Format::kColumns + place.column;
      if (column >= cols) continue;
      const Scale scale = ScaleAt<Format>(tile, step, pair / 4 % 2, in_panel);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& to = out[column + e];
        to = (args.accumulate ? to : 0.0f) + args.scale * ValueOf<Format>(pairs[pair], e, scale);
      }
    }
  }
}

}  // namespace

cudaError_t PackTiles(const Context& context, const PackTilesArgs& args) {
  return WithTileType(args.dtype, [&](auto type) {
    using F = Format<type()>;
    const dim3 grid(CeilDiv(args.cols, F::kColumns), CeilDiv(args.rows, kTileRows));
    return Launch(PackTilesKernel<F>, grid, dim3(kThreads), 0, context.stream, args,
                  BytesOf(args.dtype, args.cols));
  });
}

cudaError_t UnpackTiles(cudaStream_t stream, const TiledRows& rows, int cols, uint16_t* out) {
  return WithTileType(rows.dtype, [&](auto type) {
    using F = Format<type()>;
    const dim3 grid(CeilDiv(cols, F::kColumns), CeilDiv(rows.rows, kTileRows));
    return Launch(UnpackTilesKernel<F>, grid, dim3(kThreads), 0, stream, rows, cols, out);
  });
}

cudaError_t EmbedTiles(cudaStream_t stream, const TiledRows& rows, const EmbedArgs& args) {
  return WithTileType(rows.dtype, [&](auto type) {
    using F = Format<type()>;
    const int cols = args.table->cols();
    return Launch(EmbedTilesKernel<F>, dim3(args.m), dim3(kThreads), 0, stream, rows,
                  CeilDiv(cols, F::kColumns), cols, args);
  });
}

}  // namespace hydrant::cuda
