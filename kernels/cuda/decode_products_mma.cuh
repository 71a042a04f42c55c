// The two products of decode attention on tensor cores (Mma16816), for 16-bit pages: a warp takes
// 16 entries at a time as rows or columns of the matrix that comes from the pages, and up to eight
// query heads as the other's columns.
//
// Keys and values go from global memory into the registers where the instruction wants them, 16
// bytes a lane, by naming the inner dimension anew: which dims (entries) stand in which columns of
// a fragment does not matter to a sum, as long as the other operand agrees. The next tile is on its
// way while this one is multiplied: 4 KiB a warp at head_dim 128, more than 48 KiB a
// multiprocessor.
//
// Queries and weights are fp32. They are split into 16-bit parts whose sum they are, so that only
// the rounding of fp32 sums is left: logits decide what is evicted.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_MMA_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_MMA_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {

// Numbers of fp32 as sums of kParts 16-bit ones; part 0 is the largest.
template <bool kBF16, int kParts>
struct SplitPair {
  uint32_t parts[kParts];

  __device__ SplitPair(float low, float high) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      parts[i] = PackHalves<kBF16>(low, high);
      low -= HalfOf<kBF16>(parts[i], 0);
      high -= HalfOf<kBF16>(parts[i], 1);
    }
  }
};

// kDims: head_dim rounded up to 64, 128 or 256. REQUIRES: head_dim % 8 == 0.
template <DType kPageDType, int kDims>
class MmaProducts {
 public:
  static constexpr DType kDType = kPageDType;
  static constexpr int kGroup = 8;
  static constexpr int kTile = 16;

  static void Plan(DecodeLaunch* launch) {
    launch->joined_rows = kGroup;
    launch->weight_rows = launch->group;
    launch->dim_padded = kDims + 4;  // rows begin in other banks
    const int rows = CeilDiv(launch->group, kGroup) * kGroup;
    launch->query_floats = rows * kQueryStride * kQueryParts / 2 + rows;
  }

  __device__ MmaProducts(const DecodeLaunch& launch, const DecodeUnit& unit,
                         const DecodeShared& shared)
      : l_(launch),
        u_(unit),
        s_(shared),
        head_dim_(launch.args.pages.layout.head_dim),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        g_(lane_ / 4),
        t_(lane_ % 4) {}

  // A warp per query head. fp16 has a small range: a power of two that brings the query's largest
  // element near 2^14 is taken out, and given back to the logits.
  __device__ void StoreQueries(const float* q, float scale) {
    for (int h = warp_; h < QueryRows(); h += kDecodeWarps) {
      const bool exists = h < l_.group;
      float highest = 0.0f;
      for (int d = lane_; d < head_dim_ && exists; d += kWarpSize)
        highest = fmaxf(highest, fabsf(q[h * head_dim_ + d] * scale));
      const float up = PowerOfTwoBelow(16384.0f / WarpMax(highest));
      if (lane_ == 0) QueryScales()[h] = 1.0f / up;
      for (int d = 2 * lane_; d < kDims; d += 2 * kWarpSize) {
        const bool both = exists && d < head_dim_;
        const SplitPair<kBF16, kQueryParts> pair(
            both ? q[h * head_dim_ + d] * scale * up : 0.0f,
            both ? q[h * head_dim_ + d + 1] * scale * up : 0.0f);
#pragma unroll
        for (int part = 0; part < kQueryParts; ++part)
          *reinterpret_cast<uint32_t*>(QueryRow(part, h) + d) = pair.parts[part];
      }
    }
  }

  __device__ void Logits() {
    uint4 keys[kAhead + 1][2][kDims / 32];
    ForEachTile([&](int buffer, int tile) { LoadKeys(tile, keys[buffer]); },
                [&](int buffer, int tile) { MultiplyKeys(tile, keys[buffer]); });
  }

