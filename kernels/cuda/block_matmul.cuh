// The kernel of kernels/cuda/block_matmul.h, over a Format (block_formats.cuh).
//
// W is the left tensor-core operand, 16 rows by 16 columns; up to 64 rows of x are the right
// operand. A block of 8 warps multiplies 128 rows: warp w has panel w % 4 and half w / 4 of each
// tile's steps. The tiles of all 128-row groups, in order, are divided into equal runs, one block
// per multiprocessor. Asynchronous copies bring tiles and the matching columns of x to shared
// memory, in `stages` pipeline stages. While one tile is multiplied, the next tile's scales are
// converted to fp32 and its columns of x are summed, once for all warps, so a tile needs one
// barrier. If several blocks share a group, the last to finish adds their partial sums in column
// order. That block then runs the epilogue: division by the root mean square of x, accumulation
// into y, bias, gate or rotation, and the sum of squares for the next norm.
//
// In a gated product a group has 64 rows of the gate, then the 64 matching rows of up. Weights are
// constants, so the first tiles are copied before the kernel waits for its predecessor; nothing
// else is read or written before that wait.
#ifndef HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_CUH_
#define HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_CUH_

#include <algorithm>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/block_formats.cuh"
#include "kernels/cuda/block_matmul.h"
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rope_split.cuh"

namespace hydrant::cuda {

inline constexpr int kBlockMatmulThreads = 256;
inline constexpr int kGroupPanels = 4;
inline constexpr int kGatePanels = kGroupPanels / 2;
inline constexpr int kGroupRows = kGroupPanels * kTileRows;
static_assert(kGroupRows == SplitNorm::kPartColumns);
inline constexpr int kJoiners = kBlockMatmulThreads / 2;  // threads that hold both halves' sums

struct BlockMatmulLaunch {
  BlockMatmulArgs args;
  int column_tiles;
  int units;   // (128-row group, column tile) pairs; a group's units are
               // contiguous
  int stages;  // 3 to 6
  int early;   // tiles copied before the wait, fewer than stages
};

template <typename Format, int kTokens>
class BlockProduct {
  static constexpr int kTokenTiles = kTokens / 8;
  static constexpr int kSteps = Format::kSteps;
  static constexpr int kStepScales = kStepColumns / Format::kScaleColumns;
  static constexpr int kScales = kSteps * kStepScales;
  static constexpr int kWeightBytes = kGroupPanels * Format::kTileBytes;
  static constexpr int kStepBytes = kTokens * kStepColumns * 2;  // of x
  static constexpr int kScaleBytes = Format::kScaled ? kScales * kGroupRows * 8 : 0;
  static constexpr int kSumBytes = Format::kNeedsSums ? kScales * kTokens * 4 : 0;
  static constexpr int kJoinBytes = kJoiners * 2 * 16;

 public:
  static constexpr int kStageBytes = kWeightBytes + kSteps * kStepBytes;
  static constexpr int kFixedBytes = 2 * (kScaleBytes + kSumBytes) + kJoinBytes;

  __device__ explicit BlockProduct(const BlockMatmulLaunch& launch)
      : l_(launch),
        shared_(DynamicShared<uint8_t>()),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % kWarpSize),
        panel_(thread_ / kWarpSize % kGroupPanels),
        half_(thread_ / kJoiners) {}

  __device__ void Run() {
    begin_ = FirstUnitOf(blockIdx.x);
    end_ = FirstUnitOf(blockIdx.x + 1);
    Cursor copied = {begin_, begin_ / l_.column_tiles, begin_ % l_.column_tiles, 0};
    Cursor at = copied;
    CopyEarly(copied);
    WaitForPredecessor();
    if (FindTokens() == 0) return;
    for (int i = 0; i < l_.stages - 1; ++i) Copy(copied, i >= l_.early);
    if (l_.args.x_norm.squares != nullptr) FindFactors();
    WaitCopies(l_.stages - 2);
    __syncthreads();
    Prepare(at);
    float sums[2][kTokenTiles][4] = {};
    while (at.unit < end_) {
      WaitCopies(l_.stages - 3);
      __syncthreads();  // every warp has multiplied the previous unit; the
                        // next copy overwrites its stage
      Copy(copied, true);
      Multiply(at, sums);
      const int group = at.group;
      Advance(at);
      if (at.unit < end_) Prepare(at);
      if (at.unit == end_ || at.group != group) Finish(group, sums);
    }
  }

