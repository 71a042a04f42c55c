// Tiles of experts' places. The number of places per expert is known only on the device, so kernels
// are launched for the most tiles possible and find their expert from the offsets.
#ifndef HYDRANT_KERNELS_CUDA_EXPERT_TILES_CUH_
#define HYDRANT_KERNELS_CUDA_EXPERT_TILES_CUH_

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"

namespace hydrant::cuda {

struct ExpertTile {
  int expert, first, count;  // places
};

// Tile `index` over all experts' places, at most kPlaces of one expert each; count 0: past the last
// tile. Called by one warp.
template <int kPlaces>
__device__ ExpertTile FindExpertTile(const int32_t* offsets, int experts, int index) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int before = 0;  // tiles of the preceding experts
  for (int first = 0; first < experts; first += kWarpSize) {
    const int e = first + lane;
    const int begin = e < experts ? offsets[e] : 0, end = e < experts ? offsets[e + 1] : 0;
    const int tiles = (end - begin + kPlaces - 1) / kPlaces;
    int sum = tiles;
    for (int delta = 1; delta < kWarpSize; delta *= 2) {
      const int below = __shfl_up_sync(kAllLanes, sum, delta);
      if (lane >= delta) sum += below;
    }
    const int own = index - (before + sum - tiles);  // tile index within the expert
    const unsigned found = __ballot_sync(kAllLanes, own >= 0 && own < tiles);
    if (found != 0) {
      const int from = __ffs(static_cast<int>(found)) - 1;
      const int place = __shfl_sync(kAllLanes, begin + own * kPlaces, from);
      const int last = __shfl_sync(kAllLanes, end, from);
      return {first + from, place, min(kPlaces, last - place)};
    }
    before += __shfl_sync(kAllLanes, sum, kWarpSize - 1);
  }
  return {0, 0, 0};
}

// The most tiles possible: an expert's last tile may be partial.
template <int kPlaces>
int MostExpertTiles(int places, int experts) {
  return std::min(places, CeilDiv(places, kPlaces) + experts);
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_EXPERT_TILES_CUH_
