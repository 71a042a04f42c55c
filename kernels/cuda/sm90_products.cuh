// Products of resident rows with streamed rows on compute capability 9.0a, used by both column
// statistics passes (sm90_statistics.cu).
//
// A block has two warpgroups. Each holds 64 rows in registers, as A of wgmma, so that only B is
// read from shared memory, at half of its bandwidth while a tensor core multiplies. The other rows
// are streamed in tiles of 64, as B, through a shared-memory ring read by both. Copies use ptx.cuh,
// 16 bytes per thread, for which the swizzle is an exclusive or. The Tensor Memory Accelerator
// would save their instructions, but needs a tensor map from the driver and barriers in memory. The
// products of the next tile overlap the use of the current tile's.
#ifndef HYDRANT_KERNELS_CUDA_SM90_PRODUCTS_CUH_
#define HYDRANT_KERNELS_CUDA_SM90_PRODUCTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90.cuh"

namespace hydrant::cuda {

inline constexpr int kSm90Threads = 2 * kWarpgroupSize;
inline constexpr int kSm90Rows = 64;  // per warpgroup
inline constexpr int kSm90BlockRows = 128;
inline constexpr int kSm90Columns = 64;  // rows per streamed tile
inline constexpr int kSm90Stages = 4;

// A tile of 64 rows of 16-bit elements in shared memory, in panels of 64 elements (128 bytes) per
// row. 16-byte chunk p of row r is stored at p ^ r % 8 (the 128-byte swizzle of PTX ISA, "Shared
// Memory Matrix Layout"), so that eight rows' chunks lie in different banks.
template <int kDims>
struct SwizzledTile {
  static constexpr int kPanelBytes = kSm90Columns * 128;
  static constexpr int kBytes = kDims / 64 * kPanelBytes;
  static constexpr int kAlignment = 1024;  // the swizzle depends on the address

  unsigned char* data;

  // Starts copying rows `stride` elements apart; zeros past `valid` rows and `dims` columns.
  __device__ void Load(const uint16_t* from, int stride, int valid, int dims) const {
    constexpr int kPieces = kDims / 8, kRowsAtOnce = kSm90Threads / kPieces;
    static_assert(kRowsAtOnce % 8 == 0);  // keeps a thread's swizzle constant
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / kPieces, piece = thread % kPieces;
    const uint16_t* row_from = from + row * stride + piece * 8;
    unsigned char* const to =
        data + piece / 8 * kPanelBytes + row * 128 + (piece % 8 ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < kSm90Columns; i += kRowsAtOnce) {
      const bool exists = row + i < valid && piece * 8 < dims;
      CopyAsync16(to + i * 128, exists ? row_from : from, exists);
      row_from += kRowsAtOnce * stride;
    }
  }

  // Descriptor of columns [d, d + 16) of all rows as B (PTX ISA, "Matrix Descriptor Format"): start
  // address, stride of 1,024 bytes per eight rows, swizzle; in units of 16 bytes.
  __device__ uint64_t Describe(int d) const {
    const uint32_t begin = SharedAddress(data) + d / 64 * kPanelBytes + d % 64 * 2;
    constexpr uint64_t kOf8Rows = 1024 / 16, kSwizzle128 = 1;
    return (begin & 0x3FFFF) / 16 | uint64_t{1} << 16 | kOf8Rows << 32 | kSwizzle128 << 62;
  }
};

template <bool kBF16, int kDims>
class Sm90Products {
 public:
  using Tile = SwizzledTile<kDims>;
  static constexpr int kPieces = kSm90Columns / 8;
  static constexpr size_t kSharedBytes = kSm90Stages * Tile::kBytes + Tile::kAlignment;

  // `shared`: kSharedBytes.
  __device__ explicit Sm90Products(unsigned char* shared)
      : ring_(shared + (-SharedAddress(shared) & (Tile::kAlignment - 1))) {}

  // Loads the warpgroup's rows. `row`: the row of this lane's first element; rows from
  // `valid` on are zeros.
  __device__ void LoadRows(const uint16_t* rows, int64_t stride, int row, int valid, int dims) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int d = 0; d < kDims / 16; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = row + i % 2 * 8, column = d * 16 + i / 2 * 8 + lane % 4 * 2;
        const bool exists = at < valid && column < dims;
        rows_[d][i] = exists ? *reinterpret_cast<const uint32_t*>(rows + at * stride + column) : 0u;
      }
    }
  }

  // For each of `count` tiles, in order: load(stage, tile) starts its copies into a stage, with any
  // further data for it; use(stage, products) receives its products, in the layout of
  // StartWgmma64x64x16. All threads of the block call it. REQUIRES: count > 0
  template <typename Load, typename Use>
  __device__ void Stream(int count, const Load& load, const Use& use) {
    for (int tile = 0; tile < kSm90Stages - 2; ++tile) {
      if (tile < count) load(tile, Stage(tile));
      CommitCopies();
    }
    // The last start multiplies an empty stage, and its result is unused. It is unconditional, and
    // its wait is in the same iteration, because ptxas otherwise serialises the products.
    float even[kPieces][4], odd[kPieces][4];
    Start(0, count, load, even);
    WaitWgmma(even);
    for (int tile = 0;; tile += 2) {
      Start(tile + 1, count, load, odd);
      use(tile % kSm90Stages, even);
      WaitWgmma(odd);
      if (tile + 1 == count) break;
      Start(tile + 2, count, load, even);
      use((tile + 1) % kSm90Stages, odd);
      WaitWgmma(even);
      if (tile + 2 == count) break;
    }
  }

 private:
  __device__ Tile Stage(int tile) const { return {ring_ + tile % kSm90Stages * Tile::kBytes}; }

  // Starts the products of a tile, and the copies of a later one.
  template <typename Load>
  __device__ void Start(int tile, int count, const Load& load, float (&products)[kPieces][4]) {
    WaitCopies<kSm90Stages - 3>();
    FenceSharedForWgmma();
    __syncthreads();  // the tile has arrived; the one before the last is no longer in use
    const int later = tile + kSm90Stages - 2;
    if (later < count) load(later % kSm90Stages, Stage(later));
    CommitCopies();
    FenceWgmma();
    const Tile stage = Stage(tile);
    StartWgmma64x64x16<kBF16, false>(products, rows_[0], stage.Describe(0));
#pragma unroll
    for (int d = 1; d < kDims / 16; ++d)
      StartWgmma64x64x16<kBF16, true>(products, rows_[d], stage.Describe(16 * d));
    CommitWgmma();
  }

  unsigned char* const ring_;
  uint32_t rows_[kDims / 16][4];
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_PRODUCTS_CUH_
