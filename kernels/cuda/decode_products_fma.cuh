// The two products of decode attention with fused multiply-adds, for every type, group size and
// head dimension. A team of kLanes lanes reads an entry, kVectors 16-byte vectors per lane, four
// entries at a time; kGroup query heads are processed together.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_FMA_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_FMA_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/page_row.cuh"

namespace hydrant::cuda {

inline constexpr int kEntriesAtOnce = 4;

// Reduces sums[i] over the lanes of a team; each lane keeps as few sums as possible. Returns the
// index of the first sum that this lane keeps.
template <int kLanes, int kSums>
__device__ int SumOverTeam(float (&sums)[kSums]) {
  int first = 0;
  int kept = kSums;
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    if (kept > 1) {
      kept /= 2;
      const bool upper = (threadIdx.x & mask) != 0;
#pragma unroll
      for (int i = 0; i < kSums / 2; ++i) {
        if (i >= kept) continue;
        const float give = upper ? sums[i] : sums[i + kept];
        sums[i] = (upper ? sums[i + kept] : sums[i]) + __shfl_xor_sync(kAllLanes, give, mask);
      }
      if (upper) first += kept;
    } else {
      sums[0] += __shfl_xor_sync(kAllLanes, sums[0], mask);
    }
  }
  return first;
}

// Reads this lane's vectors of an entry.
template <DType kDType, int kLanes, int kVectors, bool kAligned>
struct EntryLoader {
  static constexpr int kElements = PageVector<kDType>::kElements;
  int head_dim;
  int lane;  // within the team

  __device__ int Dim(int vector) const { return (lane + vector * kLanes) * kElements; }
  __device__ void Load(const void* base, uint32_t slot, PageVector<kDType> (&out)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      out[v].Clear();
      if (Dim(v) >= head_dim) continue;
      const size_t from = static_cast<size_t>(slot) * head_dim + Dim(v);
      if constexpr (kAligned) {
        out[v].Load(base, from / kElements);
      } else {
        out[v].LoadElements(base, from, head_dim - Dim(v));
      }
    }
  }
};

template <DType kPageDType, int kLanes, int kVectors, int kGroup, bool kAligned>
class FmaProducts {
 public:
  static constexpr DType kDType = kPageDType;
  static constexpr int kTile = kEntriesAtOnce;
  static constexpr int kBlocksPerSm = kVectors == 1 ? 5 : 3;

  static void Plan(DecodeLaunch* launch) {
    launch->joined_rows = kGroup;
    launch->weight_rows = CeilDiv(launch->group, kGroup) * kGroup;
    launch->dim_padded = CeilDiv(launch->args.pages.layout.head_dim, kElements) * kElements;
    launch->query_floats = launch->weight_rows * launch->dim_padded;
  }

  __device__ FmaProducts(const DecodeLaunch& launch, const DecodeUnit& unit,
                         const DecodeShared& shared)
      : l_(launch),
        u_(unit),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        team_(thread_ / kLanes),
        load_{launch.args.pages.layout.head_dim, thread_ % kLanes} {}

  __device__ void StoreQueries(const float* q, float scale) {
    const int head_dim = load_.head_dim;
    for (int i = thread_; i < l_.weight_rows * l_.dim_padded; i += kDecodeThreads) {
      const int g = i / l_.dim_padded, d = i % l_.dim_padded;
      float query = g < l_.group && d < head_dim ? q[g * head_dim + d] * scale : 0.0f;
      if constexpr (IsTransformed(kDType)) query = TransformInWarp(query) * kFromPage;
      s_.queries[i] = query;
    }
  }

  __device__ void Logits() {
    for (int g = 0; g < l_.group; g += kGroup) LogitsOf(g);
  }

  __device__ void Values(int g) {
    float sums[kGroup][kVectors][kElements] = {};
    for (int tile = 0; tile < u_.count; tile += kStep) {
      const int first = tile + team_ * kEntriesAtOnce;
      if (first >= u_.count) continue;
      Vector values[kEntriesAtOnce][kVectors];
      LoadEntries(l_.args.pages.values, first, values);
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        const float4 w =
            *reinterpret_cast<const float4*>(&s_.weights[(g + h) * l_.weight_stride() + first]);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int i = 0; i < kElements; ++i) {
            float sum = sums[h][v][i];
            sum = fmaf(w.x, values[0][v][i], sum);
            sum = fmaf(w.y, values[1][v][i], sum);
            sum = fmaf(w.z, values[2][v][i], sum);
            sums[h][v][i] = fmaf(w.w, values[3][v][i], sum);
          }
        }
      }
    }
    JoinTeams(sums);
  }

 private:
  using Vector = PageVector<kDType>;
  static constexpr int kElements = Vector::kElements;
  static constexpr int kTeams = kDecodeThreads / kLanes;
  static constexpr int kStep = kTeams * kEntriesAtOnce;

  // Four entries' vectors for this team; zeros past the last entry.
  __device__ void LoadEntries(const void* base, int first,
                              Vector (&out)[kEntriesAtOnce][kVectors]) {
#pragma unroll
    for (int e = 0; e < kEntriesAtOnce; ++e) {
      if (first + e < u_.count) {
        load_.Load(base, s_.index[first + e], out[e]);
      } else {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) out[e][v].Clear();
      }
    }
  }

  __device__ void LogitsOf(int g) {
    float q[kGroup][kVectors][kElements];
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const int d = load_.Dim(v) + i;
          q[h][v][i] = d < l_.dim_padded ? s_.queries[(g + h) * l_.dim_padded + d] : 0.0f;
        }
      }
    }
    for (int tile = 0; tile < u_.count; tile += kStep) {
      const int first = tile + team_ * kEntriesAtOnce;
      Vector k[kEntriesAtOnce][kVectors];
      LoadEntries(l_.args.pages.keys, first, k);
      float sums[kEntriesAtOnce * kGroup];
#pragma unroll
      for (int e = 0; e < kEntriesAtOnce; ++e) {
#pragma unroll
        for (int h = 0; h < kGroup; ++h) {
          float sum = 0.0f;
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
#pragma unroll
            for (int i = 0; i < kElements; ++i) sum = fmaf(q[h][v][i], k[e][v][i], sum);
          }
          sums[e * kGroup + h] = sum;
        }
      }
      constexpr int kSums = kEntriesAtOnce * kGroup;
      constexpr int kKept = kSums > kLanes ? kSums / kLanes : 1;
      const int kept = SumOverTeam<kLanes>(sums);
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        const int e = first + (kept + i) / kGroup, h = g + (kept + i) % kGroup;
        if (e < u_.count) s_.weights[h * l_.weight_stride() + e] = sums[i];
      }
    }
  }

  // Adds over the teams of a warp with shuffles.
  __device__ void JoinTeams(float (&sums)[kGroup][kVectors][kElements]) {
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
#pragma unroll
          for (int mask = kLanes; mask < kWarpSize; mask *= 2)
            sums[h][v][i] += __shfl_xor_sync(kAllLanes, sums[h][v][i], mask);
        }
      }
    }
    if (thread_ % kWarpSize >= kLanes) return;
    float* joined = s_.joined + thread_ / kWarpSize * kGroup * l_.dim_padded;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const int d = load_.Dim(v) + i;
          if (d < l_.dim_padded) joined[h * l_.dim_padded + d] = sums[h][v][i];
        }
      }
    }
  }

  const DecodeLaunch& l_;
  const DecodeUnit& u_;
  const DecodeShared& s_;
  const int thread_, team_;
  const EntryLoader<kDType, kLanes, kVectors, kAligned> load_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_PRODUCTS_FMA_CUH_