 private:
  // Iterates over units: row group, column tile and pipeline stage.
  struct Cursor {
    int unit, group, column_tile, stage;
  };
  __device__ void Advance(Cursor& cursor) const {
    ++cursor.unit;
    if (++cursor.column_tile == l_.column_tiles) {
      cursor.column_tile = 0;
      ++cursor.group;
    }
    if (++cursor.stage == l_.stages) cursor.stage = 0;
  }
  __device__ int FirstUnitOf(unsigned block) const {
    return static_cast<int>(int64_t{block} * l_.units / gridDim.x);
  }

  // Finds the rows of x and their number; with experts, the block's expert too.
  __device__ int FindTokens() {
    __shared__ ExpertTile shared_tile;
    const BlockMatmulArgs& args = l_.args;
    if (args.experts == 0) {
      tile_ = {0, 0, args.m};
    } else {
      if (thread_ < kWarpSize) {
        const ExpertTile tile =
            FindExpertTile<kTokens>(args.offsets, args.experts, static_cast<int>(blockIdx.y));
        if (thread_ == 0) shared_tile = tile;
      }
      __syncthreads();
      tile_ = shared_tile;
    }
    for (int i = thread_; i < kTokens; i += kBlockMatmulThreads) {
      const int place = tile_.first + min(i, max(tile_.count - 1, 0));
      Rows()[i] = args.sources == nullptr || tile_.count == 0 ? place : args.sources[place];
    }
    __syncthreads();
    return tile_.count;
  }
  __device__ static int* Rows() {
    __shared__ int rows[kTokens];
    return rows;
  }

