// The kernel of kernels/cuda/block_matmul.h, over a Format (block_formats.cuh).
//
// W is the left operand of the tensor cores, 16 rows by 16 columns, up to 64
// rows of x are the right one. A block of 8 warps multiplies 128 rows: warp w
// has panel w % 4 and, of each tile, half w / 4 of its steps. The tiles of all
// groups of 128 rows, one behind the other, are dealt to the blocks in equal
// runs, one block a multiprocessor. They come to shared memory by asynchronous
// copies, with the columns of x that they meet, `stages` at a time. While one
// is multiplied the next one's scales become fp32, and the columns of x are
// added up, once for all warps; so there is one barrier a tile. A group that
// several blocks have parts of is added up by the last of them to be done, in
// the order of columns.
#ifndef HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_CUH_
#define HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_CUH_

#include <algorithm>

#include "kernels/cuda/block_formats.cuh"
#include "kernels/cuda/block_matmul.h"
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/launch.cuh"

namespace hydrant::cuda {

inline constexpr int kBlockMatmulThreads = 256;
inline constexpr int kGroupPanels = 4;
inline constexpr int kGroupRows = kGroupPanels * kTileRows;
inline constexpr int kJoiners =
    kBlockMatmulThreads / 2;  // threads that hold the sums of both halves

struct BlockMatmulLaunch {
  BlockMatmulArgs args;
  int column_tiles;
  int units;   // a tile's columns of 128 rows; those of a group of rows are
               // neighbours
  int stages;  // 3 to 6
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
    if (FindTokens() == 0) return;
    begin_ = FirstUnitOf(blockIdx.x);
    end_ = FirstUnitOf(blockIdx.x + 1);
    Cursor copied = {begin_, begin_ / l_.column_tiles, begin_ % l_.column_tiles, 0};
    Cursor at = copied;
    for (int i = 0; i < l_.stages - 1; ++i) Copy(copied);
    WaitCopies(l_.stages - 2);
    __syncthreads();
    Prepare(at);
    float sums[2][kTokenTiles][4] = {};
    while (at.unit < end_) {
      WaitCopies(l_.stages - 3);
      __syncthreads();  // all have multiplied the unit before, whose place the
                        // next copy takes
      Copy(copied);
      Multiply(at, sums);
      const int group = at.group;
      Advance(at);
      if (at.unit < end_) Prepare(at);
      if (at.unit == end_ || at.group != group) Finish(group, sums);
    }
  }

 private:
  // A unit, counted through: its group of rows, its place along the columns,
  // and its stage.
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

  // Which rows of x there are; how many. Of an expert, which one.
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

  __device__ uint8_t* Stage(const Cursor& at) const { return shared_ + at.stage * kStageBytes; }
  // Of every other unit.
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

  // Starts the copy of the next unit; past the last one, of nothing. What is
  // past the last row or column is zeros.
  __device__ void Copy(Cursor& at) {
    if (at.unit < end_) {
      CopyWeights(at);
      CopyTokens(at.column_tile * Format::kColumns, Stage(at) + kWeightBytes);
      Advance(at);
    }
    CommitCopies();
  }
  // Two warps a panel.
  __device__ void CopyWeights(const Cursor& at) const {
    constexpr int kChunks = Format::kTileBytes / 16, kThreads = 2 * kWarpSize;
    const int panels = (l_.args.rows + kTileRows - 1) / kTileRows;  // of an expert
    const int panel = at.group * kGroupPanels + panel_;
    const bool valid = panel < panels;
    const int64_t tile =
        static_cast<int64_t>(tile_.expert * panels + panel) * l_.column_tiles + at.column_tile;
    const int first = half_ * kWarpSize + lane_;
    const uint8_t* const from =
        l_.args.tiles + (valid ? tile * Format::kTileBytes + first * 16 : 0);
    uint8_t* const to = Stage(at) + panel_ * Format::kTileBytes + first * 16;
#pragma unroll
    for (int i = 0; i < kChunks; i += kThreads)
      if (i + kThreads <= kChunks || first < kChunks - i)
        CopyAsync16(to + i * 16, from + i * 16, valid);
  }
  __device__ void CopyTokens(int first_column, uint8_t* to) const {
    constexpr int kChunks = Format::kColumns / 8;  // of a token
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
  // Where a token's 8 columns lie: half a warp then reads 4 tokens of all
  // banks.
  __device__ static int Swizzled(int chunk, int token) { return chunk ^ (token & 2); }

  // The right operands of a step: 16 j + 4 t to + 3 of token g.
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

  // Scales and sums of x of a unit that has come.
  __device__ void Prepare(const Cursor& at) {
    const uint8_t* const stage = Stage(at);
    if constexpr (Format::kScaled) {
      // A thread has a row and half of its scales, which are of the same few words.
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
  // Where the scales of a row lie among those of a group: rows g and g + 8, which a lane reads at
  // once, beside each other.
  __device__ static int PlaceOfRow(int row) { return row / 16 * 16 + row % 8 * 2 + row / 8 % 2; }

  // By tensor cores: products with ones.
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
  // The columns of scale s of a step, to the sums of token tile n.
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

  // The sums of a group of rows, here or altogether.
  __device__ void Finish(int group, float (&sums)[2][kTokenTiles][4]) {
    const int first = group * l_.column_tiles, last = first + l_.column_tiles - 1;
    JoinHalves(sums);
    if ((begin_ <= first && last < end_) || JoinParts(group, first, last, sums)) Write(group, sums);
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

  // The block that has a unit.
  __device__ int OwnerOf(int unit) const {
    return static_cast<int>((int64_t{unit + 1} * gridDim.x - 1) / l_.units);
  }
  // A block leaves at most two parts: of the group that it begins with, and of
  // the one it ends with.
  __device__ float4* PartOf(int block, bool begins_group) const {
    constexpr int kPartFloats = kGroupRows * kTokens;
    return reinterpret_cast<float4*>(l_.args.partials) +
           static_cast<size_t>(2 * block + (begins_group ? 1 : 0)) * (kPartFloats / 4);
  }
  // True in the last block to come, with the sums of all.
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
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const int at = (i * kTokenTiles + n) * kJoiners + thread_;
          float(&to)[4] = sums[i][n];
          to[0] = to[1] = to[2] = to[3] = 0.0f;
          for (int block = first_block; block <= last_block; ++block)
            Add(__ldcg(PartOf(block, block == first_block) + at), to);
        }
      }
    }
    return true;
  }

