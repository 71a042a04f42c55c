// Tiles of 16 entries in shared memory, one per warp, and their operations in decode attention:
//
//   kTileBytes         bytes of shared memory, a multiple of 16
//   Copy               starts copying a tile from its pages
//   StoreNewRow        writes the new entry's row
//   KeysTimesQueries   computes the logits of the tile's entries
//   AddValues          adds its values, times the weights of query heads [g, g + 8)
#ifndef HYDRANT_KERNELS_CUDA_DECODE_TILES_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_TILES_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/decode_products_mma.cuh"
#include "kernels/cuda/page_row.cuh"

namespace hydrant::cuda {

// Tile of 16-bit or e4m3 pages.
template <DType kPageDType, int kDims>
class RowTile : public MmaTile<kPageDType, kDims> {
  using Base = MmaTile<kPageDType, kDims>;
  using typename Base::Eight;

 public:
  using Base::kTile;
  using typename Base::Sums;
  static constexpr int kDimsOf = kDims;
  static constexpr int kTileBytes = kTile * kDims / 8 * sizeof(Eight);

  using Base::Base;

  // Copies entries from unit.begin + first on. `ids`: page ids by index in the head. Past the last
  // entry, that entry is repeated, so that all numbers are finite.
  __device__ void Copy(const DecodeUnit& unit, const PageIds* ids, int first, const void* base,
                       void* tile) const {
    const int block_size = l_.args.pages.layout.block_size;
    auto* const to = static_cast<uint4*>(tile);
#pragma unroll kCopiesAtOnce
    for (int i = lane_; i < kTile * kChunks; i += kWarpSize) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int entry = unit.begin + min(first + row, unit.count - 1);
      const int page = l_.PageOf(entry);
      const auto slot =
          static_cast<uint32_t>(ids[page].data * block_size + entry - page * block_size);
      if (kChunkDims * chunk < head_dim_)
        CopyAsync16(to + Place(row, chunk),
                    static_cast<const uint4*>(base) +
                        slot * static_cast<uint64_t>(head_dim_ / kChunkDims) + chunk,
                    true);
    }
  }

  __device__ void StoreNewRow(int row, const float* from, void* tile) const {
#pragma unroll 1
    for (int d = lane_; d < head_dim_; d += kWarpSize)
      StoreRowElement(kPageDType, tile, 8 * PlaceOfEight(row, d / 8) + d % 8, from[d]);
  }

  __device__ void KeysTimesQueries(int first, const void* tile) const {
    typename Base::Keys keys;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kDims / 32; ++i) keys[n][i] = Vector(tile, 8 * n + g_, 4 * i + t_);
    }
    this->MultiplyKeys(first, keys);
  }
  __device__ void AddValues(int g, int first, const void* tile, Sums& sums) const {
    typename Base::Values values;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int v = 0; v < kDims / 64; ++v) values[e][v] = Vector(tile, 4 * t_ + e, 8 * v + g_);
    }
    this->MultiplyValues(g, first, values, sums);
  }

 protected:
  using Base::g_;
  using Base::head_dim_;
  using Base::l_;
  using Base::lane_;
  using Base::t_;
  static constexpr int kEights = 16 / sizeof(Eight);  // per 16-byte vector
  static constexpr int kChunkDims = 8 * kEights;
  // Unrolls fewer copies than a lane has: their addresses would stay in registers.
  static constexpr int kCopiesAtOnce = 4 / kEights;
  static constexpr int kChunks = kDims / kChunkDims;  // 16-byte vectors per row

  // Swizzled position of vector `chunk` of a row, within lines of 128 bytes: reads and copies have
  // no bank conflicts.
  __device__ static int Place(int row, int chunk) {
    if constexpr (kEights == 1) {
      return row * kChunks + (chunk ^ ((row >> 2 & 3) << 1) ^ ((row & 1) << 2));
    } else {
      constexpr int kLineRows = kChunks < 8 ? 8 / kChunks : 1;
      return (row * kChunks + chunk) ^ ((row >> 2 ^ row / kLineRows) & 3) << 1;
    }
  }
  // Position of dims [8 i, 8 i + 8).
  __device__ static int PlaceOfEight(int row, int i) {
    return Place(row, i / kEights) * kEights + i % kEights;
  }
  // Zeros past the end of the entry.
  __device__ Eight Vector(const void* tile, int row, int i) const {
    return 8 * i < head_dim_ ? static_cast<const Eight*>(tile)[PlaceOfEight(row, i)] : Eight{};
  }
};

