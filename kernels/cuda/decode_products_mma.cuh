// The two products of decode attention on tensor cores (Mma16816), for 16-bit pages and for
// e4m3 pages, which are multiplied as fp16. A warp takes 16 entries at a time. Logits are Q K^T
// with the keys of eight entries as columns. Values are V^T W^T with 16 dims as rows, so eight
// query heads suffice.
//
// Keys and values are loaded straight into fragment registers, 16 bytes per lane, by permuting the
// inner dimension: a sum may assign dims (entries) to fragment rows in any order, provided both
// operands use the same one. At head_dim 128 more blocks per multiprocessor are faster than
// prefetching a tile during a multiply (docs/decisions/decode_attention_on_a_gpu.md).
//
// fp32 queries and weights are split into 16-bit parts that add up to them, so that only fp32
// summation rounds: logits decide which entries are evicted.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_MMA_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_MMA_CUH_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/page_element.cuh"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {

// fp32 numbers as sums of kParts 16-bit numbers; part 0 is the largest.
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

// The products of one warp's tile of 16 entries, held in registers. kDims: head_dim rounded up to
// 64, 128 or 256. REQUIRES: head_dim % 8 == 0.
template <DType kPageDType, int kDims>
class MmaTile {
 public:
  static constexpr DType kDType = kPageDType;
  static constexpr int kTile = 16;

  static void Plan(DecodeLaunch* launch) {
    launch->joined_rows = launch->group < kGroup ? launch->group : kGroup;
    launch->weight_rows = launch->group;
    launch->dim_padded = kDims + 4;  // rows begin in different banks
    const int octets = CeilDiv(launch->group, kGroup);
    launch->query_floats = octets * (kGroup + kQueryWords);
  }

  __device__ MmaTile(const DecodeLaunch& launch, const DecodeUnit& unit, const DecodeShared& shared)
      : l_(launch),
        u_(unit),
        s_(shared),
        head_dim_(launch.args.pages.layout.head_dim),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        g_(lane_ / 4),
        t_(lane_ % 4) {}

  // One warp per query head. fp16 has a small range: the query is scaled by a power of two that
  // brings its largest element near 2^14, and the logits are scaled back.
  __device__ void StoreQueries(const float* q, float scale) {
    for (int h = warp_; h < Octets() * kGroup; h += kDecodeWarps) {
      const bool exists = h < l_.group;
      float highest = 0.0f;
      for (int d = lane_; d < head_dim_ && exists; d += kWarpSize)
        highest = fmaxf(highest, fabsf(q[h * head_dim_ + d] * scale));
      const float up = PowerOfTwoBelow(16384.0f / WarpMax(highest));
      if (lane_ == 0) QueryScales()[h] = 1.0f / up;
      for (int d = 2 * lane_; d < kDims; d += 2 * kWarpSize) {
        const bool both = exists && d < head_dim_;
        StoreQueryPair(h, d, both ? q[h * head_dim_ + d] * scale * up : 0.0f,
                       both ? q[h * head_dim_ + d + 1] * scale * up : 0.0f);
      }
    }
  }

 protected:
  // Eight dims of an entry, as stored in its page.
  using Eight = std::conditional_t<kDType == DType::kE4M3, uint2, uint4>;
  // Dims [32 i + 8 t, + 8) of entries g and g + 8; zeros past the end of the entry.
  using Keys = Eight[2][kDims / 32];
  // Dims [64 v + 8 g, + 8) of entries 4 t .. 4 t + 3; zeros past the end of the entry.
  using Values = Eight[4][kDims / 64];
  using Sums = float[kDims / 64][4][4];