  // The factor 1 / RMS of each row of x. One warp adds a row's sums of squares, in an order
  // independent of kTokens.
  __device__ void FindFactors() const {
    constexpr int kWarps = kBlockMatmulThreads / kWarpSize, kOwn = kTokens / kWarps;
    const BlockMatmulArgs& args = l_.args;
    double sums[kOwn] = {};
    for (int part = lane_; part < args.x_parts; part += kWarpSize) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int token = min(thread_ / kWarpSize + i * kWarps, tile_.count - 1);
        sums[i] += args.x_norm.squares[static_cast<size_t>(token) * args.x_parts + part];
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const double mean = WarpSum(sums[i]) / args.cols;
      if (lane_ == 0)
        Factors()[thread_ / kWarpSize + i * kWarps] =
            static_cast<float>(1.0 / sqrt(mean + static_cast<double>(args.x_norm.eps)));
    }
  }
  __device__ static float* Factors() {
    __shared__ float factors[kTokens];
    return factors;
  }

  __device__ uint8_t* Stage(const Cursor& at) const { return shared_ + at.stage * kStageBytes; }
  // Double-buffered by unit parity.
  __device__ float2* ScalesOf(const Cursor& at) const {
    return reinterpret_cast<float2*>(shared_ + l_.stages * kStageBytes +
                                     (at.unit & 1) * kScaleBytes);
  }
  __device__ float* SumsOf(const Cursor& at) const {
    return reinterpret_cast<float*>(shared_ + l_.stages * kStageBytes + 2 * kScaleBytes +
                                    (at.unit & 1) * kSumBytes);
  }
  __device__ float4* Joins() const {
    return reinterpret_cast<float4*>(shared_ + l_.stages * kStageBytes +
                                     2 * (kScaleBytes + kSumBytes));
  }

  __device__ void CopyEarly(Cursor at) const {
    for (int i = 0; i < l_.early && at.unit < end_; ++i) {
      CopyWeights(at);
      Advance(at);
    }
  }
  // Starts the next unit's copy; `weights` is false if its weights were copied early. Past the last
  // unit the copy group is empty. Rows and columns out of range are zero-filled.
  __device__ void Copy(Cursor& at, bool weights) {
    if (at.unit < end_) {
      if (weights) CopyWeights(at);
      CopyTokens(at.column_tile * Format::kColumns, Stage(at) + kWeightBytes);
      Advance(at);
    }
    CommitCopies();
  }
  // Two warps per panel.
  __device__ void CopyWeights(const Cursor& at) const {
    constexpr int kChunks = Format::kTileBytes / 16, kThreads = 2 * kWarpSize;
    const int panels = (l_.args.rows + kTileRows - 1) / kTileRows;  // per expert
    const int panel = PanelOf(at.group, panels);
    uint8_t* const to = Stage(at) + panel_ * Format::kTileBytes;
    const int first = half_ * kWarpSize + lane_;
    if constexpr (Format::kRowMajor) return CopyRows(panel, at.column_tile, first, to);
    const bool valid = panel >= 0;
    const int64_t tile =
        static_cast<int64_t>(tile_.expert * panels + panel) * l_.column_tiles + at.column_tile;
    const uint8_t* const from =
        l_.args.tiles + (valid ? tile * Format::kTileBytes + first * 16 : 0);
#pragma unroll
    for (int i = 0; i < kChunks; i += kThreads)
      if (i + kThreads <= kChunks || first < kChunks - i)
        CopyAsync16(to + (i + first) * 16, from + i * 16, valid);
  }
  // This warp's panel in a group, or -1.
  __device__ int PanelOf(int group, int panels) const {
    if (!l_.args.gated) {
      const int panel = group * kGroupPanels + panel_;
      return panel < panels ? panel : -1;
    }
    const int in_half = group * kGatePanels + panel_ % kGatePanels;
    if (in_half >= panels / 2) return -1;
    return panel_ < kGatePanels ? in_half : panels / 2 + in_half;
  }
  // For a row-major weight: 16 bytes per thread and iteration, 256 bytes of a row.
  __device__ void CopyRows(int panel, int column_tile, int first, uint8_t* to) const {
    constexpr int kRowChunks = Format::kColumns / 8, kThreads = 2 * kWarpSize;
    const int chunk = first % kRowChunks, column = column_tile * Format::kColumns + chunk * 8;
#pragma unroll
    for (int i = 0; i < kTileRows; i += kThreads / kRowChunks) {
      const int in_panel = i + first / kRowChunks, row = panel * kTileRows + in_panel;
      const bool valid = panel >= 0 && row < l_.args.rows && column < l_.args.cols;
      const size_t element = valid ? static_cast<size_t>(row) * l_.args.cols + column : 0;
      CopyAsync16(to + Format::PlaceOf(chunk / 4, in_panel, chunk % 4), l_.args.tiles + element * 2,
                  valid);
    }
  }
  __device__ void CopyTokens(int first_column, uint8_t* to) const {
    constexpr int kChunks = Format::kColumns / 8;  // per token
    constexpr int kStep = kBlockMatmulThreads / kChunks;
    const int chunk = thread_ % kChunks, column = first_column + chunk * 8;
    to += chunk / 4 * kStepBytes;
#pragma unroll
    for (int i = 0; i < kTokens; i += kStep) {
      const int token = i + thread_ / kChunks;
      if (kTokens < kStep && token >= kTokens) break;
      const bool valid = token < tile_.count && column < l_.args.cols;
      const uint16_t* const from =
          l_.args.x + (valid ? static_cast<size_t>(Rows()[token]) * l_.args.cols + column : 0);
      CopyAsync16(to + token * 64 + Swizzled(chunk % 4, token) * 16, from, valid);
    }
  }
  // Swizzle of a token's 8 columns: half a warp reads 4 tokens without bank conflicts.
  __device__ static int Swizzled(int chunk, int token) { return chunk ^ (token & 2); }

  // The right operands of a step: columns 16 j + 4 t to + 3 of token g.
  __device__ void LoadTokens(const uint8_t* step, int tile, uint32_t (&b)[2][2]) const {
    const int token = tile * 8 + lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint2 pairs = *reinterpret_cast<const uint2*>(
          step + token * 64 + Swizzled(2 * j + t / 2, token) * 16 + t % 2 * 8);
      b[j][0] = pairs.x;
      b[j][1] = pairs.y;
    }
  }

  // Scales and x sums of a unit, after its copy has completed.
  __device__ void Prepare(const Cursor& at) {
    const uint8_t* const stage = Stage(at);
    if constexpr (Format::kScaled) {
      // A thread handles one row and half of its scales, which come from the same few words.
      constexpr int kOwn = kScales / 2;
      const int row = thread_ % kGroupRows;
      const uint8_t* const header =
          stage + row / kTileRows * Format::kTileBytes + Format::kHeaderAt;
      float2 own[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const Scale scale = Format::ScaleOf(header, half_ * kOwn + i, row % kTileRows);
        own[i] = make_float2(scale.scale, fmaf(-Format::kZero, scale.scale, scale.min));
      }
      float2* const scales = ScalesOf(at) + half_ * kOwn * kGroupRows + PlaceOfRow(row);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) scales[i * kGroupRows] = own[i];
    }
    if constexpr (Format::kNeedsSums) AddUpTokens(stage + kWeightBytes, SumsOf(at));
  }
  // Position of a row's scales within the group: rows g and g + 8, which one lane reads
  // together, are adjacent.
  __device__ static int PlaceOfRow(int row) { return row / 16 * 16 + row % 8 * 2 + row / 8 % 2; }

  // Uses tensor cores: products with ones.
  __device__ void AddUpTokens(const uint8_t* x, float* sums) const {
    constexpr uint32_t kOnes[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
    const int warp = thread_ / kWarpSize;
    for (int i = warp; i < kSteps * kTokenTiles; i += kBlockMatmulThreads / kWarpSize) {
      const int step = i / kTokenTiles, tile = i % kTokenTiles;
      uint32_t b[2][2];
      LoadTokens(x + step * kStepBytes, tile, b);
#pragma unroll
      for (int s = 0; s < kStepScales; ++s) {
        float sum[4] = {};
        Mma16816<true>(sum, kOnes, b[s]);
        if constexpr (kStepScales == 1) Mma16816<true>(sum, kOnes, b[1]);
        if (lane_ < 4)
          *reinterpret_cast<float2*>(sums + (step * kStepScales + s) * kTokens + tile * 8 +
                                     2 * lane_) = make_float2(sum[0], sum[1]);
      }
    }
  }

  __device__ void Multiply(const Cursor& at, float (&sums)[2][kTokenTiles][4]) {
    const uint8_t* const stage = Stage(at);
    const uint8_t* const tile = stage + panel_ * Format::kTileBytes;
    const uint8_t* const x = stage + kWeightBytes;
    [[maybe_unused]] constexpr int kUnroll = kTokens <= 16 ? 2 : 1;
#pragma unroll kUnroll
    for (int i = 0; i < kSteps / 2; ++i) {
      const int step = half_ * (kSteps / 2) + i;
      uint32_t pairs[kStepPairs];
      Format::Load(tile, step, lane_, pairs);
      float2 scales[kStepScales][4];
      if constexpr (Format::kScaled) {
#pragma unroll
        for (int s = 0; s < kStepScales; ++s) {
#pragma unroll
          for (int rows = 0; rows < 2; ++rows) {
            const float4 two = *reinterpret_cast<const float4*>(
                ScalesOf(at) + (step * kStepScales + s) * kGroupRows + panel_ * kTileRows +
                16 * rows + lane_ / 4 * 2);
            scales[s][2 * rows] = make_float2(two.x, two.y);
            scales[s][2 * rows + 1] = make_float2(two.z, two.w);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        uint32_t b[2][2];
        LoadTokens(x + step * kStepBytes, n, b);
        if constexpr (Format::kScaled) {
#pragma unroll
          for (int s = 0; s < kStepScales; ++s) {
            float2 added = make_float2(0.0f, 0.0f);
            if constexpr (Format::kNeedsSums)
              added = *reinterpret_cast<const float2*>(
                  SumsOf(at) + (step * kStepScales + s) * kTokens + n * 8 + 2 * (lane_ % 4));
            AddScaled(pairs, b, s, scales[s], added, n, sums);
          }
        } else {
#pragma unroll
          for (int rows = 0; rows < 2; ++rows) {
#pragma unroll
            for (int j = 0; j < 2; ++j) MultiplyPairs(pairs, rows, j, b[j], sums[rows][n]);
          }
        }
      }
    }
  }
  __device__ static void MultiplyPairs(const uint32_t (&pairs)[kStepPairs], int rows, int j,
                                       const uint32_t (&b)[2], float (&sums)[4]) {
    const int first = 8 * rows + 4 * j;
    const uint32_t a[4] = {pairs[first], pairs[first + 1], pairs[first + 2], pairs[first + 3]};
    Mma16816<true>(sums, a, b);
  }
  // Multiplies the columns of scale s of a step into the sums of token tile n.
  __device__ static void AddScaled(const uint32_t (&pairs)[kStepPairs], const uint32_t (&b)[2][2],
                                   int s, const float2 (&scales)[4], float2 added, int n,
                                   float (&sums)[2][kTokenTiles][4]) {
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      float products[4] = {};
      MultiplyPairs(pairs, rows, s, b[s], products);
      if constexpr (kStepScales == 1) MultiplyPairs(pairs, rows, 1, b[1], products);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 scale = scales[2 * rows + c / 2];
        float& sum = sums[rows][n][c];
        sum = fmaf(scale.x, products[c], sum);
        if constexpr (Format::kNeedsSums) sum = fmaf(scale.y, c % 2 == 0 ? added.x : added.y, sum);
      }
    }
  }

  // Completes a row group's sums, alone or with other blocks' parts.
  __device__ void Finish(int group, float (&sums)[2][kTokenTiles][4]) {
    const int first = group * l_.column_tiles, last = first + l_.column_tiles - 1;
    JoinHalves(sums);
    if ((begin_ <= first && last < end_) || JoinParts(group, first, last, sums)) Write(group, sums);
    Clear(sums);
  }
  __device__ static void Clear(float (&sums)[2][kTokenTiles][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[i][n][c] = 0.0f;
      }
    }
  }
  __device__ void JoinHalves(float (&sums)[2][kTokenTiles][4]) {
    float4* const joins = Joins();
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float(&from)[4] = sums[i][n];
        if (half_ == 1)
          joins[i * kJoiners + thread_ % kJoiners] =
              make_float4(from[0], from[1], from[2], from[3]);
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (half_ == 0) Add(joins[i * kJoiners + thread_], sums[i][n]);
      }
      __syncthreads();
    }
  }
  __device__ static void Add(float4 from, float (&to)[4]) {
    to[0] += from.x;
    to[1] += from.y;
    to[2] += from.z;
    to[3] += from.w;
  }

  // The block that owns a unit.
  __device__ int OwnerOf(int unit) const {
    return static_cast<int>((int64_t{unit + 1} * gridDim.x - 1) / l_.units);
  }
  // A block leaves at most two partial sums: of its first group and of its last group.
  __device__ float4* PartOf(int block, bool begins_group) const {
    constexpr int kPartFloats = kGroupRows * kTokens;
    return reinterpret_cast<float4*>(l_.args.partials) +
           static_cast<size_t>(2 * block + (begins_group ? 1 : 0)) * (kPartFloats / 4);
  }
  // Returns true in the last block to arrive, with the total of all parts.
  __device__ bool JoinParts(int group, int first, int last, float (&sums)[2][kTokenTiles][4]) {
    __shared__ bool is_last;
    const int first_block = OwnerOf(first), last_block = OwnerOf(last);
    const auto own = static_cast<int>(blockIdx.x);
    if (half_ == 0) {
      float4* const part = PartOf(own, own == first_block);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const float(&from)[4] = sums[i][n];
          part[(i * kTokenTiles + n) * kJoiners + thread_] =
              make_float4(from[0], from[1], from[2], from[3]);
        }
      }
      __threadfence();
    }
    __syncthreads();
    if (thread_ == 0) {
      const auto others = static_cast<unsigned>(last_block - first_block);
      is_last = atomicInc(&l_.args.counters[group], others) == others;
    }
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
    if (half_ == 0) {
      Clear(sums);
      for (int block = first_block; block <= last_block; ++block) {
        const float4* const part = PartOf(block, block == first_block);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n)
            Add(__ldcg(part + (i * kTokenTiles + n) * kJoiners + thread_), sums[i][n]);
        }
      }
    }
    return true;
  }

  // Token tiles loaded and stored concurrently; registers limit it.
  static constexpr int kAtOnce = kTokenTiles < 2 ? 1 : 2;
  // Calls f(row in its 32, token, sum) for each sum of this thread, for token tiles from n on.
  template <int kCount, typename Function>
  __device__ void ForEach(int n, float (&sums)[2][kTokenTiles][4], Function f) const {
    const int lane = OnlyHere(lane_);
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          f(16 * i + 8 * (c / 2) + lane / 4, (n + m) * 8 + 2 * (lane % 4) + c % 2,
            sums[i][n + m][c]);
      }
    }
  }
  __device__ bool IsOfY(int row, int token) const {
    return row < l_.args.rows && token < tile_.count;
  }
  __device__ size_t PlaceOf(int row, int token) const {
    return static_cast<size_t>(tile_.first + token) * l_.args.y_stride + row;
  }

  // Stores a group; half of the threads take part.
  __device__ void Write(int group, float (&sums)[2][kTokenTiles][4]) const {
    if (l_.args.x_norm.squares != nullptr)
      ForEach<kTokenTiles>(0, sums, [](int, int token, float& sum) { sum *= Factors()[token]; });
    if (l_.args.gated) return WriteGated(group, sums);
    if (half_ == 0) {
      const int first = group * kGroupRows + panel_ * kTileRows;
#pragma unroll
      for (int n = 0; n < kTokenTiles; n += kAtOnce) {
        AddToSums(first, n, sums);
        if (!l_.args.rotated) Store(first, n, sums);
      }
    }
    if (l_.args.rotated) return WriteRotated(group, sums);
    if (l_.args.y_norm.squares != nullptr) WriteNorm(group, sums);
  }
  __device__ void AddToSums(int first, int n, float (&sums)[2][kTokenTiles][4]) const {
    const BlockMatmulArgs& args = l_.args;
    if (args.accumulate) {
      ForEach<kAtOnce>(n, sums, [&](int row, int token, float& sum) {
        if (IsOfY(row + first, token)) sum += args.y[PlaceOf(row + first, token)];
      });
    }
    if (args.bias == nullptr) return;
    const float* const bias = args.bias + static_cast<size_t>(tile_.expert) * args.rows;
    ForEach<kAtOnce>(n, sums, [&](int row, int, float& sum) {
      if (row + first < args.rows) sum += bias[row + first];
    });
  }
  __device__ void Store(int first, int n, float (&sums)[2][kTokenTiles][4]) const {
    const BlockMatmulArgs& args = l_.args;
    ForEach<kAtOnce>(n, sums, [&](int row, int token, float sum) {
      row += first;
      if (!IsOfY(row, token)) return;
      if (args.y_bf16 != nullptr) {
        args.y_bf16[PlaceOf(row, token)] = RoundedToBF16(sum);
      } else {
        args.y[PlaceOf(row, token)] = sum;
      }
    });
  }
  __device__ static uint16_t RoundedToBF16(float x) {
    return static_cast<uint16_t>(PackHalves<true>(x, 0.0f));
  }

  // activation(gate) * up: warps with gate panels pass their values to warps with up panels.
  __device__ void WriteGated(int group, const float (&sums)[2][kTokenTiles][4]) const {
    const BlockMatmulArgs& args = l_.args;
    float4* const joins = Joins();
    const bool up = panel_ >= kGatePanels;
    const int lane = OnlyHere(lane_);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float(&from)[4] = sums[i][n];
        if (half_ == 0 && up)
          joins[i * kJoiners + thread_] = make_float4(from[0], from[1], from[2], from[3]);
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (half_ != 0 || up) continue;
        const float4 four = joins[i * kJoiners + thread_ + kGatePanels * kWarpSize];
        const float factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int row =
              (group * kGatePanels + panel_) * kTileRows + 16 * i + 8 * (c / 2) + lane / 4;
          const int token = n * 8 + 2 * (lane % 4) + c % 2;
          const float gate = sums[i][n][c];
          const float active = args.activation == Activation::kSilu ? Silu(gate) : GeluTanh(gate);
          if (row < args.rows / 2 && token < tile_.count)
            args.y_bf16[PlaceOf(row, token)] = RoundedToBF16(active * factors[c]);
        }
      }
      __syncthreads();
    }
  }

  // Queries, keys and values of a group, which consists of whole heads. Sums of 8 tokens at
  // a time move between threads, so that a thread has both elements of a pair and
  // neighbours store neighbours.
  __device__ void WriteRotated(int group, float (&sums)[2][kTokenTiles][4]) const {
    auto* const shared = reinterpret_cast<float*>(Joins());
    const RopeSplitArgs& rope = l_.args.rope;
    // Swizzled: lanes that store together have no bank conflicts.
    const auto place = [](int row, int token) {
      return token % 8 * kGroupRows + (row ^ token % 8 / 2 * 8);
    };
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (half_ == 0) {
        ForEach<1>(n, sums, [&](int row, int token, float sum) {
          shared[place(panel_ * kTileRows + row, token)] = sum;
        });
      }
      __syncthreads();
      for (int i = thread_; i < 8 * kGroupRows / 2; i += kBlockMatmulThreads) {
        const int token = n * 8 + i / (kGroupRows / 2), pair = i % (kGroupRows / 2);
        const int in_group = pair / (rope.head_dim / 2), first = in_group * rope.head_dim;
        const int head = group * (kGroupRows / rope.head_dim) + in_group;
        if (head * rope.head_dim < l_.args.rows && token < tile_.count)
          StorePairOf(head, pair % (rope.head_dim / 2), token,
                      [&](int element) { return shared[place(first + element, token)]; });
      }
      __syncthreads();
    }
  }
  // Stores two elements of a head: a rotated pair, or neighbours that are not rotated.
  template <typename Read>
  __device__ void StorePairOf(int head, int pair, int token, Read read) const {
    const RopeSplitArgs& rope = l_.args.rope;
    const MutableArenaRows to = SplitHead(rope, token, head);
    const bool value = head >= rope.num_heads + rope.num_kv_heads;
    if (!value && pair < rope.rotary_dim / 2) {
      const RotaryPair at = RotaryPairOf(rope, pair);
      return StoreRotated(rope, rope.positions[token], head, pair, read(at.first), read(at.second),
                          to);
    }
    for (int i = 2 * pair; i < 2 * pair + 2; ++i) StoreUnrotated(rope, head, i, read(i), to);
  }

  // Stores the rows of y in `sums`, times the next norm's weights, and each token's sum of squares.
  __device__ void WriteNorm(int group, const float (&sums)[2][kTokenTiles][4]) const {
    const SplitNorm& norm = l_.args.y_norm;
    auto* const squares = reinterpret_cast<double*>(Joins());  // [panels, kTokens]
    const int lane = OnlyHere(lane_);
    const int first = group * kGroupRows + panel_ * kTileRows + lane / 4;
    float weights[4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
      weights[r] = first + 8 * r < l_.args.rows ? norm.weight[first + 8 * r] : 0.0f;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = n * 8 + 2 * (lane % 4) + c;
        double square = 0.0;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float y = sums[r / 2][n][2 * (r % 2) + c];
          if (half_ != 0 || !IsOfY(first + 8 * r, token)) continue;
          square += static_cast<double>(y) * y;
          norm.rows[PlaceOf(first + 8 * r, token)] = RoundedToBF16(y * weights[r]);
        }
        for (int mask = 4; mask < kWarpSize; mask *= 2)
          square += __shfl_xor_sync(kAllLanes, square, mask);
        if (half_ == 0 && lane_ < 4) squares[panel_ * kTokens + token] = square;
      }
    }
    __syncthreads();
    if (thread_ < tile_.count) {
      double sum = 0.0;
      for (int panel = 0; panel < kGroupPanels; ++panel) sum += squares[panel * kTokens + thread_];
      norm.squares[static_cast<size_t>(thread_) * l_.args.y_parts + group] = sum;
    }
    __syncthreads();
  }

  const BlockMatmulLaunch& l_;
  uint8_t* const shared_;
  const int thread_, lane_, panel_, half_;
  ExpertTile tile_ = {};     // without experts: all rows of x
  int begin_ = 0, end_ = 0;  // units
};