  __device__ void Write(int group, const float (&sums)[2][kTokenTiles][4]) const {
    if (half_ != 0) return;
    const BlockMatmulArgs& args = l_.args;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const auto row =
              group * kGroupRows + panel_ * kTileRows + 16 * i + 8 * (c / 2) + lane_ / 4;
          const int token = n * 8 + 2 * (lane_ % 4) + c % 2;
          if (row >= args.rows || token >= tile_.count) continue;
          float& y = args.y[static_cast<size_t>(tile_.first + token) * args.y_stride + row];
          const float sum = args.accumulate ? y + sums[i][n][c] : sums[i][n][c];
          y = args.bias == nullptr
                  ? sum
                  : sum + args.bias[static_cast<size_t>(tile_.expert) * args.rows + row];
        }
      }
    }
  }

  const BlockMatmulLaunch& l_;
  uint8_t* const shared_;
  const int thread_, lane_, panel_, half_;
  ExpertTile tile_;          // without experts all rows of x
  int begin_ = 0, end_ = 0;  // units
};

template <typename Format, int kTokens>
__global__ void __launch_bounds__(kBlockMatmulThreads, 1)
    BlockMatmulKernel(const __grid_constant__ BlockMatmulLaunch launch) {
  BlockProduct<Format, kTokens>(launch).Run();
}

// How many stages there is room for.
template <typename Product>
int StagesOf(const Context& context) {
  constexpr int kMost = 6;
  constexpr size_t kStatic = 1024;  // rows, and what the runtime takes
  const size_t taken = Product::kFixedBytes + kStatic;
  if (context.shared_of_block < taken) return 0;
  return static_cast<int>(
      std::min<size_t>(kMost, (context.shared_of_block - taken) / Product::kStageBytes));
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
                              StagesOf<Product>(context)};
  launch.units = groups * launch.column_tiles;
  const size_t shared = launch.stages * Product::kStageBytes + Product::kFixedBytes;
  // An expert's groups are blocks of their own: there are many.
  const bool experts = args.experts > 0;
  const int blocks = experts ? groups : std::min(context.num_sms, launch.units);
  const int tiles = experts ? MostExpertTiles<kTokens>(args.places, args.experts) : 1;
  return Launch(BlockMatmulKernel<Format, kTokens>, dim3(blocks, tiles), dim3(kBlockMatmulThreads),
                shared, context.stream, launch);
}

template <typename Format, int kTokens>
cudaError_t LaunchInChunks(const Context& context, const BlockMatmulArgs& args) {
  if (args.experts > 0) return LaunchBlockMatmul<Format, kTokens>(context, args);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < args.m && error == cudaSuccess; first += kTokens) {
    BlockMatmulArgs chunk = args;
    chunk.x += static_cast<size_t>(first) * args.cols;
    chunk.y += static_cast<size_t>(first) * args.y_stride;
    chunk.m = std::min(kTokens, args.m - first);
    error = LaunchBlockMatmul<Format, kTokens>(context, chunk);
  }
  return error;
}

// One of these for each type; they are compiled apart.
template <DType kDType>
bool CanMultiplyFormat(const Context& context) {
  return Fits<Format<kDType>, 8>(context);
}
template <DType kDType>
cudaError_t MultiplyFormat(const Context& context, const BlockMatmulArgs& args) {
  using F = Format<kDType>;
  const int rows = args.experts > 0 ? CeilDiv(args.places, args.experts) : args.m;
  if (rows > 32 && Fits<F, 64>(context)) return LaunchInChunks<F, 64>(context, args);
  if (rows > 16 && Fits<F, 32>(context)) return LaunchInChunks<F, 32>(context, args);
  if (rows > 8 && Fits<F, 16>(context)) return LaunchInChunks<F, 16>(context, args);
  return LaunchInChunks<F, 8>(context, args);
}

#define HYDRANT_MULTIPLY_FORMAT(kDType)                           \
  template bool CanMultiplyFormat<DType::kDType>(const Context&); \
  template cudaError_t MultiplyFormat<DType::kDType>(const Context&, const BlockMatmulArgs&);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_CUH_