  __device__ void Values(int g) {
    float sums[kDims / 64][4][4] = {};
    uint4 values[kAhead + 1][4][kDims / 64];
    ForEachTile([&](int buffer, int tile) { LoadValues(tile, values[buffer]); },
                [&](int buffer, int tile) { MultiplyValues(g, tile, values[buffer], sums); });
    StoreSums(sums);
  }

 private:
  static constexpr bool kBF16 = kDType == DType::kBF16;
  // fp32 has 24 bits, bf16 8 and fp16 11. Weights need less: what is left off is 2^-18 of each.
  static constexpr int kQueryParts = kBF16 ? 3 : 2;
  static constexpr int kWeightParts = 2;
  // The smallest fp16 is 2^-24; so weights, which are at most 1, go through the product enlarged.
  static constexpr float kWeightScale = kBF16 ? 1.0f : 16384.0f;
  // 64 bytes more than the dims: the 16-byte reads of eight lanes (two heads) meet all banks once.
  static constexpr int kQueryStride = kDims + 32;
  // Tiles on their way beside the one at work, as registers allow.
  static constexpr int kAhead = kDims <= 128 ? 1 : 0;
  static constexpr int kStep = kDecodeWarps * kTile;

  // Calls load and then multiply for each of this warp's tiles, `load` kAhead tiles early.
  template <typename Load, typename Multiply>
  __device__ void ForEachTile(Load load, Multiply multiply) const {
    const int first = warp_ * kTile;
    if (kAhead > 0 && first < u_.count) load(0, first);
    for (int next = first; next < u_.count; next += (kAhead + 1) * kStep) {
#pragma unroll
      for (int buffer = 0; buffer <= kAhead; ++buffer) {
        const int tile = next + buffer * kStep, ahead = tile + kAhead * kStep;
        if (ahead < u_.count) load((buffer + kAhead) % (kAhead + 1), ahead);
        if (tile < u_.count) multiply(buffer, tile);
      }
    }
  }

  __device__ int QueryRows() const { return (l_.group + kGroup - 1) / kGroup * kGroup; }
  __device__ float* QueryScales() const { return s_.queries; }  // [QueryRows()]
  __device__ uint16_t* QueryRow(int part, int h) const {
    return reinterpret_cast<uint16_t*>(s_.queries + QueryRows()) +
           (part * QueryRows() + h) * kQueryStride;
  }
  __device__ static float PowerOfTwoBelow(float x) {
    // Bounded, so that it and its reciprocal are normal numbers; a query of zeros gives infinity.
    return __uint_as_float(__float_as_uint(fminf(fmaxf(x, 1e-30f), 1e30f)) & 0x7F800000u);
  }