template <typename Format, int kTokens>
__global__ void __launch_bounds__(kBlockMatmulThreads, 1)
    BlockMatmulKernel(const __grid_constant__ BlockMatmulLaunch launch) {
  BlockProduct<Format, kTokens>(launch).Run();
}

// Number of pipeline stages that fit.
template <typename Product>
int StagesOf(const Context& context) {
  constexpr int kLimit = 6;
  constexpr size_t kStatic = 1024;  // token rows and the runtime's own use
  const size_t taken = Product::kFixedBytes + kStatic;
  if (context.shared_of_block < taken) return 0;
  return static_cast<int>(
      std::min<size_t>(kLimit, (context.shared_of_block - taken) / Product::kStageBytes));
}

template <typename Format, int kTokens>
bool Fits(const Context& context) {
  return StagesOf<BlockProduct<Format, kTokens>>(context) >= 3;
}

template <typename Format, int kTokens>
cudaError_t LaunchBlockMatmul(const Context& context, const BlockMatmulArgs& args) {
  using Product = BlockProduct<Format, kTokens>;
  const int groups = NumRowGroups(args.rows);
  BlockMatmulLaunch launch = {args, CeilDiv(args.cols, Format::kColumns), 0,
                              StagesOf<Product>(context), 0};
  launch.units = groups * launch.column_tiles;
  // Half of the stages, so that copies are in flight while the first ones wait for x. Not with
  // experts: the predecessor writes the expert assignment.
  if (overlap_kernels && args.experts == 0) launch.early = launch.stages / 2;
  const size_t shared = launch.stages * Product::kStageBytes + Product::kFixedBytes;
  // With experts each group is its own block: there are many groups.
  const bool experts = args.experts > 0;
  const int blocks = experts ? groups : std::min(context.num_sms, launch.units);
  const int tiles = experts ? MostExpertTiles<kTokens>(args.places, args.experts) : 1;
  return LaunchOverlapped(BlockMatmulKernel<Format, kTokens>, dim3(blocks, tiles),
                          dim3(kBlockMatmulThreads), shared, context.stream, launch);
}