  static constexpr int kGroup = 8;  // columns of the instruction
  // The type of the tensor cores' operands: bf16, or fp16 for fp16 and e4m3 pages.
  static constexpr bool kBF16 = kDType != DType::kF16 && kDType != DType::kE4M3;
  // fp32 has 24 bits, bf16 8 and fp16 11. Two parts suffice for weights: the
  // error is 2^-18 of each.
  static constexpr int kQueryParts = kBF16 ? 3 : 2;
  static constexpr int kWeightParts = 2;
  // The smallest fp16 is 2^-24, so weights, which are at most 1, are scaled up for the product.
  static constexpr float kWeightScale = kBF16 ? 1.0f : 16384.0f;
  // Words for eight queries: fragments of parts 0 and 1, then part 2.
  static constexpr int kQueryWords = kDims * (kQueryParts > 2 ? 12 : 8);
  __device__ int Octets() const { return (l_.group + kGroup - 1) / kGroup; }
  __device__ float* QueryScales() const { return s_.queries; }  // [Octets() * kGroup]
  __device__ uint32_t* QueryFragments(int octet) const {
    return reinterpret_cast<uint32_t*>(s_.queries + Octets() * kGroup) + octet * kQueryWords;
  }
  // Stores dims d and d + 1 of query head h in fragment order: [kDims / 16][lane] four words, parts
  // 0 (row g of A) and 1 (row g + 8) of two pairs; then [kDims / 32][lane] part 2 of four pairs.
  __device__ void StoreQueryPair(int h, int d, float first, float second) const {
    const SplitPair<kBF16, kQueryParts> split(first, second);
    const int lane = h % kGroup * 4 + d % 32 / 8, pair = d % 8 / 2;
    uint32_t* fragments = QueryFragments(h / kGroup);
    uint32_t* words = fragments + ((d / 32 * 2 + pair / 2) * kWarpSize + lane) * 4 + pair % 2 * 2;
    words[0] = split.parts[0];
    words[1] = split.parts[1];
    if constexpr (kQueryParts > 2)
      fragments[kDims * 8 + (d / 32 * kWarpSize + lane) * 4 + pair] = split.parts[2];
  }
  __device__ static float PowerOfTwoBelow(float x) {
    // Clamped so that it and its reciprocal are normal numbers; a zero query would give infinity.
    return __uint_as_float(__float_as_uint(fminf(fmaxf(x, 1e-30f), 1e30f)) & 0x7F800000u);
  }

  // Logits of 16 entries. Rows are query heads, one set for part 0 and one for part 1; columns are
  // eight entries; 16 dims at a time. Queries are reloaded for each tile as whole vectors of
  // neighbouring lanes: 48 cycles, against about 200 for the tile's bytes (counted, not measured).
  __device__ void MultiplyKeys(int tile, const Keys& keys) const {
    for (int octet = 0; octet < Octets(); ++octet) {
      const auto* fragments = reinterpret_cast<const uint4*>(QueryFragments(octet)) + lane_;
      float sums[2][4] = {}, small[2][4] = {};
#pragma unroll
      for (int i = 0; i < kDims / 32; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 q = fragments[(2 * i + half) * kWarpSize];
#pragma unroll
          for (int n = 0; n < 2; ++n)
            Mma16816<kBF16>(sums[n], {q.x, q.y, q.z, q.w},
                            {Word(keys[n][i], 2 * half), Word(keys[n][i], 2 * half + 1)});
        }
        if constexpr (kQueryParts > 2) {
          const uint4 q = fragments[kDims * 2 + i * kWarpSize];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int n = 0; n < 2; ++n)
              Mma16816<kBF16>(small[n], {Word(q, 2 * half), 0, Word(q, 2 * half + 1), 0},
                              {Word(keys[n][i], 2 * half), Word(keys[n][i], 2 * half + 1)});
          }
        }
      }
      const int h = octet * kGroup + g_;
      if (h >= l_.group) continue;
      float* logits = s_.weights + h * l_.weight_stride() + tile + 2 * t_;
      const float scale = QueryScales()[h];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        *reinterpret_cast<float2*>(logits + 8 * n) =
            make_float2((sums[n][0] + (sums[n][2] + small[n][0])) * scale,
                        (sums[n][1] + (sums[n][3] + small[n][1])) * scale);
      }
    }
  }

  // sums += values^T weights^T. Rows are dims, columns query heads, 16 entries at a time. The dims
  // 64 v + 8 g + 2 m and the next are rows g and g + 8 of matrix m.
  __device__ void MultiplyValues(int g, int tile, const Values& values, Sums& sums) const {
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
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          a[m][odd] = PairAcross(values[0][v], values[1][v], 2 * m + odd);
          a[m][2 + odd] = PairAcross(values[2][v], values[3][v], 2 * m + odd);
        }
      }