  // 16 bytes of an entry from `dim` on; zeros beyond its end.
  __device__ uint4 LoadVector(const void* base, uint32_t slot, int dim) const {
    if (dim >= head_dim_) return make_uint4(0, 0, 0, 0);
    return __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) +
                                                 static_cast<size_t>(slot) * head_dim_ + dim));
  }

  // Of entries g and g + 8 the dims [32 i + 8 t, + 8).
  __device__ void LoadKeys(int tile, uint4 (&keys)[2][kDims / 32]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t slot = s_.index[tile + g_ + 8 * half];
#pragma unroll
      for (int i = 0; i < kDims / 32; ++i)
        keys[half][i] = LoadVector(l_.args.pages.keys, slot, 32 * i + 8 * t_);
    }
  }

  // Logits of 16 entries: rows are entries, columns query heads, 16 dims at a time. Queries are
  // read anew for each tile: 48 of the about 200 cycles that the tile's bytes take.
  __device__ void MultiplyKeys(int tile, const uint4 (&keys)[2][kDims / 32]) const {
    for (int g = 0; g < l_.group; g += kGroup) {
      float sums[kQueryParts][4] = {};
#pragma unroll
      for (int i = 0; i < kDims / 32; ++i) {
        const uint4 &low = keys[0][i], &high = keys[1][i];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int part = 0; part < kQueryParts; ++part) {
          const uint4 q = *reinterpret_cast<const uint4*>(QueryRow(part, g + g_) + 32 * i + 8 * t_);
          Mma16816<kBF16>(sums[part], first, {q.x, q.y});
          Mma16816<kBF16>(sums[part], second, {q.z, q.w});
        }
      }
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int h = g + 2 * t_ + column;
        if (h >= l_.group) continue;
        float* logits = s_.weights + h * l_.weight_stride() + tile;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = sums[kQueryParts - 1][2 * half + column];
#pragma unroll
          for (int part = kQueryParts - 2; part >= 0; --part) sum += sums[part][2 * half + column];
          logits[g_ + 8 * half] = sum * QueryScales()[h];
        }
      }
    }
  }

  // Of entries 4 t .. 4 t + 3 the dims [64 v + 8 g, + 8).
  __device__ void LoadValues(int tile, uint4 (&values)[4][kDims / 64]) const {
    const uint4 slots = *reinterpret_cast<const uint4*>(&s_.index[tile + 4 * t_]);
    const uint32_t slot[4] = {slots.x, slots.y, slots.z, slots.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int v = 0; v < kDims / 64; ++v)
        values[e][v] = LoadVector(l_.args.pages.values, slot[e], 64 * v + 8 * g_);
    }
  }

  // sums += values^T weights^T: rows are dims, columns query heads, 16 entries at a time. The pair
  // of dims (64 v + 8 g + 2 m, and the next) are rows g and g + 8 of matrix m.
  __device__ void MultiplyValues(int g, int tile, const uint4 (&values)[4][kDims / 64],
                                 float (&sums)[kDims / 64][4][4]) const {
    float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (g + g_ < l_.group)
      w = *reinterpret_cast<const float4*>(
          &s_.weights[(g + g_) * l_.weight_stride() + tile + 4 * t_]);
    const SplitPair<kBF16, kWeightParts> left(w.x * kWeightScale, w.y * kWeightScale);
    const SplitPair<kBF16, kWeightParts> right(w.z * kWeightScale, w.w * kWeightScale);
#pragma unroll
    for (int v = 0; v < kDims / 64; ++v) {
      uint32_t a[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t word[4] = {Word(values[0][v], m), Word(values[1][v], m),
                                  Word(values[2][v], m), Word(values[3][v], m)};
        a[m][0] = __byte_perm(word[0], word[1], 0x5410);  // the low halves
        a[m][1] = __byte_perm(word[0], word[1], 0x7632);  // the high halves
        a[m][2] = __byte_perm(word[2], word[3], 0x5410);
        a[m][3] = __byte_perm(word[2], word[3], 0x7632);
      }
#pragma unroll
      for (int part = 0; part < kWeightParts; ++part) {
#pragma unroll
        for (int m = 0; m < 4; ++m)
          Mma16816<kBF16>(sums[v][m], a[m], {left.parts[part], right.parts[part]});
      }
    }
  }
  __device__ static uint32_t Word(const uint4& vector, int i) {
    return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
  }

  // This warp's sums to its part of joined.
  __device__ void StoreSums(const float (&sums)[kDims / 64][4][4]) const {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      float* joined = s_.joined + (warp_ * kGroup + 2 * t_ + column) * l_.dim_padded + 8 * g_;
#pragma unroll
      for (int v = 0; v < kDims / 64; ++v) {
#pragma unroll
        for (int m = 0; m < 4; m += 2) {
          *reinterpret_cast<float4*>(joined + 64 * v + 2 * m) = make_float4(
              sums[v][m][column] / kWeightScale, sums[v][m][2 + column] / kWeightScale,
              sums[v][m + 1][column] / kWeightScale, sums[v][m + 1][2 + column] / kWeightScale);
        }
      }
    }
  }

  const DecodeLaunch& l_;
  const DecodeUnit& u_;
  const DecodeShared& s_;
  const int head_dim_;
  const int lane_, warp_, g_, t_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_MMA_CUH_