// Tile of int8 or int4 pages in their stored form: rows of blocks of 32 numbers with a scale.
// The numbers are integers that bf16 represents exactly; scales apply in fp32: to logits of 32
// dims, and to the weights of values. REQUIRES: pages of a multiple of 16 entries, so that a
// tile lies in one page.
template <DType kPageDType, int kDims>
class BlockTile : public MmaTile<kPageDType, kDims> {
  using Base = MmaTile<kPageDType, kDims>;
  static constexpr int kBlock = 32;
  static constexpr int kBlocks = kDims / kBlock;
  static constexpr int kWeightParts = 3;  // a weight times its scale has all bits of fp32

 public:
  using Base::kTile;
  static constexpr int kDimsOf = kDims;
  static constexpr int kTileBytes = kTile * kBlocks * BlockBytes(kPageDType);
  // Dims 32 b + 4 g + 2 m and the next, where MmaTile has 64 v + 8 g + 2 m.
  using Sums = float[kBlocks][2][4];

  using Base::Base;

  __device__ void StoreQueries(const float* q, float scale) {
    for (int h = warp_; h < this->Octets() * Base::kGroup; h += kDecodeWarps) {
      if (lane_ == 0) this->QueryScales()[h] = 1.0f;
#pragma unroll 1
      for (int d = lane_; d < kDims; d += kWarpSize) {
        float query = h < l_.group && d < head_dim_ ? q[h * head_dim_ + d] * scale : 0.0f;
        if constexpr (IsTransformed(kPageDType)) query = TransformInWarp(query) * kFromPage;
        const float neighbour = __shfl_xor_sync(kAllLanes, query, 1);
        if (lane_ % 2 == 0) this->StoreQueryPair(h, d, query, neighbour);
      }
    }
  }

  __device__ void Copy(const DecodeUnit& unit, const PageIds* ids, int first, const void* base,
                       void* tile) const {
    const int block_size = l_.args.pages.layout.block_size;
    const int entry = unit.begin + first, page = l_.PageOf(entry);
    const auto slot =
        static_cast<uint32_t>(ids[page].data * block_size + entry - page * block_size);
    const auto* from =
        static_cast<const uint4*>(base) + slot * static_cast<uint64_t>(RowBytes()) / 16;
    auto* const to = static_cast<uint4*>(tile);
    for (int i = lane_; i < RowBytes(); i += kWarpSize) CopyAsync16(to + i, from + i, true);
  }

  __device__ void StoreNewRow(int row, const float* from, void* tile) const {
    for (int d = lane_; d < head_dim_; d += kWarpSize)
      StoreRowElement(kPageDType, tile, static_cast<size_t>(row) * head_dim_ + d, from[d]);
  }

  // As MmaTile::MultiplyKeys(), block by block.
  __device__ void KeysTimesQueries(int first, const void* tile) const {
    for (int octet = 0; octet < this->Octets(); ++octet) {
      const auto* fragments = reinterpret_cast<const uint4*>(this->QueryFragments(octet)) + lane_;
      float logits[2][2] = {};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if (b * kBlock >= head_dim_) continue;
        const uint4 large[2] = {fragments[2 * b * kWarpSize], fragments[(2 * b + 1) * kWarpSize]};
        const uint4 small = fragments[(kDims * 2) + b * kWarpSize];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          uint32_t key[4];
#pragma unroll
          for (int pair = 0; pair < 4; ++pair)
            key[pair] = Pair(tile, 8 * n + g_, b, 8 * t_ + 2 * pair);
          float sums[4] = {}, rest[4] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint4& q = large[half];
            Mma16816<true>(sums, {q.x, q.y, q.z, q.w}, {key[2 * half], key[2 * half + 1]});
            Mma16816<true>(rest,
                           {Base::Word(small, 2 * half), 0, Base::Word(small, 2 * half + 1), 0},
                           {key[2 * half], key[2 * half + 1]});
          }
#pragma unroll
          for (int column = 0; column < 2; ++column)
            logits[n][column] += (sums[column] + (sums[2 + column] + rest[column])) *
                                 Scale(tile, 8 * n + 2 * t_ + column, b);
        }
      }
      const int h = octet * Base::kGroup + g_;
      if (h >= l_.group) continue;
      float* to = s_.weights + h * l_.weight_stride() + first + 2 * t_;