inline RopeSplitArgs RowsFrom(RopeSplitArgs rope, int first) {
  rope.positions += first;
  rope.q = rope.q + static_cast<int64_t>(first) * rope.num_heads * rope.head_dim;
  rope.k = rope.k + first * rope.kv_row_stride;
  rope.v = rope.v + first * rope.kv_row_stride;
  return rope;
}

template <typename Format, int kTokens>
cudaError_t LaunchInChunks(const Context& context, const BlockMatmulArgs& args) {
  if (args.experts > 0) return LaunchBlockMatmul<Format, kTokens>(context, args);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < args.m && error == cudaSuccess; first += kTokens) {
    BlockMatmulArgs chunk = args;
    const size_t in_y = static_cast<size_t>(first) * args.y_stride;
    chunk.x += static_cast<size_t>(first) * args.cols;
    if (args.y != nullptr) chunk.y += in_y;
    if (args.y_bf16 != nullptr) chunk.y_bf16 += in_y;
    if (args.x_norm.squares != nullptr)
      chunk.x_norm.squares += static_cast<size_t>(first) * args.x_parts;
    if (args.y_norm.squares != nullptr) {
      chunk.y_norm.rows += in_y;
      chunk.y_norm.squares += static_cast<size_t>(first) * args.y_parts;
    }
    if (args.rotated) chunk.rope = RowsFrom(args.rope, first);
    chunk.m = std::min(kTokens, args.m - first);
    error = LaunchBlockMatmul<Format, kTokens>(context, chunk);
  }
  return error;
}

template <typename F>
cudaError_t MultiplyWith(const Context& context, const BlockMatmulArgs& args) {
  const int rows = args.experts > 0 ? CeilDiv(args.places, args.experts) : args.m;
  if (rows > 32 && Fits<F, 64>(context)) return LaunchInChunks<F, 64>(context, args);
  if (rows > 16 && Fits<F, 32>(context)) return LaunchInChunks<F, 32>(context, args);
  if (rows > 8 && Fits<F, 16>(context)) return LaunchInChunks<F, 16>(context, args);
  return LaunchInChunks<F, 8>(context, args);
}

// Instantiated once per type, each in its own source file.
template <DType kDType>
bool CanMultiplyFormat(const Context& context) {
  return Fits<Format<kDType>, 8>(context);
}
template <DType kDType>
cudaError_t MultiplyFormat(const Context& context, const BlockMatmulArgs& args) {
  return MultiplyWith<Format<kDType>>(context, args);
}

#define HYDRANT_MULTIPLY_FORMAT(kDType)                           \
  template bool CanMultiplyFormat<DType::kDType>(const Context&); \
  template cudaError_t MultiplyFormat<DType::kDType>(const Context&, const BlockMatmulArgs&);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_CUH_