#pragma unroll
      for (int part = 0; part < kWeightParts; ++part) {
#pragma unroll
        for (int m = 0; m < 4; ++m)
          Mma16816<kBF16>(sums[v][m], a[m], {left.parts[part], right.parts[part]});
      }
    }
  }
  // Pair `i` of eight dims in the multiplied type.
  __device__ static uint32_t Word(const uint2& bytes, int i) {
    return E4M3ToHalves((i < 2 ? bytes.x : bytes.y) >> (i % 2 * 16));
  }
  __device__ static uint32_t Word(const uint4& vector, int i) {
    return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
  }

  // Dim `d` of eight, for two entries.
  __device__ static uint32_t PairAcross(const uint2& first, const uint2& second, int d) {
    const uint32_t bytes = d < 4 ? __byte_perm(first.x, second.x, 0x40 + d % 4 * 0x11)
                                 : __byte_perm(first.y, second.y, 0x40 + d % 4 * 0x11);
    return E4M3ToHalves(bytes);
  }
  __device__ static uint32_t PairAcross(const uint4& first, const uint4& second, int d) {
    return __byte_perm(Word(first, d / 2), Word(second, d / 2), d % 2 == 0 ? 0x5410 : 0x7632);
  }

  // Stores this warp's sums in its part of joined.
  __device__ void StoreSums(const Sums& sums) const {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int row = 2 * t_ + column;
      if (row >= l_.joined_rows) continue;
      float* joined = s_.joined + (warp_ * l_.joined_rows + row) * l_.dim_padded + 8 * g_;
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

// Loads tiles straight from global memory. At head_dim 128 more blocks per multiprocessor are
// faster than prefetching a tile during a multiply (docs/decisions/decode_attention_on_a_gpu.md).
template <DType kPageDType, int kDims>
class MmaProducts : public MmaTile<kPageDType, kDims> {
  using Base = MmaTile<kPageDType, kDims>;

 public:
  using Base::kTile;
  static constexpr int kBlocksPerSm = kDims <= 128 ? 4 : 3;

  using Base::Base;

  __device__ void Logits() {
    typename Base::Keys keys[kAhead + 1];
    ForEachTile([&](int buffer, int tile) { LoadKeys(tile, keys[buffer]); },
                [&](int buffer, int tile) { this->MultiplyKeys(tile, keys[buffer]); });
  }

  __device__ void Values(int g) {
    typename Base::Sums sums = {};
    typename Base::Values values[kAhead + 1];
    ForEachTile([&](int buffer, int tile) { LoadValues(tile, values[buffer]); },
                [&](int buffer, int tile) { this->MultiplyValues(g, tile, values[buffer], sums); });
    this->StoreSums(sums);
  }

 private:
  using Base::g_;
  using Base::head_dim_;
  using Base::l_;
  using Base::s_;
  using Base::t_;
  using Base::u_;
  using Base::warp_;
  using typename Base::Eight;
  // Tiles prefetched while another is multiplied; registers limit it.
  static constexpr int kAhead = kDims <= 64 ? 1 : 0;
  static constexpr int kStep = kDecodeWarps * kTile;

  // Calls load, then multiply, for each of this warp's tiles; `load` runs kAhead tiles early.
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

  // Address of element `dim` of an entry.
  __device__ const Eight* RowAt(const void* base, uint32_t slot, int dim) const {
    constexpr int kBytes = sizeof(Eight) / 8;
    const auto row_bytes = static_cast<uint32_t>(head_dim_) * kBytes;
    return reinterpret_cast<const Eight*>(static_cast<const char*>(base) + kBytes * dim +
                                          static_cast<uint64_t>(slot) * row_bytes);
  }

  __device__ void LoadKeys(int tile, typename Base::Keys& keys) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const Eight* row = RowAt(l_.args.pages.keys, s_.index[tile + 8 * n + g_], 8 * t_);
#pragma unroll
      for (int i = 0; i < kDims / 32; ++i)
        keys[n][i] = 32 * i + 8 * t_ < head_dim_ ? __ldcg(row + 4 * i) : Eight{};
    }
  }

  __device__ void LoadValues(int tile, typename Base::Values& values) const {
    const uint4 slots = *reinterpret_cast<const uint4*>(&s_.index[tile + 4 * t_]);
    const uint32_t slot[4] = {slots.x, slots.y, slots.z, slots.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Eight* row = RowAt(l_.args.pages.values, slot[e], 8 * g_);
#pragma unroll
      for (int v = 0; v < kDims / 64; ++v)
        values[e][v] = 64 * v + 8 * g_ < head_dim_ ? __ldcg(row + 8 * v) : Eight{};
    }
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_MMA_CUH_