#pragma unroll
      for (int n = 0; n < 2; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(logits[n][0], logits[n][1]);
    }
  }

  // As MmaTile::MultiplyValues(), block by block. Past the last entry the scale may be
  // garbage and is ignored.
  __device__ void AddValues(int g, int first, const void* tile, Sums& sums) const {
    float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (g + g_ < l_.group)
      w = *reinterpret_cast<const float4*>(
          &s_.weights[(g + g_) * l_.weight_stride() + first + 4 * t_]);
    const float weights[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b * kBlock >= head_dim_) continue;
      uint32_t word[4][2];
      float scaled[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 4 * t_ + e;
        word[e][0] = Pair(tile, row, b, 4 * g_);
        word[e][1] = Pair(tile, row, b, 4 * g_ + 2);
        scaled[e] = first + row < u_.count ? weights[e] * Scale(tile, row, b) : 0.0f;
      }
      const SplitPair<true, kWeightParts> left(scaled[0], scaled[1]);
      const SplitPair<true, kWeightParts> right(scaled[2], scaled[3]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t a[4] = {__byte_perm(word[0][m], word[1][m], 0x5410),  // the low halves
                               __byte_perm(word[0][m], word[1][m], 0x7632),  // the high halves
                               __byte_perm(word[2][m], word[3][m], 0x5410),
                               __byte_perm(word[2][m], word[3][m], 0x7632)};
#pragma unroll
        for (int part = 0; part < kWeightParts; ++part)
          Mma16816<true>(sums[b][m], a, {left.parts[part], right.parts[part]});
      }
    }
  }

  // Stores this warp's sums in its part of joined.
  __device__ void StoreSums(const Sums& sums) const {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int row = 2 * t_ + column;
      if (row >= l_.joined_rows) continue;
      float* joined = s_.joined + (warp_ * l_.joined_rows + row) * l_.dim_padded + 4 * g_;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        *reinterpret_cast<float4*>(joined + kBlock * b) = make_float4(
            sums[b][0][column], sums[b][0][2 + column], sums[b][1][column], sums[b][1][2 + column]);
    }
  }

 protected:
  using Base::g_;
  using Base::head_dim_;
  using Base::l_;
  using Base::lane_;
  using Base::s_;
  using Base::t_;
  using Base::u_;
  using Base::warp_;

  __device__ int RowBytes() const { return head_dim_ / kBlock * BlockBytes(kPageDType); }
  __device__ const uint8_t* BlockAt(const void* tile, int row, int block) const {
    return static_cast<const uint8_t*>(tile) + row * RowBytes() + block * BlockBytes(kPageDType);
  }
  __device__ float Scale(const void* tile, int row, int block) const {
    return HalfOf<false>(*reinterpret_cast<const uint16_t*>(BlockAt(tile, row, block)), 0);
  }
  // a - b of two bf16 pairs.
  __device__ static uint32_t Less(uint32_t a, uint32_t b) {
    constexpr uint32_t kMinusOnes = 0xBF80BF80u;
    return FmaHalves(b, kMinusOnes, a);
  }
  // Numbers d and d + 1 of a block; d is even.
  __device__ uint32_t Pair(const void* tile, int row, int block, int d) const {
    const uint8_t* numbers = BlockAt(tile, row, block) + 2;
    if constexpr (kPageDType == DType::kQ8_0) {
      const uint32_t two = *reinterpret_cast<const uint16_t*>(numbers + d);
      // 128 + x, less 128, or less 256 for negative numbers: exact in bf16.
      const uint32_t bytes = two | two << 8;
      return Less((bytes & 0x007F007Fu) | 0x43004300u, (bytes & 0x00800080u) | 0x43004300u);
    } else {
      const uint32_t two = *reinterpret_cast<const uint16_t*>(numbers + d % 16) >> (d / 16 * 4);
      return Less(((two | two << 8) & 0x000F000Fu) | 0x43004300u, 0x43084308u);
    }
  }
};

// The tile for a page type.
template <DType kPageDType, int kDims>
using PageTile = std::conditional_t<BlockElements(kPageDType) == 1, RowTile<kPageDType, kDims>,
                                    BlockTile<kPageDType, kDims>>;

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_TILES_CUH_
